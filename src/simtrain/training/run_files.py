"""What a run can be continued and used from: its configuration, checkpoints and training state."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain.config import TrainConfig
from simtrain.config_tree import resolved
from simtrain.env.model import model_digest
from simtrain.env.nan_guard import Dump
from simtrain.errors import ConfigError
from simtrain.run.directory import remove_leftovers, shown, versions, write_config
from simtrain.run.nan_dump import write_dump
from simtrain.run.saver import Save, Saver
from simtrain.run.tensor_file import unpacked

if TYPE_CHECKING:
    from simtrain.training.loop import Trainer

_NETWORKS = ("actor_state_dict", "critic_state_dict", "optimizer_state_dict")


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    checkpoint: Path | None
    """The last checkpoint that was written."""
    error: str | None
    """Why the last checkpoint or the last metrics could not be written, or None if they were."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of an iteration in each phase on rank 0, in the mean; empty without a timer."""


class RunFiles:
    """Rank 0's files beside the metrics; they are written by a thread of its own."""

    def __init__(
        self,
        config: TrainConfig,
        default: TrainConfig,
        run: Path,
        trainer: Trainer,
        devices: list[str],
        before: Callable[[], None],
    ) -> None:
        """Write the configuration.

        Args:
            config: the run's configuration.
            default: the task's own.
            run: the run directory.
            trainer: what is saved.
            devices: what each rank runs on.
            before: called before a state is written, in the thread.

        Raises:
            ConfigError: the folder cannot be written to.
        """
        rank = trainer.rank
        self._run = run
        self._task = config.task
        self._decimation = config.env.decimation
        self._constant = {
            "task": config.task,
            "config": {**resolved(config), "engine": config.engine_on(rank.device.type)},
            "default": resolved(default),
            "model": model_digest(trainer.env.model),
            "threads": rank.threads,
            "versions": versions(),
        }
        try:
            remove_leftovers(run)
            write_config(run / "config.yaml", resolved(config), devices)
        except OSError as error:
            raise ConfigError(f"{run} cannot be written: {error.strerror}") from error
        self._saver = Saver(run, config.keep_checkpoints, before)

    def save(self, state: dict[str, Any]) -> None:
        """Have a training state and its policy written soon; `state` is not to be changed."""
        learner = state["learner"]
        self._saver.submit(
            Save(
                iteration=state["iteration"],
                networks={name: learner[name] for name in _NETWORKS},
                infos={"task": self._task, "env_steps": state["env_steps"]},
                resume=lambda: {
                    **self._constant,
                    **state,
                    "ranks": [unpacked(each) for each in state["ranks"]],
                },
            )
        )

    def dump(self, iteration: int, rank: int, dump: Dump) -> str:
        """Write the last steps of a simulation that failed; what a person should know."""
        failed = (
            f"warning: the simulation of environment {dump.env} of rank {rank} failed and was "
            f"reset: {dump.said}"
        )
        name = f"iteration_{iteration}_rank_{rank}_env_{dump.env}"
        try:
            folder = write_dump(
                self._run,
                name,
                dump.states,
                dump.model,
                decimation=self._decimation,
                iteration=iteration,
                env=dump.env,
                said=dump.said,
            )
        except OSError as error:
            return f"{failed} (its last steps cannot be written: {error.strerror})"
        return f"{failed} (`uv run play --replay {shlex.quote(str(shown(folder)))}` shows it)"

    @property
    def saved(self) -> Path | None:
        """The last checkpoint that was written."""
        return self._saver.saved

    @property
    def error(self) -> str | None:
        """Why the last save could not be written, or None if it was."""
        return self._saver.error

    def messages(self) -> list[str]:
        """What a person should know since this was last asked."""
        return self._saver.messages()

    def close(self) -> None:
        """Wait until everything is written, or cannot be."""
        self._saver.close()
