"""Numbers that are not finite: failed simulations are recorded, and runs that cannot learn end.

A run ends, on all ranks together, after ten consecutive iterations without learning: no optimizer
step, or a reset of every environment. The last steps of failed simulations are written to
``<run>/nan_dump/``:

  nan_dump/iteration_12_rank_0_env_7/states.npz    arrays by MuJoCo's names of the fields
                                    /model.mjb     the environment's own model

``numpy.load(..., allow_pickle=False)`` and ``mujoco.MjModel.from_binary_path`` read them. Put the
fields of a row into an ``MjData``: ``decimation`` steps then lead to the next row.
"""

from __future__ import annotations

import hashlib
import io
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np

from simtrain.errors import ConfigError, DivergenceError
from simtrain.files import check_uncompressed, damage_as_config_error, read_file, written_whole
from simtrain.run.directory import shown
from simtrain.training.features import Feature, Iteration

if TYPE_CHECKING:
    from simtrain.env.nan_guard import Dump
    from simtrain.training.context import RunContext
    from simtrain.training.loop import Trainer

PATIENCE = 10
"""Consecutive iterations without learning after which a run ends."""
MAX_DUMPS = 10
"""Maximum number of recorded failures of each rank in a run."""
_STATES, _MODEL = "states.npz", "model.mjb"


class FailureMonitor(Feature):
    """Counts failures, the same on all ranks, and writes dumps on rank 0."""

    def __init__(self, context: RunContext, trainer: Trainer) -> None:
        self._context = context
        self._trainer = trainer
        self._without_update = 0
        self._without_rollout = 0
        self._dumps = 0

    def after_iteration(self, iteration: Iteration) -> None:
        """Write dumps of new failures.

        Raises:
            DivergenceError: nothing was learned for `PATIENCE` consecutive iterations.
        """
        ppo, num_envs = self._trainer.ppo, self._trainer.env.num_envs
        resets = iteration.metrics["Sim/nan_resets"]
        all_skipped = ppo.skipped_steps == ppo.num_learning_epochs * ppo.num_mini_batches
        all_reset = resets >= num_envs * self._context.rank.world_size
        self._without_update = self._without_update + 1 if all_skipped else 0
        self._without_rollout = self._without_rollout + 1 if all_reset else 0
        if resets > 0.0 and self._dumps < MAX_DUMPS:
            self._dumps += 1
            self._write_dumps(iteration)
        if iteration.is_last or self._context.member:  # the next exchange replaces a member
            return
        if self._without_update >= PATIENCE:
            losses = {tag: x for tag, x in iteration.metrics.items() if tag.startswith("Loss/")}
            raise DivergenceError(
                f"no gradient was finite for {PATIENCE} iterations in a row, and nothing was "
                "learned; the last of them had "
                + ", ".join(f"{tag} {value:g}" for tag, value in losses.items())
                + ". A reward or an observation may have become huge; a smaller "
                "--ppo.learning-rate or a clip on the observation may help"
            )
        if self._without_rollout >= PATIENCE:
            raise DivergenceError(
                "as many simulations failed, and were reset, as there are environments, in each of "
                f"{PATIENCE} iterations in a row; nan_dump/ in the run's folder has the last steps "
                "of some. A smaller --env.timestep may help"
            )

    def state(self) -> dict[str, Any]:
        """See `Feature.state`."""
        return {"counts": [self._without_update, self._without_rollout, self._dumps]}

    def set_state(self, state: dict[str, Any]) -> None:
        """See `Feature.set_state`."""
        self._without_update, self._without_rollout, self._dumps = state["counts"]

    def _write_dumps(self, iteration: Iteration) -> None:
        context = self._context
        own = None if iteration.failures is None else iteration.failures.dump
        for rank, dump in enumerate(context.rank.gather_object(own) or ()):
            if dump is None:
                continue
            name = f"iteration_{iteration.number}_rank_{rank}_env_{dump.env}"
            folder = context.run / "nan_dump" / name
            try:
                write_dump(folder, dump, context.config.env.decimation, iteration.number)
                note = f"`uv run play --replay {shlex.quote(str(shown(folder)))}` shows it"
            except OSError as error:
                note = f"its last steps cannot be written: {error.strerror}"
            context.console.say(
                f"warning: the simulation of environment {dump.env} of rank {rank} failed and was "
                f"reset: {dump.message} ({note})"
            )


@dataclass(frozen=True)
class SavedDump:
    """The last steps of a failed simulation."""

    model: mujoco.MjModel
    states: dict[str, np.ndarray]
    """MuJoCo's name of a field -> its values before each step, ``(steps, ...)``, oldest first. The
    simulation failed in the last of them."""
    decimation: int
    iteration: int
    env: int
    """The environment's number in its rank."""
    message: str
    """The engine's message about the failure."""


def write_dump(folder: Path, dump: Dump, decimation: int, iteration: int) -> None:
    """Write a dump into a new folder; OSError if this fails."""
    folder.mkdir(parents=True, exist_ok=True)
    facts = {
        "decimation": decimation,
        "iteration": iteration,
        "env": dump.env,
        "said": dump.message,
        "model_sha256": hashlib.sha256(dump.model).hexdigest(),
    }
    with written_whole(folder / _STATES) as file:
        np.savez(file, **dump.states, **facts)  # type: ignore[arg-type]
    with written_whole(folder / _MODEL) as file:
        file.write(dump.model)


def read_dump(folder: Path) -> SavedDump:
    """Read a dump; ConfigError if it is missing, incomplete or of another version of MuJoCo."""
    if not (folder / _STATES).is_file():
        raise ConfigError(
            f"{folder} is no dump of a failed simulation: it has no {_STATES}; name a folder in "
            "<run>/nan_dump (--replay)"
        )
    with damage_as_config_error(f"the dump {folder} is damaged"):
        data = read_file(folder / _STATES, "the dump")
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            check_uncompressed(archive.zip, len(data))
            states = {name: archive[name] for name in archive.files}
        facts = {name: int(states.pop(name)) for name in ("decimation", "iteration", "env")}
        if not 1 <= facts["decimation"] <= 10_000:
            raise ValueError(f"its decimation is {facts['decimation']}")
        message, digest = (str(states.pop(name)) for name in ("said", "model_sha256"))
        # MuJoCo itself hardly checks a binary model.
        model = read_file(folder / _MODEL, "the dump's model")
        if hashlib.sha256(model).hexdigest() != digest:
            raise ValueError(f"the checksum of {_MODEL} is wrong")
        try:
            compiled = mujoco.MjModel.from_binary_path(str(folder / _MODEL))
        except ValueError as error:
            raise ConfigError(
                f"{folder / _MODEL} cannot be loaded by MuJoCo {mujoco.__version__}: models are "
                "for the version that wrote them, which stands in the run's config.yaml"
            ) from error
        _check_states(compiled, states)
    return SavedDump(compiled, states, **facts, message=message)


def _check_states(model: mujoco.MjModel, states: dict[str, np.ndarray]) -> None:
    """Raise ValueError for fields that MuJoCo's data of the model does not have."""
    data = mujoco.MjData(model)
    for field, values in states.items():
        if not hasattr(data, field):
            raise ValueError(f"it has an unknown {field!r}")
        if values.ndim == 0 or values[0].size != np.size(getattr(data, field)):
            raise ValueError(f"{field} is of another model")
    if len({len(values) for values in states.values()}) != 1 or "qpos" not in states:
        raise ValueError("its fields are not of the same steps")
