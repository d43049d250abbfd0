"""Kinematics of a robot: inverse kinematics of feet, poses of arms, axes and mirror images."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
from scipy.optimize import least_squares, minimize

from simtrain.env.control.transmission import joint_actuators
from simtrain.robots.inspect import Robot
from simtrain.robots.tree import LATERAL, Foot, Limb

_YAW = 0.1
"""Weight of a sole's yaw, relative to its tilt."""
_APART = 0.9
"""Fraction of the way to where they hang by which stretched-out arms are lowered."""
_BLOCKED = 0.01
"""Part of a motor's motion that constraints may leave open."""
_TILTED, _LINK = 0.6, 0.5
"""Minimum lateral part of the axis of a tilted hip, and its distance from the next joint, by the
length of the link that follows."""
_SPRING = 30.0
"""How much less springs bend than other joints turn where linkages close."""
_LOOP = 10.0
"""Weight of a violated constraint, of 1 m or rad, relative to a sole's tilt."""
_NEWTON_STEPS, _STEP, _CLOSED = 20, 0.5, 1e-10
"""Steps that close loops, at most; the largest of one joint, m or rad; and the distance at which
they are closed, m or rad: far less than a joint moves in the finite differences of inverse
kinematics, 1e-8 rad."""


def at(model: mujoco.MjModel, qpos: np.ndarray) -> mujoco.MjData:
    """Positions, contacts and constraints at `qpos`, `(nq,)`."""
    data = mujoco.MjData(model)
    data.qpos[:] = qpos
    mujoco.mj_fwdPosition(model, data)
    return data


def posed(model: mujoco.MjModel, robot: Robot) -> mujoco.MjData:
    """The joints where `Robot.pose` has them."""
    data = mujoco.MjData(model)
    for name, value in robot.pose.items():
        data.joint(name).qpos[:] = value
    return data


def transmitted(
    model: mujoco.MjModel, qpos: np.ndarray, joints: Sequence[int], motors: Sequence[int]
) -> np.ndarray:
    """How far equality constraints turn `joints` when the joints of `motors` turn by 1 rad.

    Both are ids. Other joints of motors stay, all others follow. 0 where a constraint blocks a
    motor. Shape ``(joints, motors)``.
    """
    _, slopes = _equalities(at(model, qpos))
    free = _loose(model, joint_actuators(model)[1])
    driving = slopes[:, model.jnt_dofadr[motors]]
    turns = np.zeros((model.nv, len(motors)))
    turns[free] = -np.linalg.pinv(slopes[:, free], rcond=1e-3) @ driving
    left = np.linalg.norm(slopes @ turns + driving, axis=0)
    turns[:, left > _BLOCKED * np.linalg.norm(driving, axis=0)] = 0.0
    return np.asarray(turns[model.jnt_dofadr[joints]])


def _loose(model: mujoco.MjModel, held: Sequence[int] | np.ndarray) -> np.ndarray:
    """Whether degrees of freedom are neither of the base nor of the joints `held`, ``(nv,)``."""
    is_free = model.jnt_type[model.dof_jntid] == int(mujoco.mjtJoint.mjJNT_FREE)
    return np.asarray(~is_free & ~np.isin(model.dof_jntid, held))


def _equalities(data: mujoco.MjData) -> tuple[np.ndarray, np.ndarray]:
    """How far equality constraints are violated, m or rad, ``(n,)``, and the slopes, ``(n, nv)``.

    Constraints are computed anew, with a dense Jacobian, to which the model is set in place.
    """
    model = data.model
    model.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    mujoco.mj_fwdPosition(model, data)
    rows = data.efc_type == int(mujoco.mjtConstraint.mjCNSTR_EQUALITY)
    return data.efc_pos[rows], data.efc_J.reshape(data.nefc, model.nv)[rows]


