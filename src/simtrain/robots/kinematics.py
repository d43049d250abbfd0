"""Kinematics of a robot's legs: feet, inverse kinematics, axes, heights and mirror images."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
from scipy.optimize import least_squares

from simtrain.robots.inspect import Robot
from simtrain.robots.tree import Foot, Limb

_YAW = 0.1
"""Weight of a sole's yaw, relative to its tilt."""


def at(model: mujoco.MjModel, qpos: np.ndarray) -> mujoco.MjData:
    """Positions, contacts and constraints at `qpos`, `(nq,)`."""
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_fwdPosition(model, data)
    return data


def ranges(
    model: mujoco.MjModel, joints: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The indices of joints in ``qpos``, and their ranges; half a turn if they have none."""
    ids = [model.joint(name).id for name in joints]
    low, high = np.where(model.jnt_limited[ids, None] > 0, model.jnt_range[ids], (-np.pi, np.pi)).T
    return model.jnt_qposadr[ids], low, high


def pitch_joints(model: mujoco.MjModel, data: mujoco.MjData, leg: Limb) -> list[str]:
    """The joints of a leg that turn about the lateral axis, from hip to foot."""
    return [name for name in leg.joints if abs(data.xaxis[model.joint(name).id, 1]) > 0.75]


def hip_height(model: mujoco.MjModel, robot: Robot, home: np.ndarray) -> float:
    """Mean height of the legs' first pitch joints, or of their first joints, m."""
    data = at(model, home)
    hips = [(pitch_joints(model, data, leg) or leg.joints)[0] for leg in robot.legs]
    return float(np.mean([data.xanchor[model.joint(hip).id][2] for hip in hips]))


def move_foot(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    foot: Foot,
    joints: Sequence[str],
    target: np.ndarray,
    *,
    guess: np.ndarray,
    scale: float,
    stay: float,
) -> float:
    """Solve `joints` for a flat foot at `target`, near their `guess`, in place; the error.

    Errors in m are multiplied by `scale`; `stay` is the weight of 1 rad from the guess. The base is
    upright. A sole keeps the yaw that it has at the guess.
    """
    places, low, high = ranges(model, joints)
    site = data.site(f"{foot.name}_sole")
    data.qpos[places] = guess
    mujoco.mj_kinematics(model, data)
    lateral = site.xmat.reshape(3, 3)[1].copy()  # in the frame of the sole

    def residuals(q: np.ndarray) -> np.ndarray:
        data.qpos[places] = q
        mujoco.mj_kinematics(model, data)
        frame = site.xmat.reshape(3, 3) * bool(foot.length)
        turned = (*frame[:2, 2], _YAW * (frame[0] @ lateral))
        return np.concatenate(((site.xpos - target) / scale, turned, stay * (q - guess)))

    begin = np.clip(guess, low + 1e-3, np.maximum(high - 1e-3, low + 2e-3))
    solution = least_squares(residuals, begin, bounds=(low, np.maximum(high, low + 3e-3)))
    residuals(solution.x)
    return float(solution.cost)


def symmetric(
    model: mujoco.MjModel, robot: Robot, values: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """`values` of joints, at the indices `places`, averaged over each joint and its mirror image.

    A joint in the middle that is held, such as one of an arm on the back, keeps its value.
    """
    signs, even = mirror_signs(model, robot), values.copy()
    for name, other in robot.partners.items():
        if name != other or name in robot.leg_joints:
            here, there = (places[model.joint(n).id] for n in (name, other))
            even[here] = (values[here] + signs[name] * values[there]) / 2.0
    return even


def mirror_signs(model: mujoco.MjModel, robot: Robot) -> dict[str, float]:
    """1 if a joint and its partner turn in the same direction in a mirror, else -1."""
    data = at(model, model.qpos0)
    seen = data.xaxis @ data.body(robot.base).xmat.reshape(3, 3)
    axes = {name: seen[model.joint(name).id] for name in robot.joints}
    mirror = (-1.0, 1.0, -1.0)  # of a pseudo-vector
    return {
        name: float(np.sign((axes[name] * mirror) @ axes[other]) or 1.0)
        for name, other in robot.partners.items()
    }
