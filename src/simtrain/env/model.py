"""From a task's configuration to a compiled MuJoCo model."""

from __future__ import annotations

import hashlib
from pathlib import Path

import mujoco
import numpy as np

from simtrain.env.action_term import InitialState
from simtrain.env.cfg import SimCfg, TaskCfg
from simtrain.env.terrain import add_terrain, check_terrain
from simtrain.env.visuals import discard_visuals
from simtrain.errors import ConfigError, did_you_mean


def compile_model(cfg: TaskCfg, *, visuals: bool = False) -> mujoco.MjModel:
    """Compile the task's model with the task's time step and solver settings.

    Args:
        cfg: the task.
        visuals: whether to have the geoms too that are there to be looked at alone. Everything but
            geoms, meshes and materials is the same in both: a state of the one holds for the other.

    Raises:
        ConfigError: the file is missing, is not valid MJCF, or MuJoCo cannot compile it.
    """
    if isinstance(cfg.model, Path):
        what = str(cfg.model)
        if cfg.model.is_dir():
            raise ConfigError(f"the model {what} is a folder; name its MJCF file (--env.model)")
        if not cfg.model.is_file():
            raise ConfigError(f"the model {what} does not exist (--env.model)")
        try:
            spec = mujoco.MjSpec.from_file(str(cfg.model))
        except ValueError as error:
            raise ConfigError(f"{what} is not a valid model: {_one_line(error)}") from error
    else:
        what = f"the model made by {getattr(cfg.model, '__name__', cfg.model)}()"
        spec = cfg.model()
    if cfg.terrain is not None:
        check_terrain(cfg.terrain)
        add_terrain(cfg.terrain, spec)
    spec.option.timestep = cfg.timestep
    _apply(cfg.sim, spec)
    if not visuals:
        discard_visuals(cfg, spec)
    try:
        return spec.compile()
    except ValueError as error:
        raise ConfigError(f"{what} does not compile: {_one_line(error)}") from error


def model_digest(model: mujoco.MjModel) -> str:
    """A SHA-256 of a compiled model in hexadecimal digits; it changes with MuJoCo's version."""
    data = np.zeros(mujoco.mj_sizeModel(model), dtype=np.uint8)
    mujoco.mj_saveModel(model, None, data)
    return hashlib.sha256(data.data).hexdigest()


def find_keyframe(model: mujoco.MjModel, name: str | None) -> int | None:
    """The id of the keyframe that episodes start from; None is MuJoCo's default state."""
    if name is None:
        return None
    names = [model.key(i).name for i in range(model.nkey)]
    if name not in names:
        raise ConfigError(
            f"the model has no keyframe {name!r}{did_you_mean(name, names)}; "
            f"it has {', '.join(names) or 'none'}"
        )
    return names.index(name)


def initial_state(model: mujoco.MjModel, keyframe: int | None) -> InitialState:
    """The keyframe's state, or MuJoCo's default for None."""
    if keyframe is None:
        return InitialState(np.array(model.qpos0), np.zeros(model.nu))
    return InitialState(np.array(model.key_qpos[keyframe]), np.array(model.key_ctrl[keyframe]))


def _apply(cfg: SimCfg, spec: mujoco.MjSpec) -> None:
    if cfg.integrator is not None:
        spec.option.integrator = getattr(
            mujoco.mjtIntegrator, f"mjINT_{cfg.integrator.upper()}"
        ).value
    if cfg.solver is not None:
        spec.option.solver = getattr(mujoco.mjtSolver, f"mjSOL_{cfg.solver.upper()}").value
    if cfg.iterations is not None:
        spec.option.iterations = cfg.iterations
    if cfg.ls_iterations is not None:
        spec.option.ls_iterations = cfg.ls_iterations


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
