"""Reasons for an episode to end. Each returns a boolean tensor, ``(num_envs,)``.

`simtrain.mdp.observations` defines "the base" and the layout of contact sensors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from simtrain.mdp.robot_state import base_height, base_rotation, height_above_ground, sensor_rows

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Entities, Sensors


def time_out(env: Env) -> Tensor:
    """The episode has lasted ``episode_length_s``. Shape: ``(num_envs,)``."""
    return env.episode_length_buf >= env.max_episode_length


def bad_orientation(env: Env, limit_angle: float) -> Tensor:
    """The base's z axis leans by more than `limit_angle`, rad. Shape: ``(num_envs,)``."""
    return base_rotation(env)[:, 2, 2] < math.cos(limit_angle)


def root_height_below_minimum(
    env: Env, minimum_height: float, bodies: Entities | None = None
) -> Tensor:
    """The base, or any of `bodies`, is less than `minimum_height` above the ground, m.

    Shape: ``(num_envs,)``.
    """
    if bodies is None:
        return base_height(env) < minimum_height
    heights = height_above_ground(env, env.bind("xpos")[:, bodies.ids])
    return (heights < minimum_height).any(dim=1)


def terrain_out_of_bounds(env: Env, margin: float = 1.0) -> Tensor:
    """The base is less than `margin`, m, from the edge of the terrain, or beyond it; false without
    a terrain."""
    away_x, away_y = env.bind("qpos")[:, env.base.position][:, :2].abs().unbind(1)
    if env.terrain is None:
        return torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    half_x, half_y = env.terrain.half_size
    return (away_x > half_x - margin) | (away_y > half_y - margin)


class illegal_contact:
    """A force of more than `threshold` on any of the contact sensors, N.

    With `substeps`, at any physics step, otherwise at the last one of a control step.
    """

    def __init__(
        self, env: Env, sensors: Sensors, threshold: float, substeps: bool = False
    ) -> None:
        self._sensors, self._threshold = sensors, threshold
        self._record = env.substeps("sensordata") if substeps else None

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        forces = sensor_rows(env, self._sensors, self._record)[..., 1:4]
        return (forces.square().sum(dim=-1) > self._threshold**2).flatten(1).any(dim=1)
