"""The joint positions for the targets of a robot, frame by frame, by mink's inverse kinematics."""

import copy
from collections import defaultdict
from collections.abc import Collection, Mapping
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
from simtrain.retarget.person import above, on_floor
from simtrain.retarget.steps import Targets, targets_of

_SOLE, _SOLE_TURN, _BASE, _TRUNK, _LIMB, _LEG = 60.0, 8.0, 4.0, 2.0, 1.5, 0.5
_HOME, _POSTURE = 0.03, 0.3  # of joint positions: of limbs at home; given, and of others
_IN_THE_AIR, _LANDING = 0.1, 0.04  # part of a sole's costs; s
_FIRST, _ITERATIONS, _AGAIN = 60, 5, 3  # of the first frame, of others, and of all others again
_DAMPING = 1e-3
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
        now, met, turns = _measured(robot, arms, qpos)
        shift = _shift(robot, targets, now, fps)
        center = (now if center is None else center) + shift
        is_apart = met <= pairs and not any(turn.any() for turn in turns.values())
        if is_apart and np.abs(shift).max() < _BALANCED:
            break
        pairs |= met
        targets = _spread(targets, turns, fps)
        qpos = _solve(robot, targets, fps, center, pairs)
    return _lifted(robot.model, qpos, fps)


def correct(qpos: np.ndarray, robot: Humanoid, fps: float) -> np.ndarray:
    """A robot's own motion, solved again like that of a person; positions ``(frames, nq)``.

    While a foot stands, its sole is flat and still. At rest, the centre of mass is above the feet.
    Rotations of base and chest are kept, and joint positions as far as possible. ConfigError if
    there is no solution.
    """
    at, base, chest = _landmarks(qpos, robot)
    person = on_floor({name: place / robot.leg for name, place in at.items()}, fps, robot.leg)
    targets = targets_of(person, robot, stretched=1.0)
    chest = chest @ robot.chest_rotation.T
    return solve(robot, replace(targets, pelvis=base, chest=chest, posture=qpos), fps)


