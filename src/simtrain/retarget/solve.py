"""The joint positions for the targets of a robot, frame by frame, by mink's inverse kinematics."""

import copy
from collections.abc import Collection, Iterable
from dataclasses import replace

import mink
import mujoco
import numpy as np
from scipy.ndimage import gaussian_filter1d, maximum_filter1d
from scipy.spatial.transform import Rotation

from simtrain.errors import ConfigError
from simtrain.motion.clip import root_body
from simtrain.motion.forces import posed
from simtrain.retarget.humanoid import Humanoid, Point
from simtrain.retarget.steps import Targets

_SOLE, _SOLE_TURN, _BASE, _TRUNK, _LIMB, _LEG = 60.0, 8.0, 4.0, 2.0, 1.5, 0.5
_HOME, _POSTURE = 0.03, 0.3  # of joint positions: of limbs at home; given, and of others
_IN_THE_AIR, _LANDING = 0.1, 0.04  # part of a sole's costs; s
_FIRST, _ITERATIONS, _DAMPING = 60, 5, 1e-3
_CONVERGED = 1e-3  # rad or m
_SPEED = 12.0  # rad/s
_FROM_LIMITS, _FAR = 0.02, 1e3  # rad
_CORRECTIONS, _BALANCED = 4, 0.003  # m
_BALANCE, _NEAR = 25.0, 0.15  # a cost; parts of a sole's length
_MOVING, _SETTLING = 0.25, 0.2  # m/s; s
_APART, _NEARBY = 0.003, 0.05  # m between parts that met
_DEPTH, _LEVER, _SPREADING = 0.002, 0.1, 0.2  # m of a collision; m; s


def solve(robot: Humanoid, targets: Targets, fps: float) -> np.ndarray:
    """The robot's positions, ``(frames, nq)``.

    They are solved again with the centre of mass above the feet in frames with little motion, and
    with colliding parts apart.
    """
    qpos = _solve(robot, targets, fps)
    arms = {side: _arm(robot, side) for side in robot.soles}
    center, pairs = None, set[tuple[int, int]]()
    for _ in range(_CORRECTIONS):
        now, shift = _imbalance(robot, targets, qpos, fps)
        center = (now if center is None else center) + shift
        met = pairs | _collisions(robot.model, qpos, arms.values())
        targets, turn = _spread(robot, targets, arms, qpos, fps)
        if met == pairs and not turn and np.abs(shift).max() < _BALANCED:
            break
        pairs = met
        qpos = _solve(robot, targets, fps, center, pairs)
    return _lifted(robot.model, qpos, fps)


def _arm(robot: Humanoid, side: str) -> np.ndarray:
    """Whether bodies are parts of an arm, ``(nbody,)``; none is if there is no such arm."""
    model, is_part = robot.model, np.zeros(robot.model.nbody, bool)
    if upper := robot.segments.get(f"{side}_elbow"):
        first = upper[1].body
        while model.body_parentid[first] != upper[0].body:
            first = model.body_parentid[first]
        is_part[first] = True
        for body in range(first + 1, model.nbody):
            is_part[body] = is_part[model.body_parentid[body]]
    return is_part


def _spread(
    robot: Humanoid, targets: Targets, arms: dict[str, np.ndarray], qpos: np.ndarray, fps: float
) -> tuple[Targets, float]:
    """The targets with arms turned outward, away from what they touch; the largest turn, rad.

    It is smooth, so that an arm does not jump from one side of a leg to the other.
    """
    directions, turns = dict(targets.directions), {s: np.zeros(len(qpos)) for s in arms}
    for i, (data, bodies) in enumerate(posed(robot.model, qpos)):
        met = (bodies > 0).all(axis=1) & (data.contact.dist < -_DEPTH)
        for side, is_arm in arms.items():
            touching = met & (is_arm[bodies].sum(axis=1) == 1)
            if touching.any():
                shoulder = robot.segments[f"{side}_elbow"][0].at(data)
                away = np.linalg.norm(data.contact.pos[touching] - shoulder, axis=1)
                turn = (_APART - data.contact.dist[touching]) / away.clip(min=_LEVER)
                turns[side][i] = turn.max()
    frames = max(1, round(_SPREADING * fps))
    for side, outward in (("left", 1.0), ("right", -1.0)):
        turn = gaussian_filter1d(maximum_filter1d(turns[side], 2 * frames + 1), frames / 2.0)
        for name in {f"{side}_elbow", f"{side}_wrist"} & directions.keys():
            axis = np.cross(directions[name], outward * targets.chest[:, :, 1])
            axis /= np.linalg.norm(axis, axis=1, keepdims=True).clip(min=1e-9)
            turned = Rotation.from_rotvec(turn[:, None] * axis).apply(directions[name])
            directions[name] = turned
    most = max(float(turn.max()) for turn in turns.values())
    return replace(targets, directions=directions), most


