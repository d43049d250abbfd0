"""Which actuators drive a joint, tendon or site of a model, and what their controls are."""

from __future__ import annotations

from typing import Literal

import mujoco
import numpy as np
import torch

from simtrain.env.names import Joints, as_index
from simtrain.errors import ConfigError
from simtrain.sim.engine import Index

Kind = Literal["joint", "tendon", "site"]
_JOINT = mujoco.mjtTrn.mjTRN_JOINT.value
_TRANSMISSIONS: dict[Kind, tuple[int, ...]] = {
    "joint": (_JOINT, mujoco.mjtTrn.mjTRN_JOINTINPARENT.value),
    "tendon": (mujoco.mjtTrn.mjTRN_TENDON.value,),
    "site": (mujoco.mjtTrn.mjTRN_SITE.value,),
}
ONE_DEGREE = (mujoco.mjtJoint.mjJNT_HINGE.value, mujoco.mjtJoint.mjJNT_SLIDE.value)
"""The types of joints with one degree of freedom."""


def actuators_on(model: mujoco.MjModel, kind: Kind, name: str) -> list[int]:
    """The ids of the actuators that drive a joint, tendon or site."""
    number = getattr(model, kind)(name).id
    drives = np.isin(model.actuator_trntype, _TRANSMISSIONS[kind])
    return [int(i) for i in np.flatnonzero(drives & (model.actuator_trnid[:, 0] == number))]


def only_actuator_on(
    model: mujoco.MjModel, kind: Kind, name: str, needed_by: str, control: str | None = None
) -> int:
    """The id of the one actuator that drives it; ConfigError unless there is exactly one.

    `control` is what `control_of` it must be, None for anything.
    """
    ids = actuators_on(model, kind, name)
    if len(ids) != 1:
        driven = ", ".join(model.actuator(i).name for i in ids) or "no actuator drives it"
        raise ConfigError(f"{needed_by} needs exactly one actuator on {kind} {name!r}: {driven}")
    check_control(model, ids[0], needed_by, control, f" on {kind} {name!r}")
    return ids[0]


def check_control(
    model: mujoco.MjModel, actuator: int, needed_by: str, control: str | None, where: str = ""
) -> None:
    """Raise ConfigError if `control_of` an actuator is not `control`; None allows anything."""
    actual = control_of(model, actuator)
    if control not in (None, actual):
        but = f"but {model.actuator(actuator).name!r} is a {actual} actuator"
        raise ConfigError(f"{needed_by} needs a {control} actuator{where}, {but}")


def control_of(model: mujoco.MjModel, actuator: int) -> str:
    """What an actuator's control is: that of a ``position``, ``velocity`` or ``motor``."""
    if model.actuator_biastype[actuator] == mujoco.mjtBias.mjBIAS_DCMOTOR.value:
        spec, inputs = int(model.actuator_ctrlspec[actuator]), mujoco.mjtCtrlInput
        position, velocity = (spec & int(i) for i in (inputs.mjINPUT_POS, inputs.mjINPUT_VEL))
    else:
        affine = model.actuator_biastype[actuator] == mujoco.mjtBias.mjBIAS_AFFINE.value
        position, velocity = affine * model.actuator_biasprm[actuator, 1:3]
    return "position" if position != 0.0 else "velocity" if velocity != 0.0 else "motor"


def joint_servos(model: mujoco.MjModel) -> dict[int, int]:
    """The position actuators of slides and hinges, each with its joint's id."""
    joints = {
        i: int(model.actuator_trnid[i, 0])
        for i in range(model.nu)
        if model.actuator_trntype[i] == _JOINT and control_of(model, i) == "position"
    }
    return {i: joint for i, joint in joints.items() if model.jnt_type[joint] in ONE_DEGREE}


def find_servos(model: mujoco.MjModel, joints: Joints, device: torch.device | str) -> Index:
    """The position actuators that drive `joints`, in their order; ConfigError if one has none.

    Their force is affine, by ``gainprm`` and ``biasprm``.
    """
    ids = [only_actuator_on(model, "joint", n, "this term", "position") for n in joints.names]
    for actuator in ids:
        if model.actuator_biastype[actuator] != mujoco.mjtBias.mjBIAS_AFFINE.value:
            text = "has gains and an encoder that cannot be changed: it is MuJoCo's own dcmotor"
            raise ConfigError(f"the actuator {model.actuator(actuator).name!r} {text}")
    return as_index(ids, device)
