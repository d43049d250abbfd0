"""The robot in a retargeting: segments, soles and trunk, by its tree and positions."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import mujoco
import numpy as np

from simtrain.errors import ConfigError
from simtrain.motion.clip import load_robot
from simtrain.robots.inspect import Robot, inspect
from simtrain.robots.prepare import prepare
from simtrain.robots.read import read
from simtrain.robots.tree import Limb, Tree

_FROM_STRAIGHT, _BENT = 0.03, 0.3  # rad
_ROLLS, _NO_ANKLE_ROLL = 0.5, 0.05  # of an axis, along the sole; part of a cost
_SHORT = 0.35  # of the upper segment: a shorter one is no lower segment


@dataclass(frozen=True)
class Point:
    """A point that is fixed to a body."""

    body: int
    place: np.ndarray
    """Position in the frame of the body, m."""

    def at(self, data: mujoco.MjData) -> np.ndarray:
        """Its position, m."""
        return np.asarray(data.xpos[self.body] + data.xmat[self.body].reshape(3, 3) @ self.place)


@dataclass(frozen=True)
class Sole:
    """The sole of a foot."""

    body: str
    center: np.ndarray
    """Position in the frame of the body, m."""
    rotation: np.ndarray
    """Rotation from the frame of the sole, x forward and z up, to that of the body."""
    ankle: np.ndarray
    """The center of the ankle in the frame of the sole, m."""
    length: float
    """Length of the sole, m; 0 for a ball, whose rotation is free."""
    turn_costs: np.ndarray
    """Parts of the costs of its rotation about the axes of the body, ``(3,)``."""

    def toe(self, data: mujoco.MjData) -> np.ndarray:
        """Position of its front end, m."""
        front = self.center + self.rotation @ np.array([self.length / 2.0, 0.0, 0.0])
        return Point(data.body(self.body).id, front).at(data)


@dataclass(frozen=True)
class Humanoid:
    """A robot with two legs and, maybe, two arms. The x axis of its base is forward, z is up."""

    model: mujoco.MjModel
    base: str
    home: np.ndarray
    """The upright pose with slightly bent knees, ``(nq,)``."""
    ranges: np.ndarray
    """Ranges of joints, ``(njnt, 2)``; those of knees end where the leg is straight."""
    hips: dict[str, np.ndarray]
    """Hips by side, in the frame of the base, m."""
    stance: float
    """Distance between the ankles in the upright pose, m."""
    leg: float
    """Distance from hip to ankle with a straight knee, m."""
    segments: dict[str, tuple[Point, ...]]
    """Segments by the landmark at their lower end: from hip to knee is ``left_knee``."""
    soles: dict[str, Sole]
    """Soles by side."""
    chest: str
    """The body that carries the arms; the base for a robot without a waist."""
    chest_rotation: np.ndarray
    """Rotation of the chest in the frame of the base, at home."""


def load_humanoid(path: Path) -> Humanoid:
    """The humanoid in an MJCF or URDF file; ConfigError if it does not have two legs.

    A model without a free joint or meshes, or that does not face along x, is prepared as by
    `simtrain new`.
    """
    source = read(path)
    robot, model = inspect(source.spec, source.base), None
    if robot.is_free and not robot.heading:
        with suppress(ConfigError):
            model = load_robot(path)
    if len(robot.legs) != 2 or model is None:
        prepared = prepare(source)
        robot, model = prepared.robot, load_robot(path, prepared.spec)
    if len(robot.legs) != 2:
        raise ConfigError(f"{path} has {len(robot.legs)} legs; a person's motion needs two")
    return _describe(model, robot)


def _describe(model: mujoco.MjModel, robot: Robot) -> Humanoid:
    tree = Tree(model, robot.base)
    data, base = tree.data, tree.base
    upright = data.xmat[base].reshape(3, 3)
    home, soles, hips, ankles, leg_length = data.qpos.copy(), {}, {}, [], 0.0
    segments: dict[str, tuple[Point, ...]] = {}
    limited = model.jnt_limited[:, None] > 0
    ranges = np.where(limited, model.jnt_range, (-np.inf, np.inf))
    for leg, foot in zip(robot.legs, robot.feet, strict=True):
        body, side = model.body(foot.body).id, foot.name
        frame = data.xmat[body].reshape(3, 3)
        tip = Point(body, foot.center).at(data)
        points, joint = _limb(data, leg, tip)
        hip, knee, ankle = (point.at(data) for point in points)
        segments |= {f"{side}_knee": points[:2], f"{side}_ankle": points[1:]}
        leg_length += float(np.linalg.norm(knee - hip) + np.linalg.norm(ankle - knee)) / 2.0
        straight, sign = _straight(data, joint, hip, ankle)
        nearly = np.clip(straight + sign * _FROM_STRAIGHT, *ranges[joint])
        ranges[joint] = sorted((nearly, ranges[joint, int(sign > 0.0)]))
        home[model.jnt_qposadr[joint]] = np.clip(straight + sign * _BENT, *ranges[joint])
        up = -frame @ foot.down
        ahead = upright[:, 0] - up * (upright[:, 0] @ up)
        ahead /= np.linalg.norm(ahead)
        below = leg.joints[leg.joints.index(model.joint(joint).name) + 1 :]
        rolls = data.xaxis[[model.joint(name).id for name in below]] @ ahead
        turn_costs = np.full(3, float(bool(foot.length)))
        if not (np.abs(rolls) > _ROLLS).any():
            # The base would have to be above the foot, because no joint of the ankle rolls it.
            turn_costs[np.abs(frame.T @ ahead).argmax()] *= _NO_ANKLE_ROLL
        axes = np.stack((ahead, np.cross(up, ahead), up), axis=1)
        center = tip - foot.radius * up
        soles[side] = Sole(
            foot.body,
            _fixed(data, body, center).place,
            frame.T @ axes,
            (ankle - center) @ axes,
            foot.length,
            turn_costs,
        )
        hips[side] = _fixed(data, base, hip).place
        ankles.append(_fixed(data, base, ankle).place)
    chest = base
    arms = [arm for arm in robot.arms if len(arm.joints) >= 3]
    for side, sign in (("left", 1.0), ("right", -1.0)):
        its = [arm for arm in arms if sign * arm.place[1] > 0.0]
        if not its:
            continue
        arm = max(its, key=lambda arm: len(arm.joints) + abs(arm.place[1]))
        tip = Point(model.body(arm.end).id, tree.tool(arm)).at(data)
        points, _ = _limb(data, arm, tip)
        segments |= {f"{side}_elbow": points[:2], f"{side}_wrist": points[1:]}
        chest = points[0].body
    return Humanoid(
        model=model,
        base=robot.base,
        home=home,
        ranges=ranges,
        hips=hips,
        stance=float(abs(ankles[0][1] - ankles[1][1])),
        leg=leg_length,
        segments=segments,
        soles=soles,
        chest=model.body(chest).name,
        chest_rotation=upright.T @ data.xmat[chest].reshape(3, 3),
    )


def _limb(data: mujoco.MjData, limb: Limb, tip: np.ndarray) -> tuple[tuple[Point, ...], int]:
    """Hip, knee and ankle of a leg, or shoulder, elbow and wrist of an arm; the middle joint."""
    model = data.model
    joints = [model.joint(name).id for name in limb.joints]
    anchors, axes = data.xanchor[joints], data.xaxis[joints]
    # The knee or elbow is the joint across the limb that is farthest from its ends.
    above, below = np.linalg.norm(anchors - anchors[0], axis=1), tip - anchors
    reach = np.linalg.norm(below, axis=1)
    across = np.abs((axes * below).sum(axis=1)) < 0.6 * reach
    middle = max(1, int((np.minimum(reach, above) * across).argmax()))
    start, bend = _center(anchors[:middle], axes[:middle]), anchors[middle]
    end = _center(anchors[middle + 1 :], axes[middle + 1 :]) if middle + 1 < len(joints) else tip
    if np.linalg.norm(end - bend) < _SHORT * np.linalg.norm(bend - start):
        end = tip
    bodies = [int(model.jnt_bodyid[j]) for j in joints]
    # The end is on the lower segment, so that ankle and wrist do not turn that.
    last = bodies[-1] if end is tip else bodies[middle]
    owners = (int(model.body_parentid[bodies[0]]), bodies[middle], last)
    places = zip(owners, (start, bend, end), strict=True)
    return tuple(_fixed(data, body, place) for body, place in places), joints[middle]


def _fixed(data: mujoco.MjData, body: int, place: np.ndarray) -> Point:
    """The point of a body that is at `place` now."""
    return Point(body, (place - data.xpos[body]) @ data.xmat[body].reshape(3, 3))


def _straight(
    data: mujoco.MjData, knee: int, hip: np.ndarray, ankle: np.ndarray
) -> tuple[float, float]:
    """The angle of the straight knee, rad, and the sign of the direction in which it bends."""
    model = data.model
    axis, thigh, shank = data.xaxis[knee], data.xanchor[knee] - hip, ankle - data.xanchor[knee]
    thigh, shank = (vector - axis * (vector @ axis) for vector in (thigh, shank))
    bent = np.arctan2(axis @ np.cross(thigh, shank), thigh @ shank)
    straight = float(data.qpos[model.jnt_qposadr[knee]] - bent)
    low, high = model.jnt_range[knee] if model.jnt_limited[knee] else (-np.inf, np.inf)
    if np.isinf(high):  # as a person's does
        return straight, 1.0 if axis[1] > 0.0 else -1.0
    return straight, 1.0 if high - straight > straight - low else -1.0


def _center(anchors: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """The point nearest to the axes of joints ``(n, 3)``, the center of a ball joint."""
    across = np.eye(3) - axes[:, :, None] * axes[:, None]
    normal = 1e-3 * np.eye(3) + across.sum(axis=0)
    moment = 1e-3 * anchors.mean(axis=0) + (across @ anchors[:, :, None]).sum(axis=0)[:, 0]
    return np.asarray(np.linalg.solve(normal, moment))
