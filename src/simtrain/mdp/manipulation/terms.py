"""Terms of manipulation tasks: positions of places in frames, goals, grasps.

A place is a body or a site, given by its name. Positions are relative to an `origin` along the axes
of a `frame`, which are places, too. Without an origin, they are relative to the frame's origin;
without a frame, they are along the world's axes. Contact `sensors` are as in
`simtrain.mdp.observations`, one for each pad that should press on an object. `command` is the name
of a `UniformPositionCommand` or a `ReachablePoseCommand`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
import torch

from simtrain.env.commands import CommandTerm, Frame, Sphere
from simtrain.env.reading import checked_by
from simtrain.errors import ConfigError
from simtrain.mdp.robot_state import computed_once, feet_forces
from simtrain.mdp.rotations import angle_between, rotate

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Bounds, Joints, Places, Sensors


class UniformPositionCommand(CommandTerm):
    """A goal position: [x, y, z] in the world, m, drawn uniformly, shown as a sphere of `radius`.

    Parameters are bounds in m, on a terrain relative to the environment's origin.
    """

    labels = ("goal x [m]", "goal y [m]", "goal z [m]")

    def __init__(self, env: Env, x: Bounds, y: Bounds, z: Bounds, radius: float = 0.02) -> None:
        self._env, self._radius = env, radius
        self.low, self.high = env.variable("bounds", torch.tensor([x, y, z]).T.clone())
        """Bounds of x, y and z, ``(3,)``; curricula change them in place."""
        self.command = env.buffer("command", (3,), reset=None)

    def resample(self, mask: Tensor) -> None:
        """See `CommandTerm.resample`."""
        drawn = torch.rand_like(self.command)
        torch.addcmul(self.low, drawn, self.high - self.low, out=drawn)
        if self._env.terrain is not None:
            drawn += self._env.terrain.origins
        torch.where(mask.unsqueeze(1), drawn, self.command, out=self.command)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """See `CommandTerm.bounds`."""
        return self.low, self.high

    def markers(self, index: int) -> list[Sphere]:
        """The goal in green."""
        x, y, z = self.command[index].tolist()
        return [Sphere((x, y, z), self._radius, (0.15, 0.75, 0.25))]


class ReachablePoseCommand(CommandTerm):
    """A goal pose for a `place`: [x, y, z, quaternion w first] in the world, shown as axes.

    It is one of `count` poses of the place, computed for `joints` that differ from the initial
    state by up to `spread`, rad or m, within their ranges, and without contacts of the robot with
    itself or the ground.
    """

    labels = ("goal x [m]", "goal y [m]", "goal z [m]", "goal w", "goal i", "goal j", "goal k")
    is_driven = False  # most poses cannot be reached

    def __init__(
        self, env: Env, place: Places, joints: Joints, spread: float = 0.8, count: int = 4096
    ) -> None:
        poses = _reachable_poses(env, place, joints, spread, count)
        self._poses = env.variable("poses", torch.from_numpy(poses).float())
        self.command = env.buffer("command", (7,), reset=None)
        self._size = 0.1 * float(env.model.stat.extent)

    def resample(self, mask: Tensor) -> None:
        """See `CommandTerm.resample`."""
        drawn = torch.randint(len(self._poses), mask.shape, device=mask.device)
        torch.where(mask.unsqueeze(1), self._poses[drawn], self.command, out=self.command)

    def markers(self, index: int) -> list[Frame]:
        """The goal's axes."""
        x, y, z, *quaternion = self.command[index].tolist()
        return [Frame((x, y, z), tuple(quaternion), self._size)]