def _imbalance(
    robot: Humanoid, targets: Targets, qpos: np.ndarray, fps: float
) -> tuple[np.ndarray, np.ndarray]:
    """The centre of mass and the change that keeps it from tipping over, ``(frames, 3)``, m.

    At rest, it is to be near the line between the standing soles.
    """
    center = np.array([data.subtree_com[0].copy() for data, _ in posed(robot.model, qpos)])
    shift = np.zeros_like(center)
    speed = np.linalg.norm(np.gradient(center[:, :2], 1.0 / fps, axis=0), axis=1)
    for i, place in enumerate(center):
        feet = [s for s in robot.soles if targets.stands[s][i]]
        if not feet:
            continue
        first, last = (targets.soles[side][0][i, :2] for side in (feet[0], feet[-1]))
        line = last - first
        share = ((place[:2] - first) @ line / max(line @ line, 1e-9)).clip(0.0, 1.0)
        off = place[:2] - first - share * line
        allowed = _NEAR * robot.soles[feet[0]].length / max(float(np.linalg.norm(off)), 1e-9)
        shift[i, :2] = -off * max(0.0, 1.0 - allowed) * min(1.0, max(0.0, 2.0 - speed[i] / _MOVING))
    return center, gaussian_filter1d(shift, _SETTLING * fps, axis=0, mode="nearest")


def _solve(
    robot: Humanoid,
    targets: Targets,
    fps: float,
    center: np.ndarray | None = None,
    pairs: Collection[tuple[int, int]] = (),
) -> np.ndarray:
    """Positions by the targets; the centre of mass above `center`, and `pairs` of geoms apart."""
    model = robot.model
    configuration = mink.Configuration(model)
    start, middle = robot.home.copy(), (robot.hips["left"] + robot.hips["right"]) / 2.0
    start[:3], start[3:7] = targets.base[0] - middle, (1.0, 0.0, 0.0, 0.0)
    configuration.update(start)
    preferred = targets.posture
    posture = mink.PostureTask(model, _posture_costs(robot) if preferred is None else _POSTURE)
    posture.set_target(start)
    base = mink.FrameTask(robot.base, "body", [_BASE, _BASE, 0.5 * _BASE], _TRUNK)
    tasks: list[mink.Task] = [posture, base]
    chest = mink.FrameTask(robot.chest, "body", 0.0, _TRUNK)
    if robot.chest != robot.base:
        tasks.append(chest)
    soles = {
        side: mink.FrameTask(sole.body, "body", _SOLE, 0.0) for side, sole in robot.soles.items()
    }
    # A foot in the air must not pull the base where its leg cannot reach.
    costs = {
        side: _IN_THE_AIR
        + (1.0 - _IN_THE_AIR)
        * gaussian_filter1d(stands.astype(float), _LANDING * fps, mode="nearest")
        for side, stands in targets.stands.items()
    }
    segments = {
        name: _Direction(a, b, _LEG if name.endswith(("knee", "ankle")) else _LIMB)
        for name, (a, b) in robot.segments.items()
    }
    tasks += [*soles.values(), *segments.values()]
    balance = mink.ComTask([_BALANCE, _BALANCE, 0.0])
    if center is not None:
        tasks.append(balance)
    reach = _reach(robot)
    low, high = reach.lower, reach.upper
    limits: list[mink.Limit] = [reach]
    if pairs:
        apart = [([a], [b]) for a, b in sorted(pairs)]
        limits.append(
            mink.CollisionAvoidanceLimit(
                model,
                apart,
                minimum_distance_from_collisions=_APART,
                collision_detection_distance=_NEARBY,
            )
        )
    qpos = np.zeros((len(targets.base), model.nq))
    for i in range(len(qpos)):
        if preferred is not None:
            posture.set_target(preferred[i])
        rotation = targets.pelvis[i]
        base.set_target(_pose(rotation, targets.base[i] - rotation @ middle))
        chest.set_target(_pose(targets.chest[i] @ robot.chest_rotation, np.zeros(3)))
        for side, task in soles.items():
            sole, (centers, turns) = robot.soles[side], targets.soles[side]
            turned = turns[i] @ sole.rotation.T
            task.set_position_cost(_SOLE * costs[side][i])
            task.set_orientation_cost(_SOLE_TURN * costs[side][i] * sole.turn_costs)
            task.set_target(_pose(turned, centers[i] - turned @ sole.center))
        for name, segment in segments.items():
            segment.target = targets.directions[name][i]
        if center is not None:
            balance.set_target(center[i])
        if i:
            most = _SPEED / fps
            reach.lower = np.maximum(low, configuration.q - most)
            reach.upper = np.minimum(high, configuration.q + most)
        try:
            for _ in range(_ITERATIONS if i else _FIRST):
                step = mink.solve_ik(
                    configuration, tasks, 1.0, "daqp", damping=_DAMPING, limits=limits
                )
                configuration.integrate_inplace(step, 0.6)
                if np.abs(step).max() < _CONVERGED:
                    break
        except mink.NoSolutionFound as error:
            text = f"after {i / fps:.2f} s no pose is within the ranges of the joints"
            raise ConfigError(text) from error
        qpos[i] = configuration.q
    return qpos


