"""Terms that a policy can see. Each returns float32, ``(num_envs, size)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Joints


def joint_pos(env: Env, joints: Joints) -> Tensor:
    """Positions of joints, m or rad. Shape: ``(num_envs, entries of qpos)``."""
    return env.bind("qpos")[:, joints.qpos]


def joint_vel(env: Env, joints: Joints) -> Tensor:
    """Velocities of joints, m/s or rad/s. Shape: ``(num_envs, degrees of freedom)``."""
    return env.bind("qvel")[:, joints.qvel]


def last_action(env: Env) -> Tensor:
    """The latest actions as the policy gave them. Shape: ``(num_envs, num_actions)``."""
    return env.actions