def _landmarks(
    qpos: np.ndarray, robot: Humanoid
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Positions by landmark, ``(frames, 3)``, and rotations of base and chest."""
    model, data = robot.model, mujoco.MjData(robot.model)
    base, chest = model.body(robot.base).id, model.body(robot.chest).id
    at = defaultdict[str, list[np.ndarray]](list)
    turns = np.zeros((2, len(qpos), 3, 3))
    for i, data.qpos in enumerate(qpos):
        mujoco.mj_kinematics(model, data)
        turns[:, i] = data.xmat[[base, chest]].reshape(2, 3, 3)
        for name, (upper, lower) in robot.segments.items():
            at[name].append(lower.at(data))
            if name.endswith(("knee", "elbow")):
                at[above(name)].append(upper.at(data))
        for side, sole in robot.soles.items():
            at[f"{side}_toe"].append(sole.toe(data))
            if f"{side}_elbow" not in robot.segments:  # its chest's rotation is given
                over = at[f"{side}_hip"][i] + robot.leg * turns[0, i, :, 2]
                at[f"{side}_shoulder"].append(over)
    return {name: np.array(places) for name, places in at.items()}, *turns


def _arm(robot: Humanoid, side: str) -> np.ndarray:
    """Whether bodies are parts of an arm, ``(nbody,)``; none is if there is no such arm."""
    model, is_part = robot.model, np.zeros(robot.model.nbody, bool)
    if upper := robot.segments.get(f"{side}_elbow"):
        first = upper[1].body
        while model.body_parentid[first] != upper[0].body:
            first = model.body_parentid[first]
        is_part[mink.get_subtree_body_ids(model, first)] = True
    return is_part


def _measured(
    robot: Humanoid, arms: Mapping[str, np.ndarray], qpos: np.ndarray
) -> tuple[np.ndarray, set[tuple[int, int]], dict[str, np.ndarray]]:
    """The centre of mass, ``(frames, 3)``, geoms that touch, and turns of arms from others, rad.

    The geoms are pairs that touch in any frame, but those of an arm and another part: these are
    the ones from which the arm of a side is to turn, ``(frames,)``.
    """
    center, pairs = np.zeros((len(qpos), 3)), set[tuple[int, int]]()
    turns = {side: np.zeros(len(qpos)) for side in arms}
    for i, (data, bodies) in enumerate(posed(robot.model, qpos)):
        center[i], contact = data.subtree_com[0], data.contact
        met = (bodies > 0).all(axis=1) & (contact.dist < -_DEPTH)
        is_of_arm = np.zeros(len(met), bool)
        for side, is_arm in arms.items():
            touching = met & (is_arm[bodies].sum(axis=1) == 1)
            is_of_arm |= touching
            if touching.any():
                shoulder = robot.segments[f"{side}_elbow"][0].at(data)
                away = np.linalg.norm(contact.pos[touching] - shoulder, axis=1)
                turn = (_APART - contact.dist[touching]) / away.clip(min=_LEVER)
                turns[side][i] = turn.max()
        pairs |= {(min(pair), max(pair)) for pair in contact.geom[met & ~is_of_arm].tolist()}
    return center, pairs, turns


def _spread(targets: Targets, turns: Mapping[str, np.ndarray], fps: float) -> Targets:
    """The targets with arms turned outward by `turns`, away from what they touch.

    It is smooth, so that an arm does not jump from one side of a leg to the other.
    """
    directions, frames = dict(targets.directions), max(1, round(_SPREADING * fps))
    for side, outward in (("left", 1.0), ("right", -1.0)):
        turn = gaussian_filter1d(maximum_filter1d(turns[side], 2 * frames + 1), frames / 2.0)
        for name in {f"{side}_elbow", f"{side}_wrist"} & directions.keys():
            axis = np.cross(directions[name], outward * targets.chest[:, :, 1])
            axis /= np.linalg.norm(axis, axis=1, keepdims=True).clip(min=1e-9)
            turned = Rotation.from_rotvec(turn[:, None] * axis).apply(directions[name])
            directions[name] = turned
    return replace(targets, directions=directions)


def _shift(robot: Humanoid, targets: Targets, center: np.ndarray, fps: float) -> np.ndarray:
    """The change of the centre of mass that keeps it from tipping over, ``(frames, 3)``, m.

    At rest, it is to be near the line between the standing soles.
    """
    speed = np.linalg.norm(np.gradient(center[:, :2], 1.0 / fps, axis=0), axis=1)
    left, right = (targets.soles[side][0][:, :2] for side in ("left", "right"))
    on_left, on_right = targets.stands["left"], targets.stands["right"]
    first = np.where(on_left[:, None], left, right)
    line = np.where(on_right[:, None], right, left) - first
    off = center[:, :2] - first
    share = (off * line).sum(axis=1) / np.square(line).sum(axis=1).clip(min=1e-9)
    off -= share.clip(0.0, 1.0)[:, None] * line
    lengths = robot.soles["left"].length, robot.soles["right"].length
    allowed = _NEAR * np.where(on_left, *lengths)
    part = 1.0 - allowed / np.linalg.norm(off, axis=1).clip(min=1e-9)
    part = part.clip(min=0.0) * (2.0 - speed / _MOVING).clip(0.0, 1.0) * (on_left | on_right)
    shift = np.pad(-off * part[:, None], ((0, 0), (0, 1)))
    return np.asarray(gaussian_filter1d(shift, _SETTLING * fps, axis=0, mode="nearest"))


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
    base = mink.FrameTask(robot.base, "body", [_BASE, _BASE, 0.5 * _BASE], _TRUNK)
    tasks: list[mink.Task] = [posture, base]
    chest = mink.FrameTask(robot.chest, "body", 0.0, _TRUNK)
    tasks += [chest] if robot.chest != robot.base else []
    soles = {
        side: mink.FrameTask(sole.body, "body", _SOLE, 0.0) for side, sole in robot.soles.items()
    }
    costs = {}  # a foot in the air must not pull the base where its leg cannot reach
    for side, stands in targets.stands.items():
        stood = gaussian_filter1d(stands.astype(float), _LANDING * fps, mode="nearest")
        costs[side] = _IN_THE_AIR + (1.0 - _IN_THE_AIR) * stood
    segments = {
        name: _Direction(a, b, _LEG if name.endswith(("knee", "ankle")) else _LIMB)
        for name, (a, b) in robot.segments.items()
    }
    tasks += [*soles.values(), *segments.values()]
    balance = mink.ComTask([_BALANCE, _BALANCE, 0.0])
    tasks += [balance] if center is not None else []
    reach = _reach(robot)
    low, high = reach.lower, reach.upper
    limits: list[mink.Limit] = [reach]
    if pairs:
        geoms = [([a], [b]) for a, b in sorted(pairs)]
        limits.append(
            mink.CollisionAvoidanceLimit(
                model,
                geoms,
                minimum_distance_from_collisions=_APART,
                collision_detection_distance=_NEARBY,
            )
        )
    qpos = np.zeros((len(targets.base), model.nq))
    iterations = _ITERATIONS if center is None else _AGAIN
    for i in range(len(qpos)):
        posture.set_target(start if preferred is None else preferred[i])
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
        most = _SPEED / fps if i else np.inf
        reach.lower = np.maximum(low, configuration.q - most)
        reach.upper = np.minimum(high, configuration.q + most)
        try:
            for _ in range(iterations if i else _FIRST):
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
        return np.asarray(along / np.linalg.norm(along) - self.target)

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
        return np.asarray(across @ (jacobian - other))


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