def _posture_costs(robot: Humanoid) -> np.ndarray:
    """Costs of the posture at home, ``(nv,)``: joints beyond the limbs, as of hands, stay there."""
    model, costs = robot.model, np.full(robot.model.nv, _POSTURE)
    ends = [model.body(sole.body).id for sole in robot.soles.values()]
    for body in (*ends, *(points[-1].body for points in robot.segments.values())):
        while body:
            first = model.body_dofadr[body]
            costs[first : first + model.body_dofnum[body]] = _HOME
            body = model.body_parentid[body]
    return costs


class _Direction(mink.Task):
    """A segment points along a direction of the world."""

    def __init__(self, start: Point, end: Point, cost: float) -> None:
        super().__init__(cost=np.full(3, cost), gain=1.0, lm_damping=0.0)
        self._start, self._end = start, end
        self.target = np.zeros(3)

    def compute_error(self, configuration: mink.Configuration) -> np.ndarray:
        """The segment's direction minus the target, ``(3,)``."""
        along = self._end.at(configuration.data) - self._start.at(configuration.data)
        error: np.ndarray = along / np.linalg.norm(along) - self.target
        return error

    def compute_jacobian(self, configuration: mink.Configuration) -> np.ndarray:
        """Its derivative by the degrees of freedom, ``(3, nv)``."""
        model, data = configuration.model, configuration.data
        jacobian, other = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        start, end = self._start.at(data), self._end.at(data)
        mujoco.mj_jac(model, data, jacobian, None, end, self._end.body)
        mujoco.mj_jac(model, data, other, None, start, self._start.body)
        length = np.linalg.norm(end - start)
        along = (end - start) / length
        across = (np.eye(3) - np.outer(along, along)) / length
        derivative: np.ndarray = across @ (jacobian - other)
        return derivative


def _reach(robot: Humanoid) -> mink.ConfigurationLimit:
    """The ranges of joints, all bounded, so that `solve` can bound their speeds too."""
    model = copy.copy(robot.model)
    joints = model.jnt_type != mujoco.mjtJoint.mjJNT_FREE
    low, high = robot.ranges[joints].clip(-_FAR, _FAR).T
    model.jnt_limited[joints] = 1
    model.jnt_range[joints] = np.stack((low, np.maximum(high, low + 2.0 * _FROM_LIMITS)), axis=1)
    return mink.ConfigurationLimit(model, gain=1.0, min_distance_from_limits=_FROM_LIMITS)


def _pose(rotation: np.ndarray, place: np.ndarray) -> mink.SE3:
    return mink.SE3.from_rotation_and_translation(mink.SO3.from_matrix(rotation), place)


def _collisions(
    model: mujoco.MjModel, qpos: np.ndarray, arms: Iterable[np.ndarray]
) -> set[tuple[int, int]]:
    """The geoms of the robot that touch in any frame, but those of an arm and another part."""
    pairs = set()
    for data, bodies in posed(model, qpos):
        met = (bodies > 0).all(axis=1) & (data.contact.dist < -_DEPTH)
        for is_arm in arms:
            met &= is_arm[bodies].sum(axis=1) != 1
        for geoms in data.contact.geom[met]:
            pairs.add((int(min(geoms)), int(max(geoms))))
    return pairs


def _lifted(model: mujoco.MjModel, qpos: np.ndarray, fps: float) -> np.ndarray:
    """The same, raised if a part is in the floor."""
    depth = np.zeros(len(qpos))
    for i, (data, bodies) in enumerate(posed(model, qpos)):
        depth[i] = -data.contact.dist[(bodies == 0).any(axis=1)].min(initial=0.0)
    if depth.max() > 0.0:
        frames = max(1, round(0.1 * fps))
        depth = gaussian_filter1d(maximum_filter1d(depth, 2 * frames + 1), frames / 2.0)
    height = int(model.jnt_qposadr[model.body_jntadr[root_body(model)]]) + 2
    qpos[:, height] += depth
    return qpos