def ranges(
    model: mujoco.MjModel, joints: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The indices of joints in ``qpos``, and their ranges; half a turn if they have none."""
    ids = [model.joint(name).id for name in joints]
    low, high = np.where(model.jnt_limited[ids, None] > 0, model.jnt_range[ids], (-np.pi, np.pi)).T
    return model.jnt_qposadr[ids], low, high


def pitch_joints(data: mujoco.MjData, leg: Limb) -> list[str]:
    """The joints of a leg that turn about the lateral axis, from hip to foot.

    A joint that is tilted is the hip if it is above the others by a link, as a thigh is.
    """
    lateral = {name: abs(data.joint(name).xaxis[1]) for name in leg.joints}
    clear = [name for name, part in lateral.items() if part > LATERAL]
    if len(clear) < 2:
        return clear
    first, second = (data.joint(name).xanchor for name in clear[:2])
    link = _LINK * float(np.linalg.norm(second - first))
    hips = [
        name
        for name in leg.joints[: leg.joints.index(clear[0])]
        if lateral[name] > _TILTED and np.linalg.norm(data.joint(name).xanchor - first) > link
    ]
    return hips[:1] + clear


def down_to(data: mujoco.MjData, leg: Limb, number: int) -> tuple[str, ...]:
    """The joints of a leg down to one about the lateral axis: 1 is the hip, 2 is the knee."""
    pitch = pitch_joints(data, leg)
    return leg.joints[: leg.joints.index(pitch[:number][-1]) + 1] if pitch else leg.joints[:number]


def hip_height(model: mujoco.MjModel, robot: Robot, home: np.ndarray) -> float:
    """Mean height of the legs' first pitch joints, or of their first joints, m."""
    data = at(model, home)
    hips = [(pitch_joints(data, leg) or leg.joints)[0] for leg in robot.legs]
    return float(np.mean([data.joint(hip).xanchor[2] for hip in hips]))


def move_foot(
    data: mujoco.MjData,
    robot: Robot,
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
    model, site = data.model, data.site(f"{foot.name}_sole")
    places, low, high = ranges(model, joints)
    data.qpos[places] = guess
    mujoco.mj_kinematics(model, data)
    lateral = site.xmat.reshape(3, 3)[1].copy()  # in the frame of the sole

    def residuals(q: np.ndarray) -> np.ndarray:
        data.qpos[places] = q
        mujoco.mj_kinematics(model, data)
        apart = close_loops(data, robot)
        frame = site.xmat.reshape(3, 3) * bool(foot.length)
        turned = (*frame[:2, 2], _YAW * (frame[0] @ lateral))
        away = (site.xpos - target) / scale
        return np.concatenate((away, turned, _LOOP * apart, stay * (q - guess)))

    begin = np.clip(guess, low + 1e-3, np.maximum(high - 1e-3, low + 2e-3))
    solution = least_squares(residuals, begin, bounds=(low, np.maximum(high, low + 3e-3)))
    residuals(solution.x)
    return float(solution.cost)


def close_loops(data: mujoco.MjData, robot: Robot) -> np.ndarray:
    """Move joints so that equality constraints hold, in place, by Newton steps of minimum norm.

    The base and the driven joints of legs and trunk stay, the others stay within their ranges, and
    springs bend less than other joints turn. What is left of the violations, m or rad, ``(n,)``.
    """
    if not (model := data.model).neq:
        return np.zeros(0)
    movable = _loose(model, [model.joint(name).id for name in robot.leg_joints])
    is_hinge = model.jnt_type >= int(mujoco.mjtJoint.mjJNT_SLIDE)
    limited = np.flatnonzero(model.jnt_limited & is_hinge & movable[model.jnt_dofadr])
    places, dofs = model.jnt_qposadr[limited], model.jnt_dofadr[limited]
    low, high = model.jnt_range[limited].T
    turns = movable / np.where(model.jnt_stiffness[model.dof_jntid] > 0.0, _SPRING, 1.0)
    for _ in range(_NEWTON_STEPS):
        apart, slopes = _equalities(data)
        if not np.abs(apart).max(initial=0.0) > _CLOSED:
            break
        at, ease = data.qpos[places], turns.copy()
        while True:
            step = -ease * (np.linalg.pinv(slopes * ease, rcond=1e-3) @ apart)
            outward = ((at <= low) & (step[dofs] < 0.0)) | ((at >= high) & (step[dofs] > 0.0))
            if not outward.any():
                break
            ease[dofs[outward]] = 0.0
        part = _STEP / max(float(np.abs(step).max()), _STEP)
        mujoco.mj_integratePos(model, data.qpos, step, part)
        data.qpos[places] = np.clip(data.qpos[places], low, high)
    return _equalities(data)[0]


def hang_arms(model: mujoco.MjModel, robot: Robot, home: np.ndarray) -> np.ndarray:
    """`home`, `(nq,)`, with arms that are stretched out sideways lowered, clear of all else.

    An arm hangs where its center of mass is as low as the ranges of its joints allow.
    """
    data = at(model, home)
    touching = touching_bodies(data)

    def is_clear(places: np.ndarray, positions: np.ndarray) -> bool:
        data.qpos[places] = positions
        mujoco.mj_fwdPosition(model, data)
        return touching_bodies(data) <= touching

    for arm in robot.arms:
        mujoco.mj_fwdPosition(model, data)
        first = model.joint(arm.joints[0]).id
        x, y, z = data.subtree_com[model.jnt_bodyid[first]] - data.xanchor[first]
        if abs(y) <= max(abs(x), abs(z)):
            continue
        places, low, high = ranges(model, arm.joints)
        start = data.qpos[places].copy()
        way = _lowest(data, arm.joints, np.clip(start, low, high)) - start
        for part in np.linspace(1.0, 0.0, 21):
            lowered = start + _APART * part * way
            if is_clear(places, start + part * way) and is_clear(places, lowered):
                break
        data.qpos[places] = lowered
    return np.array(data.qpos)


def _lowest(data: mujoco.MjData, joints: Sequence[str], start: np.ndarray) -> np.ndarray:
    """Positions of an arm's joints with the lowest center of mass, near `start`."""
    model, (places, low, high) = data.model, ranges(data.model, joints)
    body = model.joint(joints[0]).bodyid[0]
    reach = float(np.linalg.norm(data.subtree_com[body] - data.joint(joints[0]).xanchor))

    def height(q: np.ndarray) -> float:
        data.qpos[places] = q
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        return float(data.subtree_com[body, 2] / reach + 0.01 * np.sum((q - start) ** 2))

    return np.asarray(minimize(height, start, bounds=list(zip(low, high, strict=True))).x)


def bent_arm(model: mujoco.MjModel, robot: Robot) -> np.ndarray:
    """Positions of a robot's keyframe, or those in which its tool can be moved most easily.

    These are near the middle of the ranges, with the fewest touching pairs of bodies: a fixed base
    and the first link often touch in every pose, because MuJoCo excludes only contacts with a
    parent that moves.
    """
    data, site, (arm,) = posed(model, robot), model.site("tool").id, robot.arms
    dofs = model.jnt_dofadr[[model.joint(name).id for name in arm.joints]]
    places, *bounds = ranges(model, arm.joints)
    low, high = np.clip(bounds, -3.2, 3.2)
    best, home = (-np.inf, 0.0), np.array(data.qpos)
    random, jacobian = np.random.default_rng(0), np.zeros((6, model.nv))
    for _ in range(0 if robot.has_keyframe else 300):
        data.qpos[places] = random.uniform(0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high)
        mujoco.mj_fwdPosition(model, data)
        mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], site)
        ease = float(np.linalg.svd(jacobian[:, dofs], compute_uv=False)[-1])
        quality = -len(touching_bodies(data)), ease
        if data.site_xpos[site, 2] > 0.05 and quality > best:
            best, home = quality, np.array(data.qpos)
    data.qpos[:] = home
    close_loops(data, robot)
    return np.array(data.qpos)


def inertias(model: mujoco.MjModel, home: np.ndarray) -> dict[str, float]:
    """The inertia that each joint moves at `home` while all others are held, kg m^2 or kg."""
    matrix = np.empty((model.nv, model.nv))
    mujoco.mj_fullM(model, at(model, home), matrix)
    joints = [model.joint(number) for number in range(model.njnt)]
    return {joint.name: float(matrix[joint.dofadr[0], joint.dofadr[0]]) for joint in joints}


def touching_bodies(data: mujoco.MjData) -> set[tuple[int, ...]]:
    """Pairs of bodies that are in contact, by their numbers in ascending order."""
    bodies = data.model.geom_bodyid[data.contact.geom]
    return {tuple(sorted(pair)) for pair in bodies.tolist()}


def symmetric(
    model: mujoco.MjModel, robot: Robot, values: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """`values` of joints, at the indices `places`, averaged over each joint and its mirror image.

    A joint in the middle that is held, such as one of an arm on the back, keeps its value, and so
    do all without legs: a second arm does not mirror the first.
    """
    if not robot.legs:
        return values.copy()
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
