"""Motion tracking: observations, rewards, metrics and terminations.

The terms are those of BeyondMimic, https://arxiv.org/abs/2508.08241, with mjlab's names. `command`
is the name of a `MotionCommand`, whose bodies and anchor they use. A *target* is a body of the
motion, moved along with the robot: to the position of the robot's anchor, but at the motion's
height, and with the heading of the robot.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from simtrain.env.names import as_index
from simtrain.env.reading import mirrored_as
from simtrain.errors import ConfigError
from simtrain.mdp.robot_state import computed_once, find_command
from simtrain.mdp.rotations import angle_between
from simtrain.mdp.tracking.motion import MotionCommand

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Entities

Places = list[tuple[int, float]]


def _motion(env: Env, name: str) -> MotionCommand:
    return find_command(env, name, MotionCommand)


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


@mirrored_as("vector")
def motion_anchor_pos_b(env: Env, command: str) -> Tensor:
    """Position of the motion's anchor in the frame of the robot's anchor, m: ``(num_envs, 3)``."""
    (position, _), (own_position, own_turn) = _anchors(env, command)
    return ((position - own_position).unsqueeze(1) @ own_turn).squeeze(1)


@mirrored_as(_columns)
def motion_anchor_ori_b(env: Env, command: str) -> Tensor:
    """Orientation of the motion's anchor in the frame of the robot's. Shape: ``(num_envs, 6)``.

    The first two columns of the rotation matrix, row by row.
    """
    (_, turn), (_, own_turn) = _anchors(env, command)
    return (own_turn.mT @ turn[..., :2]).flatten(1)


@mirrored_as(_each_body(lambda reflection, params: list(enumerate(reflection.vector))))
def robot_body_pos_b(env: Env, command: str) -> Tensor:
    """Positions of the bodies in the frame of the robot's anchor, m: ``(num_envs, 3 bodies)``."""
    _, (position, turn) = _anchors(env, command)
    return ((_motion(env, command).robot_poses()[0] - position.unsqueeze(1)) @ turn).flatten(1)


@mirrored_as(_each_body(_columns))
def robot_body_ori_b(env: Env, command: str) -> Tensor:
    """Orientations of the bodies in the frame of the robot's anchor: ``(num_envs, 6 bodies)``.

    The first two columns of each rotation matrix, row by row.
    """
    _, (_, turn) = _anchors(env, command)
    return (turn.mT.unsqueeze(1) @ _motion(env, command).robot_poses()[1][..., :2]).flatten(1)


def motion_global_anchor_position_error_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-distance^2 / std^2) of the anchor from the motion's. Shape: ``(num_envs,)``."""
    (position, _), (own_position, _) = _anchors(env, command)
    return torch.exp((position - own_position).square().sum(dim=1) / -(std**2))


def motion_global_anchor_orientation_error_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-angle^2 / std^2) between the anchor and the motion's. Shape: ``(num_envs,)``."""
    (_, turn), (_, own_turn) = _anchors(env, command)
    return torch.exp(angle_between(turn, own_turn).square() / -(std**2))


def motion_relative_body_position_error_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-mean over bodies of distance^2 / std^2) from the targets. Shape: ``(num_envs,)``."""
    return torch.exp(_distances(env, command).square().mean(dim=1) / -(std**2))


def motion_relative_body_orientation_error_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-mean over bodies of angle^2 / std^2) from the targets. Shape: ``(num_envs,)``."""
    return torch.exp(_angles(env, command).square().mean(dim=1) / -(std**2))


def motion_global_body_linear_velocity_error_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-mean over bodies of |velocity error|^2 / std^2). Shape: ``(num_envs,)``."""
    return _velocity_kernel(_motion(env, command), 0, std)


def motion_global_body_angular_velocity_error_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-mean over bodies of |angular velocity error|^2 / std^2). Shape: ``(num_envs,)``."""
    return _velocity_kernel(_motion(env, command), 1, std)


def motion_ended(env: Env, command: str) -> Tensor:
    """The motion is at its last frame. Shape: ``(num_envs,)``."""
    return _motion(env, command).is_over()


def bad_anchor_pos_z_only(env: Env, command: str, threshold: float) -> Tensor:
    """The height of the anchor differs by more than `threshold`, m, from the motion's.

    Shape: ``(num_envs,)``.
    """
    (position, _), (own_position, _) = _anchors(env, command)
    return (position[:, 2] - own_position[:, 2]).abs() > threshold


def bad_anchor_ori(env: Env, command: str, threshold: float) -> Tensor:
    """Gravity along the anchor's z axis differs by more than `threshold` from the motion's.

    Shape: ``(num_envs,)``.
    """
    (_, turn), (_, own_turn) = _anchors(env, command)
    return (turn[:, 2, 2] - own_turn[:, 2, 2]).abs() > threshold


def mpkpe(env: Env, command: str) -> Tensor:
    """Mean distance of the bodies from the motion's, in the world, m. ``(num_envs,)``."""
    motion = _motion(env, command)
    return _norm(motion.poses()[0] - motion.robot_poses()[0]).mean(dim=1)


def r_mpkpe(env: Env, command: str) -> Tensor:
    """Mean distance of the bodies from their targets, m. Shape: ``(num_envs,)``."""
    return _distances(env, command).mean(dim=1)


