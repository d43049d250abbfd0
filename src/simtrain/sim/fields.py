"""Which MjData fields engines bind, so that a task that runs on one engine runs on the other."""

from __future__ import annotations

import mujoco
import mujoco.batch
import numpy as np

from simtrain.errors import did_you_mean

_SENSORS = {
    "rne_postconstraint": (
        "mjSENS_ACCELEROMETER",
        "mjSENS_FORCE",
        "mjSENS_TORQUE",
        "mjSENS_FRAMELINACC",
        "mjSENS_FRAMEANGACC",
    ),
    "subtree_vel": ("mjSENS_SUBTREELINVEL", "mjSENS_SUBTREEANGMOM"),
}
_COMPUTED_FOR_SENSORS = {
    "cacc": "rne_postconstraint",
    "cfrc_ext": "rne_postconstraint",
    "cfrc_int": "rne_postconstraint",
    "subtree_angmom": "subtree_vel",
    "subtree_linvel": "subtree_vel",
}
_NEVER_COMPUTED = frozenset({"qfrc_inverse", "solver_fwdinv"})
_FACTORS = frozenset({"qDeriv", "qH", "qHDiagInv", "qLD", "qLDiagInv", "qLU"})


def check_bindable(model: mujoco.MjModel, field: str) -> None:
    """Refuse an MjData field that no engine can keep up to date.

    Raises:
        ValueError: there is no such field; it holds integers or booleans; or MuJoCo does not
            compute it in `model`.
    """
    if field not in mujoco.batch.DATA_FIELDS:
        if field in mujoco.batch.MODEL_FIELDS:
            raise ValueError(f"{field!r} is an MjModel field: use expand({field!r})")
        raise ValueError(
            f"{field!r} is not an MjData array that an engine can bind"
            f"{did_you_mean(field, mujoco.batch.DATA_FIELDS)}"
        )
    kind = np.asarray(getattr(mujoco.MjData(model), field)).dtype.kind
    if kind != "f":
        raise ValueError(f"{field!r} holds integers or booleans; engines bind real numbers alone")
    if field in _NEVER_COMPUTED:
        raise ValueError(f"{field!r} belongs to inverse dynamics, which engines do not run")
    if field in _FACTORS:
        raise ValueError(f"{field!r} is scratch memory of MuJoCo's integrators, laid out by each")
    if field == "energy" and not model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_ENERGY:
        raise ValueError("'energy' needs <option><flag energy=\"enable\"/></option> in the model")
    if field in _COMPUTED_FOR_SENSORS:
        names = _SENSORS[_COMPUTED_FOR_SENSORS[field]]
        types = [int(getattr(mujoco.mjtSensor, name)) for name in names]
        disabled = bool(model.opt.disableflags & mujoco.mjtDisableBit.mjDSBL_SENSOR)
        if disabled or not np.isin(model.sensor_type, types).any():
            wanted = ", ".join(name.removeprefix("mjSENS_").lower() for name in names)
            raise ValueError(
                f"MuJoCo computes {field!r} only for sensors that need it: "
                f"add one of {wanted} to the model"
            )
