"""Reasons for an episode to end. Each returns a boolean tensor, ``(num_envs,)``.

What "the base" is, and how contact sensors are laid out, stands in `simtrain.mdp.observations`.
"""

import math

import torch
from torch import Tensor

from simtrain.env.env import Env
from simtrain.env.names import Sensors
from simtrain.mdp.robot_state import base_height, base_rotation, feet_forces


def time_out(env: Env) -> Tensor:
    """The episode has lasted ``episode_length_s``. Shape: ``(num_envs,)``."""
    return env.episode_length_buf >= env.max_episode_length


def bad_orientation(env: Env, limit_angle: float) -> Tensor:
    """The base's z axis leans by more than `limit_angle`, rad. Shape: ``(num_envs,)``."""
    return base_rotation(env)[:, 2, 2] < math.cos(limit_angle)


def root_height_below_minimum(env: Env, minimum_height: float) -> Tensor:
    """The base is less than `minimum_height` above the ground, m. Shape: ``(num_envs,)``."""
    return base_height(env) < minimum_height


def terrain_out_of_bounds(env: Env, margin: float = 1.0) -> Tensor:
    """The base is within `margin`, m, of the terrain's end or beyond; false without a terrain."""
    away_x, away_y = env.bind("qpos")[:, env.base.position][:, :2].abs().unbind(1)
    if env.terrain is None:
        return torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
    half_x, half_y = env.terrain.half_size
    return (away_x > half_x - margin) | (away_y > half_y - margin)


def illegal_contact(env: Env, sensors: Sensors, threshold: float) -> Tensor:
    """A force of more than `threshold` on any of the contact sensors, N. Shape: ``(num_envs,)``."""
    return (feet_forces(env, sensors).square().sum(dim=2) > threshold**2).any(dim=1)