def joint_vel_error(env: Env, command: str) -> Tensor:
    """Root mean square of the joints' velocities minus the motion's, rad/s. ``(num_envs,)``."""
    return _motion(env, command).joint_vel_error()


class narrow_rewards:
    """Make rewards for tracking stricter as tracking becomes better, in training only.

    Each of the rewards `terms` is a function exp(-e / std^2) of a squared error e. Its parameter
    ``std`` falls while more than `share` of the environments have smaller errors, in each step by
    at most the factor 1 - `rate`, and never rises. So errors of the present size always matter,
    falls and pushes do not change it, and what is hard to follow still pays. KungfuBot,
    https://arxiv.org/abs/2506.12851, takes the mean of all errors. Returns the mean of ``std``
    divided by its value at the start.
    """

    def __init__(
        self, env: Env, terms: tuple[str, ...], rate: float = 2e-4, share: float = 0.8
    ) -> None:
        if not 0.0 <= share < 1.0:
            raise ConfigError(f"share is {share}; it must be at least 0 and below 1")
        rewards, self._rate, self._share = env.rewards, rate, share
        if unknown := [name for name in terms if name not in rewards.names]:
            raise ConfigError(f"there is no reward {unknown[0]!r}")
        params = [rewards.terms[rewards.names.index(name)].params for name in terms]
        if other := [n for n, given in zip(terms, params, strict=True) if "std" not in given]:
            raise ConfigError(f"the reward {other[0]!r} is no function with a std")
        self._places = as_index([rewards.names.index(name) for name in terms], env.device)
        self._initial = torch.tensor([given["std"] for given in params], device=env.device)
        self._std = env.variable("std", self._initial.clone())
        for given, std in zip(params, self._std.unbind(), strict=True):
            given["std"] = std

    def observe(self, env: Env) -> None:
        """Look at the rewards of a step, before any reset."""
        smaller = env.rewards.values[:, self._places] > math.exp(-1.0)  # error below std
        beyond = (smaller.float().mean(dim=0) - self._share).clamp_min(0.0) / (1.0 - self._share)
        self._std.mul_(1.0 - self._rate * beyond)

    def __call__(self, env: Env, mask: Tensor) -> Tensor:
        """See `Curricula`."""
        return (self._std / self._initial).mean()


class motion_clip:
    """Number of the motion that is followed; evaluations show a row for each.

    Use it with ``reduce="last"``.
    """

    def __init__(self, env: Env, command: str) -> None:
        self._command = command
        motion = _motion(env, command)
        trained = len(motion.files)
        held_out = (f"{name} (held out)" for name in motion.clips[trained:])
        self.labels = (*motion.clips[:trained], *held_out)

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        return _motion(env, self._command).clip().float()


class _OfBodies:
    """A term of some of the motion's bodies; ConfigError for a body that is none of them."""

    def __init__(self, env: Env, command: str, bodies: Entities) -> None:
        there = _motion(env, command).bodies.names
        if missing := [name for name in bodies.names if name not in there]:
            raise ConfigError(f"{missing[0]!r} is not one of the bodies of the command {command!r}")
        self._command = command
        self._places = as_index([there.index(name) for name in bodies.names], env.device)


class bad_motion_body_pos_z_only(_OfBodies):
    """The height of one of `bodies` differs by more than `threshold`, m, from its target."""

    def __init__(self, env: Env, command: str, bodies: Entities, threshold: float) -> None:
        super().__init__(env, command, bodies)
        self._threshold = threshold

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        motion = _motion(env, self._command)
        error = motion.targets()[0][..., 2] - motion.robot_poses()[0][..., 2]
        return (error[:, self._places].abs() > self._threshold).any(dim=1)


class ee_pos_error(_OfBodies):
    """Mean distance of `bodies` from their targets, m."""

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        return _distances(env, self._command)[:, self._places].mean(dim=1)


class ee_ori_error(_OfBodies):
    """Mean angle between `bodies` and their targets, rad."""

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        return _angles(env, self._command)[:, self._places].mean(dim=1)


def _anchors(env: Env, command: str) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The anchor of the motion and of the robot: position, ``(num_envs, 3)``, and rotation."""
    motion = _motion(env, command)
    (position, turn), (own_position, own_turn) = motion.poses(), motion.robot_poses()
    at = motion.anchor_index
    return (position[:, at], turn[:, at]), (own_position[:, at], own_turn[:, at])


@computed_once
def _distances(env: Env, command: str) -> Tensor:
    """Of the bodies from their targets, m. Shape: ``(num_envs, bodies)``."""
    motion = _motion(env, command)
    return _norm(motion.targets()[0] - motion.robot_poses()[0])


@computed_once
def _angles(env: Env, command: str) -> Tensor:
    """Between the bodies and their targets, rad. Shape: ``(num_envs, bodies)``."""
    motion = _motion(env, command)
    return angle_between(motion.targets()[1], motion.robot_poses()[1])


def _velocity_kernel(motion: MotionCommand, kind: int, std: float) -> Tensor:
    """exp(-mean over bodies of |error|^2 / std^2) of linear, 0, or angular, 1, velocities."""
    error = motion.velocities()[kind] - motion.robot_velocities()[kind]
    return torch.exp(error.square().sum(dim=2).mean(dim=1) / -(std**2))


def _norm(vectors: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return norm
