"""The actuators that drive a joint, tendon or site of a model, and the kinds of their controls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import mujoco
import numpy as np

from simtrain.errors import ConfigError

if TYPE_CHECKING:  # what prepares robots does not wait for torch
    import torch

    from simtrain.env.names import Joints
    from simtrain.sim.engine import Index

Kind = Literal["joint", "tendon", "site"]
_TRANSMISSIONS: dict[Kind, tuple[int, ...]] = {
    "joint": (mujoco.mjtTrn.mjTRN_JOINT.value, mujoco.mjtTrn.mjTRN_JOINTINPARENT.value),
    "tendon": (mujoco.mjtTrn.mjTRN_TENDON.value,),
    "site": (mujoco.mjtTrn.mjTRN_SITE.value,),
}


def actuators_on(model: mujoco.MjModel, kind: Kind, name: str) -> list[int]:
    """The ids of the actuators that drive a joint, tendon or site."""
    number = getattr(model, kind)(name).id
    drives = np.isin(model.actuator_trntype, _TRANSMISSIONS[kind])
    return [int(i) for i in np.flatnonzero(drives & (model.actuator_trnid[:, 0] == number))]


def joint_actuators(model: mujoco.MjModel) -> tuple[np.ndarray, np.ndarray]:
    """The ids of the actuators that drive joints, and of the joint that each drives."""
    actuators = np.flatnonzero(np.isin(model.actuator_trntype, _TRANSMISSIONS["joint"]))
    return actuators, model.actuator_trnid[actuators, 0]


def find_driving(
    model: mujoco.MjModel,
    kind: Kind,
    names: Sequence[str],
    needed_by: str,
    control: str | None = None,
    *,
    several: bool = False,
) -> list[int]:
    """The ids of the actuators that drive joints, tendons or sites of these names, in their order.

    ConfigError unless each has exactly one, or one or more if `several`, and their `control_of` is
    `control`; None allows anything.
    """
    ids = []
    for name in names:
        own, where = actuators_on(model, kind, name), f"{kind} {name!r}"
        if len(own) != 1 and not (own and several):
            driven = ", ".join(model.actuator(i).name for i in own) or "no actuator drives it"
            number = "an actuator" if several else "exactly one actuator"
            raise ConfigError(f"{needed_by} needs {number} on {where}: {driven}")
        for actuator in own:
            if control not in (None, actual := control_of(model, actuator)):
                but = f"but {model.actuator(actuator).name!r} is a {actual} actuator"
                raise ConfigError(f"{needed_by} needs a {control} actuator on {where}, {but}")
        ids += own
    return ids


def check_gears(model: mujoco.MjModel, actuators: Sequence[int], needed_by: str) -> None:
    """Raise ConfigError if positions of joints are not targets of their servos."""
    for actuator in actuators:
        if (gear := float(model.actuator_gear[actuator, 0])) != 1.0:
            text = f"{needed_by} needs a gear of 1, and {model.actuator(actuator).name!r} has"
            fix = "multiply its gains by gear^2 and its forces by gear, divide its controls by gear"
            raise ConfigError(f"{text} {gear:g}; write 1, and {fix}")


def target_limits(model: mujoco.MjModel, actuators: Sequence[int]) -> np.ndarray:
    """The least and the greatest ``ctrl`` of actuators, infinite without limits. Shape ``(2, n)``.

    Not by ``ctrllimited``: that of a DC motor bounds its targets, not what it does with them.
    """
    ranges = model.actuator_ctrlrange[actuators]
    limits: np.ndarray = np.where(ranges[:, :1] < ranges[:, 1:], ranges, (-np.inf, np.inf)).T
    return limits


def control_of(model: mujoco.MjModel, actuator: int) -> str:
    """The kind of an actuator's control: that of a ``position``, ``velocity`` or ``motor``."""
    if model.actuator_biastype[actuator] == mujoco.mjtBias.mjBIAS_DCMOTOR.value:
        spec, inputs = int(model.actuator_ctrlspec[actuator]), mujoco.mjtCtrlInput
        position, velocity = (spec & int(i) for i in (inputs.mjINPUT_POS, inputs.mjINPUT_VEL))
    else:
        affine = model.actuator_biastype[actuator] == mujoco.mjtBias.mjBIAS_AFFINE.value
        position, velocity = affine * model.actuator_biasprm[actuator, 1:3]
    return "position" if position != 0.0 else "velocity" if velocity != 0.0 else "motor"


def find_servos(model: mujoco.MjModel, joints: Joints, device: torch.device | str) -> Index:
    """The position actuators that drive `joints`, in their order; ConfigError if one has none.

    Their force is affine, by ``gainprm`` and ``biasprm``.
    """
    from simtrain.env.names import as_index

    ids = find_driving(model, "joint", joints.names, "this term", "position")
    for actuator in ids:
        if model.actuator_biastype[actuator] != mujoco.mjtBias.mjBIAS_AFFINE.value:
            text = "is MuJoCo's own dcmotor, whose gains and encoder cannot be changed"
            raise ConfigError(f"the actuator {model.actuator(actuator).name!r} {text}")
    return as_index(ids, device)