def _reachable_poses(
    env: Env, place: Places, joints: Joints, spread: float, count: int
) -> np.ndarray:
    """Poses of a place, ``(count, 7)``, from a seed of their own; ConfigError if there are few."""
    model, data = env.model, mujoco.MjData(env.model)
    start = env.initial_qpos.cpu().numpy().astype(np.float64)
    ids = [model.joint(name).id for name in joints.names]
    limited = model.jnt_limited[ids, None] > 0
    low, high = np.where(limited, model.jnt_range[ids], (-np.inf, np.inf)).T
    at, random, poses = model.jnt_qposadr[ids], np.random.default_rng(0), []
    low, high = np.maximum(low, start[at] - spread), np.minimum(high, start[at] + spread)
    for _ in range(20 * count):
        data.qpos[:] = start
        data.qpos[at] = random.uniform(low, np.maximum(low, high))
        mujoco.mj_fwdPosition(model, data)
        if data.ncon == 0:
            name, quaternion = place.names[0], np.zeros(4)
            seen = data.site(name) if place.are_sites else data.body(name)
            mujoco.mju_mat2Quat(quaternion, seen.xmat)
            poses.append(np.concatenate([seen.xpos, quaternion]))
            if len(poses) == count:
                return np.array(poses)
    text = f"of {20 * count} poses around the initial state only {len(poses)} touch nothing"
    raise ConfigError(f"{text}; begin elsewhere, or give a smaller spread than {spread:g}")


def position_in_frame(
    env: Env, places: Places, frame: Places | None = None, origin: Places | None = None
) -> Tensor:
    """Positions of places, m. Shape: ``(num_envs, 3 x places)``."""
    return _seen(env, _positions(env, places), frame, origin).flatten(1)


def orientation_in_frame(env: Env, places: Places, frame: Places | None = None) -> Tensor:
    """Orientations of places: the first two columns of their rotation matrices, row by row.

    Shape: ``(num_envs, 6 x places)``.
    """
    turned = _rotations(env, places)
    if frame is not None:
        turned = _rotations(env, frame).mT @ turned
    return turned[..., :2].flatten(1)


def goal_in_frame(
    env: Env, command: str, frame: Places | None = None, origin: Places | None = None
) -> Tensor:
    """Position of the goal, m. Shape: ``(num_envs, 3)``."""
    return _seen(env, env.command(command)[:, None, :3], frame, origin).flatten(1)


def goal_orientation_in_frame(env: Env, command: str, frame: Places) -> Tensor:
    """Orientation of a `ReachablePoseCommand`, as in `orientation_in_frame`: ``(num_envs, 6)``."""
    turned = _rotations(env, frame)[:, 0].mT @ _goal_rotation(env, command)
    return turned[..., :2].flatten(1)


def distance_tanh(env: Env, place: Places, to_place: Places, std: float) -> Tensor:
    """1 - tanh(d / std), where d is the distance between two places, m. Shape: ``(num_envs,)``."""
    offset = _positions(env, place) - _positions(env, to_place)
    return 1.0 - torch.tanh(offset[:, 0].norm(dim=1) / std)


def _check_pads(model: mujoco.MjModel, step_dt: float, sensors: Sensors, **_: Any) -> None:
    """Raise ConfigError for sensors that cannot tell of a grasp."""
    if len(sensors) < 2:
        raise ConfigError(
            f"a grasp is between two pads or more; {sensors.names[0]} is the only sensor"
        )
    for name in sensors.names:
        sensor = model.sensor(name)
        data, reduce, rows = model.sensor_intprm[sensor.id, :3]
        if sensor.type != mujoco.mjtSensor.mjSENS_CONTACT or (data & 3, reduce, rows) != (3, 3, 1):
            needs = 'is no <contact data="found force" reduce="netforce">'
            raise ConfigError(f"the sensor {name!r} {needs}, which the detection of a grasp needs")


@checked_by(_check_pads)
@computed_once
def is_grasped(env: Env, sensors: Sensors, force: float = 0.5) -> Tensor:
    """1 if all pads press with at least `force`, N, and the last against the first, else 0.

    An object that leans on the robot, lies on a finger or was thrown is not grasped. Shape:
    ``(num_envs,)``.
    """
    forces = feet_forces(env, sensors)
    sizes = forces.norm(dim=2)
    cosine = (forces[:, 0] * forces[:, -1]).sum(dim=1)
    against = cosine < -0.5 * sizes[:, 0] * sizes[:, -1]
    grasped: Tensor = (against & (sizes > force).all(dim=1)).float()
    return grasped


