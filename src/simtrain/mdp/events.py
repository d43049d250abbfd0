"""Things that happen to environments: each is ``(env, mask, **params)`` and changes `mask` alone.

Random numbers are drawn for all environments whatever the mask, so that what one environment sees
does not depend on whether another was reset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from simtrain.env.env import Env
    from simtrain.env.names import Joints


def reset_joints_uniform(
    env: Env,
    mask: torch.Tensor,
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
    mask: torch.Tensor,
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
