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
    if field in ("qfrc_inverse", "solver_fwdinv"):
        raise ValueError(f"{field!r} belongs to inverse dynamics, which engines do not run")
    if field in ("qDeriv", "qH", "qHDiagInv", "qLD", "qLDiagInv", "qLU"):
        raise ValueError(f"{field!r} is scratch memory of MuJoCo's integrators, laid out by each")
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
    if isinstance(index, slice):
        if mask is None:
            part.copy_(values)
    else:
        target[:, index] = values.expand_as(part)
