"""Following motions: what the policy sees, is rewarded for and judged by, and when it has failed.

The terms are those of BeyondMimic, https://arxiv.org/abs/2508.08241, by mjlab's names. Each is
given the name of a `MotionCommand`, whose bodies and anchor it speaks of. Where a term compares
with a target, that is the motion's body carried along: put where the robot's anchor is, but at the
motion's height, and turned about the vertical as the robot is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from simtrain.env.names import as_index
from simtrain.errors import ConfigError
from simtrain.lazy_imports import torch
from simtrain.mdp.motion import MotionCommand
from simtrain.mdp.rotations import quat_conjugate, quat_mul, rotate, rotation_angle
from simtrain.mirror import mirrored_as
from simtrain.reading import read_as

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Entities
    from simtrain.sim.engine import Index

Places = list[tuple[int, float]]


def _motion(env: Env, name: str) -> MotionCommand:
    term = env.commands.terms[name]
    if not isinstance(term, MotionCommand):
        raise ConfigError(f"the command {name!r} is no MotionCommand")
    return term


def _columns(reflection: Any, params: Any) -> Places:
    """Of the anchor's rotation: entries of a matrix, which is reflected on both sides."""
    signs = reflection.vector
    return [(2 * i + k, signs[i] * signs[k]) for i in range(3) for k in range(2)]


def _each_body(rule: Callable[[Any, Any], Places]) -> Callable[[Any, Any], Places]:
    """A rule for each of the motion's bodies."""

    def places(reflection: Any, params: Any) -> Places:
        bodies = reflection.cfg.commands[params["command"]].params["bodies"]
        images = reflection.partners(reflection.resolved({"bodies": bodies})["bodies"])
        part = rule(reflection, params)
        return [(len(part) * i + place, sign) for i, _ in images for place, sign in part]

    return places


def _vector(reflection: Any, params: Any) -> Places:
    return list(enumerate(reflection.vector))


@mirrored_as("vector")
@read_as("motion_anchor_pos")
def motion_anchor_pos_b(env: Env, command: str) -> Tensor:
    """Where the motion's anchor is from the robot's, along its axes, m. ``(num_envs, 3)``."""
    motion = _motion(env, command)
    (position, _), (own_position, own_turn) = motion.anchor_pose(), motion.robot_anchor_pose()
    return rotate(quat_conjugate(own_turn), position - own_position)


@mirrored_as(_columns)
@read_as("motion_anchor_ori")
def motion_anchor_ori_b(env: Env, command: str) -> Tensor:
    """How the motion's anchor is turned from the robot's. Shape: ``(num_envs, 6)``.

    The first two columns of the rotation matrix, row by row.
    """
    motion = _motion(env, command)
    (_, turn), (_, own_turn) = motion.anchor_pose(), motion.robot_anchor_pose()
    return _two_columns(quat_mul(quat_conjugate(own_turn), turn))


@mirrored_as(_each_body(_vector))
def robot_body_pos_b(env: Env, command: str) -> Tensor:
    """Where the bodies are from the robot's anchor, along its axes, m. ``(num_envs, 3 bodies)``."""
    motion = _motion(env, command)
    (positions, _), (position, turn) = motion.robot_poses(), motion.robot_anchor_pose()
    back = quat_conjugate(turn).unsqueeze(1)
    return rotate(back, positions - position.unsqueeze(1)).flatten(1)


@mirrored_as(_each_body(_columns))
def robot_body_ori_b(env: Env, command: str) -> Tensor:
    """How the bodies are turned from the robot's anchor, see above. ``(num_envs, 6 bodies)``."""
    motion = _motion(env, command)
    (_, turns), (_, turn) = motion.robot_poses(), motion.robot_anchor_pose()
    return _two_columns(quat_mul(quat_conjugate(turn).unsqueeze(1), turns)).flatten(1)


def motion_global_anchor_position_error_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-distance^2 / std^2) of the anchor from the motion's. Shape: ``(num_envs,)``."""
    motion = _motion(env, command)
    error = motion.anchor_pose()[0] - motion.robot_anchor_pose()[0]
    return torch.exp(error.square().sum(dim=1) / -(std**2))


def motion_global_anchor_orientation_error_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-angle^2 / std^2) between the anchor and the motion's. Shape: ``(num_envs,)``."""
    motion = _motion(env, command)
    angle = _angle_between(motion.anchor_pose()[1], motion.robot_anchor_pose()[1])
    return torch.exp(angle.square() / -(std**2))


def motion_relative_body_position_error_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-mean over bodies of distance^2 / std^2) from the targets. Shape: ``(num_envs,)``."""
    return torch.exp(_distance(env, command).square().mean(dim=1) / -(std**2))


def motion_relative_body_orientation_error_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-mean over bodies of angle^2 / std^2) from the targets. Shape: ``(num_envs,)``."""
    return torch.exp(_turn(env, command).square().mean(dim=1) / -(std**2))


def motion_global_body_linear_velocity_error_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-mean over bodies of |velocity error|^2 / std^2). Shape: ``(num_envs,)``."""
    motion = _motion(env, command)
    error = motion.velocities()[0] - motion.robot_velocities()[0]
    return torch.exp(error.square().sum(dim=2).mean(dim=1) / -(std**2))


def motion_global_body_angular_velocity_error_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-mean over bodies of |angular velocity error|^2 / std^2). Shape: ``(num_envs,)``."""
    motion = _motion(env, command)
    error = motion.velocities()[1] - motion.robot_velocities()[1]
    return torch.exp(error.square().sum(dim=2).mean(dim=1) / -(std**2))