@checked_by(_check_pads)
def grasped_goal_tanh(
    env: Env, command: str, place: Places, sensors: Sensors, std: float, force: float = 0.5
) -> Tensor:
    """1 - tanh(d / std) if an object `is_grasped`, d its distance from the goal, m; else 0."""
    closeness = 1.0 - torch.tanh(goal_distance(env, command, place) / std)
    return closeness * is_grasped(env, sensors, force)


@computed_once
def goal_distance(env: Env, command: str, place: Places) -> Tensor:
    """Distance of a place from the goal, m. Shape: ``(num_envs,)``."""
    offset = _positions(env, place)[:, 0] - env.command(command)[:, :3]
    distance: Tensor = offset.norm(dim=1)
    return distance


@computed_once
def goal_angle(env: Env, command: str, place: Places) -> Tensor:
    """Angle between a place and a `ReachablePoseCommand`, rad. Shape: ``(num_envs,)``."""
    return angle_between(_rotations(env, place)[:, 0], _goal_rotation(env, command))


def goal_pose_tanh(
    env: Env, command: str, place: Places, std: float = math.inf, angle_std: float = math.inf
) -> Tensor:
    """(1 - tanh(d / std)) (1 - tanh(a / angle_std)), d the distance, m, and a the angle, rad."""
    near = 1.0 - torch.tanh(goal_distance(env, command, place) / std)
    return near * (1.0 - torch.tanh(goal_angle(env, command, place) / angle_std))


class at_goal:
    """1 if a place was within `distance` of the goal, m, for `duration_s`, s; else 0."""

    def __init__(
        self, env: Env, command: str, place: Places, distance: float, duration_s: float = 0.0
    ) -> None:
        self._command, self._place, self._distance = command, place, distance
        steps = math.ceil(duration_s / env.step_dt - 1e-6)
        self._steps, self._lasted = max(1, steps), env.buffer("lasted")

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        near = goal_distance(env, self._command, self._place) < self._distance
        self._lasted.add_(1.0).mul_(near)
        return (self._lasted >= self._steps).float()


def joint_vel_hinge(env: Env, joints: Joints, max_vel: float) -> Tensor:
    """Sum of the squared excess of joint speeds over `max_vel`, m/s or rad/s, for a penalty."""
    above = (env.bind("qvel")[:, joints.qvel].abs() - max_vel).clamp(min=0.0)
    return above.square().sum(dim=1)


def _goal_rotation(env: Env, command: str) -> Tensor:
    """From the frame of a `ReachablePoseCommand` to the world, ``(num_envs, 3, 3)``."""
    quaternion = env.command(command)[:, None, 3:]
    axes = torch.eye(3, device=quaternion.device).expand(env.num_envs, 3, 3)
    return rotate(quaternion.expand(-1, 3, -1), axes).mT


def _positions(env: Env, places: Places) -> Tensor:
    """In the world, m. Shape: ``(num_envs, places, 3)``."""
    return env.bind("site_xpos" if places.are_sites else "xpos")[:, places.ids]


def _rotations(env: Env, places: Places) -> Tensor:
    """From each place's frame to the world. Shape: ``(num_envs, places, 3, 3)``."""
    matrices = env.bind("site_xmat" if places.are_sites else "xmat")
    return matrices.view(env.num_envs, -1, 3, 3)[:, places.ids]


def _seen(env: Env, points: Tensor, frame: Places | None, origin: Places | None) -> Tensor:
    """`points` in the world, ``(num_envs, n, 3)``, as seen from a place: the same shape."""
    if start := origin or frame:
        points = points - _positions(env, start)
    return points if frame is None else points @ _rotations(env, frame)[:, 0]
