"""Numbers to judge policies by. Each returns float32, ``(num_envs,)``, in units that people know.

What "the base" is stands in `simtrain.mdp.observations`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from simtrain.mdp.observations import base_ang_vel, base_lin_vel

if TYPE_CHECKING:
    from simtrain.env.env import Env


def lin_vel_error(env: Env, command: str) -> Tensor:
    """How far the base's velocity in the plane is from a velocity command's, m/s.

    Args:
        env: the environment.
        command: name of a command whose first two entries are velocities in the base's frame, m/s.
    """
    error = base_lin_vel(env)[:, :2] - env.command(command)[:, :2]
    distance: Tensor = torch.linalg.vector_norm(error, dim=1)
    return distance


def ang_vel_error(env: Env, command: str) -> Tensor:
    """How far the base's yaw rate is from a velocity command's, rad/s.

    Args:
        env: the environment.
        command: name of a command whose third entry is a yaw rate in the base's frame, rad/s.
    """
    return (base_ang_vel(env)[:, 2] - env.command(command)[:, 2]).abs()
