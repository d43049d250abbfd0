"""Things that happen to environments: each is ``(env, mask, **params)`` and changes `mask` alone.

Random numbers are drawn for all environments whatever the mask, so that what one environment sees
does not depend on whether another was reset.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from simtrain.errors import ConfigError
from simtrain.mdp.rotations import quat_from_euler, quat_mul

if TYPE_CHECKING:
    from simtrain.env.env import Env
    from simtrain.env.names import Joints

Ranges = Mapping[str, tuple[float, float]]
"""Bounds by axis; an axis that is not named stays as it is."""

AXES = ("x", "y", "z", "roll", "pitch", "yaw")
"""Keys of `Ranges`: along the world's axes, m or m/s, and about them, rad or rad/s."""


class reset_root_state_uniform:
    """Put the base at its initial pose plus a uniform offset, with a uniform velocity.

    On a terrain the initial position is relative to the environment's origin.
    """

    def __init__(self, env: Env, pose_range: Ranges, velocity_range: Ranges | None = None) -> None:
        """Prepare.

        Args:
            env: the environment.
            pose_range: bounds of the offset, m and rad; the offset's rotation follows the initial
                one.
            velocity_range: bounds of the velocity, m/s along the world's axes and rad/s about the
                base's own; at rest where not named.
        """
        self._offset = _Uniform(env, pose_range)
        self._velocity = _Uniform(env, velocity_range or {})

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`, boolean ``(num_envs,)``."""
        base = env.base
        offset = self._offset.draw()
        position = env.initial_qpos[base.position] + offset[:, :3]
        if env.terrain is not None:
            position += env.terrain.origins
        turn = quat_from_euler(*offset[:, 3:].unbind(1))
        pose = torch.cat((position, quat_mul(turn, env.initial_qpos[base.quaternion])), dim=1)
        env.sim.write("qpos", pose, mask, slice(base.position.start, base.quaternion.stop))
        entries = slice(base.linear.start, base.angular.stop)
        env.sim.write("qvel", self._velocity.draw(), mask, entries)


class push_by_setting_velocity:
    """Push the base: add a uniform change to its velocity."""

    def __init__(self, env: Env, velocity_range: Ranges) -> None:
        """Prepare.

        Args:
            env: the environment.
            velocity_range: bounds of the change, m/s along the world's axes and rad/s about the
                base's own.
        """
        self._change = _Uniform(env, velocity_range)

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Push the environments in `mask`, boolean ``(num_envs,)``."""
        entries = slice(env.base.linear.start, env.base.angular.stop)
        velocity = env.bind("qvel")[:, entries] + self._change.draw()
        env.sim.write("qvel", velocity, mask, entries)


def reset_joints_uniform(
    env: Env,
    mask: Tensor,
    joints: Joints,
    position: tuple[float, float] = (0.0, 0.0),
    velocity: tuple[float, float] = (0.0, 0.0),
) -> None:
    """Put joints at their initial position plus a uniform offset, with a uniform velocity.

    Args:
        env: the environment.
        mask: the environments to change, boolean ``(num_envs,)``.
        joints: slides and hinges.
        position: bounds of the offset, m or rad.
        velocity: bounds of the velocity, m/s or rad/s.
    """
    start = env.initial_qpos[joints.qpos]
    shape = (env.num_envs, len(joints))
    offset = torch.empty(shape, device=env.device).uniform_(*position)
    env.sim.write("qpos", start + offset, mask, joints.qpos)
    speed = torch.empty(shape, device=env.device).uniform_(*velocity)
    env.sim.write("qvel", speed, mask, joints.qvel)


def reset_joints_gaussian(
    env: Env,
    mask: Tensor,
    joints: Joints,
    position_std: float = 0.0,
    velocity_std: float = 0.0,
) -> None:
    """Put joints near their initial position and rest, with normally distributed offsets.

    Args:
        env: the environment.
        mask: the environments to change, boolean ``(num_envs,)``.
        joints: slides and hinges.
        position_std: standard deviation of the position, m or rad.
        velocity_std: standard deviation of the velocity, m/s or rad/s.
    """
    start = env.initial_qpos[joints.qpos]
    noise = torch.randn(2, env.num_envs, len(joints), device=env.device)
    env.sim.write("qpos", start + position_std * noise[0], mask, joints.qpos)
    env.sim.write("qvel", velocity_std * noise[1], mask, joints.qvel)


class _Uniform:
    """Uniform draws along and about `AXES`."""

    def __init__(self, env: Env, ranges: Ranges) -> None:
        unknown = [axis for axis in ranges if axis not in AXES]
        if unknown:
            raise ConfigError(f"there is no axis {unknown[0]!r}; there are {', '.join(AXES)}")
        bounds = torch.tensor([ranges.get(axis, (0.0, 0.0)) for axis in AXES], device=env.device)
        self._low, self._width = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
        self._shape = (env.num_envs, len(AXES))

    def draw(self) -> Tensor:
        """Shape: ``(num_envs, 6)``."""
        random = torch.rand(self._shape, device=self._low.device)
        return torch.addcmul(self._low, random, self._width)