def motion_ended(env: Env, command: str) -> Tensor:
    """The motion's last frame was to be reached. Shape: ``(num_envs,)``."""
    return _motion(env, command).is_over()


def bad_anchor_pos_z_only(env: Env, command: str, threshold: float) -> Tensor:
    """The anchor's height is more than `threshold` from the motion's, m. ``(num_envs,)``."""
    motion = _motion(env, command)
    error: Tensor = motion.anchor_pose()[0][:, 2] - motion.robot_anchor_pose()[0][:, 2]
    return error.abs() > threshold


def bad_anchor_ori(env: Env, command: str, threshold: float) -> Tensor:
    """Gravity's part along the anchor's z axis is more than `threshold` from the motion's.

    Shape: ``(num_envs,)``.
    """
    motion = _motion(env, command)
    error = _upright(motion.anchor_pose()[1]) - _upright(motion.robot_anchor_pose()[1])
    return error.abs() > threshold


class bad_motion_body_pos_z_only:
    """The height of one of `bodies` is more than `threshold` from its target's, m."""

    def __init__(self, env: Env, command: str, bodies: Entities, threshold: float) -> None:
        self._command, self._threshold = command, threshold
        self._places = _places(env, command, bodies)

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        motion = _motion(env, self._command)
        error = motion.targets()[0][..., 2] - motion.robot_poses()[0][..., 2]
        return (error[:, self._places].abs() > self._threshold).any(dim=1)


class motion_clip:
    """Which of the motions is followed, by its number; evaluation has a row for each.

    With ``reduce="last"``.
    """

    def __init__(self, env: Env, command: str) -> None:
        self._command = command
        self.labels = _motion(env, command).clips

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        return _motion(env, self._command).clip().float()


def mpkpe(env: Env, command: str) -> Tensor:
    """Mean distance of the bodies from the motion's, in the world, m. ``(num_envs,)``."""
    motion = _motion(env, command)
    error = motion.poses()[0] - motion.robot_poses()[0]
    distance: Tensor = torch.linalg.vector_norm(error, dim=2)
    return distance.mean(dim=1)


def r_mpkpe(env: Env, command: str) -> Tensor:
    """Mean distance of the bodies from the motion's, both from the anchor, m. ``(num_envs,)``.

    The motion is turned about the vertical as the robot is.
    """
    motion = _motion(env, command)
    (targets, _), (own, _), at = motion.targets(), motion.robot_poses(), motion.anchor_index
    error = (targets - targets[:, at : at + 1]) - (own - own[:, at : at + 1])
    distance: Tensor = torch.linalg.vector_norm(error, dim=2)
    return distance.mean(dim=1)


def joint_vel_error(env: Env, command: str) -> Tensor:
    """Norm of the difference between the joints' velocities and the motion's, rad/s."""
    return _motion(env, command).joint_vel_error()


class ee_pos_error:
    """Mean distance of `bodies` from their targets, m."""

    def __init__(self, env: Env, command: str, bodies: Entities) -> None:
        self._command, self._places = command, _places(env, command, bodies)

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        return _distance(env, self._command)[:, self._places].mean(dim=1)


class ee_ori_error:
    """Mean angle between `bodies` and their targets, rad."""

    def __init__(self, env: Env, command: str, bodies: Entities) -> None:
        self._command, self._places = command, _places(env, command, bodies)

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        return _turn(env, self._command)[:, self._places].mean(dim=1)


def _places(env: Env, command: str, bodies: Entities) -> Index:
    """Where `bodies` are among those of the motion; ConfigError for one that is not."""
    there = _motion(env, command).bodies.names
    if missing := [name for name in bodies.names if name not in there]:
        raise ConfigError(f"{missing[0]!r} is none of the bodies of the command {command!r}")
    return as_index([there.index(name) for name in bodies.names], env.device)


def _distance(env: Env, command: str) -> Tensor:
    """Of the bodies from their targets, m. Shape: ``(num_envs, bodies)``."""
    motion = _motion(env, command)

    def compute() -> Tensor:
        error = motion.targets()[0] - motion.robot_poses()[0]
        distance: Tensor = torch.linalg.vector_norm(error, dim=2)
        return distance

    return env.once((motion, "distance"), compute)


def _turn(env: Env, command: str) -> Tensor:
    """Angles between the bodies and their targets, rad. Shape: ``(num_envs, bodies)``."""
    motion = _motion(env, command)

    def compute() -> Tensor:
        return _angle_between(motion.targets()[1], motion.robot_poses()[1])

    return env.once((motion, "turn"), compute)


def _angle_between(first: Tensor, second: Tensor) -> Tensor:
    return rotation_angle(quat_mul(first, quat_conjugate(second)))


def _upright(quaternion: Tensor) -> Tensor:
    """The cosine of the rotated z axis with the vertical."""
    _, x, y, _ = quaternion.unbind(-1)
    return 1.0 - 2.0 * (x * x + y * y)


def _two_columns(quaternion: Tensor) -> Tensor:
    """The first two columns of a rotation matrix, row by row. Shape: ``(..., 6)``."""
    w, x, y, z = quaternion.unbind(-1)
    rows = (
        *(1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y - w * z)),
        *(2.0 * (x * y + w * z), 1.0 - 2.0 * (x * x + z * z)),
        *(2.0 * (x * z - w * y), 2.0 * (y * z + w * x)),
    )
    return torch.stack(rows, dim=-1)
