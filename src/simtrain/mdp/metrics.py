"""Numbers that evaluation reports. Each returns float32, ``(num_envs,)``, in familiar units.

What "the base" is stands in `simtrain.mdp.observations`. `command` names a velocity command,
[v_x, v_y, w_z] in the base's frame, m/s and rad/s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from simtrain.mdp.observations import base_ang_vel, base_lin_vel

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env


def lin_vel_error(env: Env, command: str) -> Tensor:
    """Distance of the base's velocity in the plane from the command's, m/s."""
    error = base_lin_vel(env)[:, :2] - env.command(command)[:, :2]
    distance: Tensor = torch.linalg.vector_norm(error, dim=1)
    return distance


def ang_vel_error(env: Env, command: str) -> Tensor:
    """Difference between the base's yaw rate and the command's, rad/s."""
    return (base_ang_vel(env)[:, 2] - env.command(command)[:, 2]).abs()
