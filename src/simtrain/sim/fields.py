"""MuJoCo's fields, by rules that the engines share: a task that runs on one runs on the other."""

import mujoco
import mujoco.batch
import numpy as np
import torch
from torch import Tensor

from simtrain.errors import did_you_mean
from simtrain.sim.engine import ALL, Index

_USER_INPUTS = ("ctrl", "qfrc_applied", "xfrc_applied", "mocap_pos", "mocap_quat")
STATE_FIELDS = ("time", "qpos", "qvel", "act", "qacc_warmstart", *_USER_INPUTS)
"""The fields that `Engine.write` accepts besides expanded model fields."""
APPLIED_FIELDS = frozenset({"ctrl", "qacc_warmstart", "qfrc_applied", "xfrc_applied"})
"""State fields that no position- or velocity-dependent field follows from."""
_JOINT_FORCES = ("qacc", "qacc_smooth", "qfrc_actuator", "qfrc_constraint", "qfrc_smooth")
_BODY_FORCES = ("cacc", "cfrc_ext", "cfrc_int")
ACCELERATION_FIELDS = frozenset({*_JOINT_FORCES, *_BODY_FORCES, "act_dot", "actuator_force"})
"""Derived fields that depend on accelerations; `acceleration_sensors` says which sensors do."""
_RNE_SENSORS = ("ACCELEROMETER", "FORCE", "TORQUE", "FRAMELINACC", "FRAMEANGACC")
_SENSORS_THAT_NEED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_BODY_FORCES, _RNE_SENSORS),
    **dict.fromkeys(("subtree_angmom", "subtree_linvel"), ("SUBTREELINVEL", "SUBTREEANGMOM")),
}
"""Fields that MuJoCo computes only if one of these sensors (``mjSENS_...``) is in the model."""
_INTEGRATORS = ("qDeriv", "qH", "qHDiagInv", "qLD", "qLDiagInv", "qLU")
_NOT_REFRESHED = ("qfrc_inverse", "solver_fwdinv", *_INTEGRATORS)


def check_bindable(model: mujoco.MjModel, field: str) -> None:
    """Raise `ValueError` for an MjData field that no engine can keep up to date in `model`."""
    if field not in mujoco.batch.DATA_FIELDS:
        if field in mujoco.batch.MODEL_FIELDS:
            raise ValueError(f"{field!r} is an MjModel field: use expand({field!r})")
        raise ValueError(
            f"{field!r} is not an MjData array that an engine can bind"
            f"{did_you_mean(field, mujoco.batch.DATA_FIELDS)}"
        )
    if np.asarray(getattr(mujoco.MjData(model), field)).dtype.kind != "f":
        raise ValueError(f"{field!r} holds integers or booleans; engines bind real numbers alone")
    if field in _NOT_REFRESHED:
        text = "belongs to inverse dynamics, or to the inside of MuJoCo's integrators"
        raise ValueError(f"{field!r} {text}; engines do not keep it up to date")
    if field == "energy" and not model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_ENERGY:
        raise ValueError("'energy' needs <option><flag energy=\"enable\"/></option> in the model")
    if names := _SENSORS_THAT_NEED.get(field):
        types = [int(getattr(mujoco.mjtSensor, f"mjSENS_{name}")) for name in names]
        disabled = bool(model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_SENSOR)
        if disabled or not np.isin(model.sensor_type, types).any():
            raise ValueError(
                f"MuJoCo computes {field!r} only for sensors that need it: "
                f"add one of {', '.join(names).lower()} to the model"
            )


def not_writable(field: str) -> ValueError:
    """The error of `Engine.write` for a field that is neither state nor expanded."""
    return ValueError(
        f"{field!r} cannot be written: it is neither a state field ({', '.join(STATE_FIELDS)}) nor "
        f"an expanded model field; call expand({field!r}) first if it is a model field"
    )


def check_state(state: dict[str, Tensor], name: str, own: Tensor) -> None:
    """Raise `ValueError` if `state` is not of an engine like the one whose state has `own`."""
    if name not in state:
        raise ValueError("the saved state is of another engine; continue with that one")
    saved = state[name]
    if saved.shape != own.shape:
        raise ValueError(
            f"the saved state has shape {tuple(saved.shape)} (environments, numbers), this engine "
            f"needs {tuple(own.shape)}: another model or number of environments"
        )


def entries_of(state: dict[str, Tensor], kind: str) -> list[tuple[str, Tensor]]:
    """Field and value of the entries ``kind/field`` of an engine's state."""
    parts = [(name.partition("/"), value) for name, value in state.items()]
    return [(field, value) for (prefix, _, field), value in parts if prefix == kind]


def acceleration_sensors(model: mujoco.MjModel) -> Tensor:
    """Which entries of ``sensordata`` depend on accelerations; boolean, ``(nsensordata,)``."""
    late = model.sensor_needstage == mujoco.mjtStage.mjSTAGE_ACC.value
    return torch.from_numpy(np.repeat(late, model.sensor_dim))


def write_rows(target: Tensor, values: Tensor | float, mask: Tensor | None, index: Index) -> None:
    """Write `values` into ``target[:, index]`` where `mask`, in place; see `Engine.write`."""
    part = target if isinstance(index, slice) and index == ALL else target[:, index]
    if not isinstance(values, torch.Tensor):
        values = torch.full((), values, dtype=target.dtype, device=target.device)
    values = values.to(target.dtype)
    if mask is not None:
        out = part if isinstance(index, slice) else None
        values = torch.where(mask.view(-1, *(1,) * (part.ndim - 1)), values, part, out=out)
    if not isinstance(index, slice):
        target[:, index] = values.expand_as(part)
    elif mask is None:
        part.copy_(values)
