"""The last steps before a simulation failed, in ``<run>/nan_dump/``, to be looked at and replayed.

  nan_dump/iteration_12_rank_0_env_7/states.npz    arrays by MuJoCo's names of the fields
                                    /model.mjb     the environment's own model

``numpy.load(..., allow_pickle=False)`` and ``mujoco.MjModel.from_binary_path`` read them. With the
fields of a row in an ``MjData``, stepping ``decimation`` times leads to the next row.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from simtrain.errors import ConfigError
from simtrain.run.directory import written_whole

FIELDS = ("time", "qpos", "qvel", "act", "qacc_warmstart", "mocap_pos", "mocap_quat", "ctrl")
"""MuJoCo's names of the fields that a simulation goes on from."""
_STATES, _MODEL = "states.npz", "model.mjb"


@dataclass(frozen=True)
class SavedDump:
    """The last steps of a simulation that failed."""

    model: mujoco.MjModel
    """The environment's model."""
    states: dict[str, np.ndarray]
    """MuJoCo's name of a field -> its values before each step, ``(steps, ...)``, oldest first. The
    simulation failed in the last of them."""
    decimation: int
    """Physics steps of a control step."""
    iteration: int
    """In which iteration it failed."""
    env: int
    """The environment's number in its rank."""
    said: str
    """What the engine said of the failure."""

    @property
    def steps(self) -> int:
        """How many control steps were kept."""
        return len(self.states["qpos"])

    @property
    def step_dt(self) -> float:
        """Length of a control step, s."""
        return float(self.model.opt.timestep) * self.decimation


def write_dump(
    run: Path,
    name: str,
    states: dict[str, np.ndarray],
    model: bytes,
    *,
    decimation: int,
    iteration: int,
    env: int,
    said: str,
) -> Path:
    """Write a dump; its folder.

    Args:
        run: the run directory.
        name: of the folder.
        states: see `SavedDump`.
        model: an MJB.
        decimation: see `SavedDump`.
        iteration: see `SavedDump`.
        env: see `SavedDump`.
        said: see `SavedDump`.

    Raises:
        OSError: it cannot be written.
    """
    folder = run / "nan_dump" / name
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"decimation": decimation, "iteration": iteration, "env": env, "said": said}
    facts["model_sha256"] = hashlib.sha256(model).hexdigest()
    arrays = {**states, **{name: np.array(fact) for name, fact in facts.items()}}
    with written_whole(folder / _STATES) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    with written_whole(folder / _MODEL) as file:
        file.write(model)
    return folder


def read_dump(folder: Path) -> SavedDump:
    """What `write_dump` wrote.

    Raises:
        ConfigError: there is no dump, it is damaged, or its model is of another MuJoCo.
    """
    if not (folder / _STATES).is_file():
        raise ConfigError(
            f"{folder} is no dump of a failed simulation: it has no {_STATES}; name a folder in "
            "<run>/nan_dump (--replay)"
        )
    try:
        with np.load(folder / _STATES, allow_pickle=False) as archive:
            states = {name: archive[name] for name in archive.files}
        facts = {name: states.pop(name).item() for name in ("decimation", "iteration", "env")}
        said, digest = (str(states.pop(name)) for name in ("said", "model_sha256"))
        model = (folder / _MODEL).read_bytes()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"the dump {folder} is damaged: {error}") from error
    # MuJoCo itself hardly checks what it is given.
    if hashlib.sha256(model).hexdigest() != digest:
        raise ConfigError(f"the dump {folder} is damaged: the checksum of {_MODEL} is wrong")
    try:
        compiled = mujoco.MjModel.from_binary_path(str(folder / _MODEL))
    except ValueError as error:
        raise ConfigError(
            f"{folder / _MODEL} cannot be loaded by MuJoCo {mujoco.__version__}: models are for "
            "the version that wrote them, which stands in the run's config.yaml"
        ) from error
    _check_states(folder, compiled, states)
    return SavedDump(compiled, states, **facts, said=said)


def _check_states(folder: Path, model: mujoco.MjModel, states: dict[str, np.ndarray]) -> None:
    data = mujoco.MjData(model)
    for field, values in states.items():
        if field not in FIELDS:
            raise ConfigError(f"the dump {folder} is damaged: it has an unknown {field!r}")
        shape = np.shape(getattr(data, field))
        if values.ndim == 0 or values[0].size != int(np.prod(shape)):
            raise ConfigError(f"the dump {folder} is damaged: {field} is of another model")
    if len({len(values) for values in states.values()}) != 1 or "qpos" not in states:
        raise ConfigError(f"the dump {folder} is damaged: its fields are not of the same steps")
