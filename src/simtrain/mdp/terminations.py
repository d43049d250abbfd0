"""Reasons for an episode to end. Each returns a boolean tensor, ``(num_envs,)``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env


def time_out(env: Env) -> Tensor:
    """The episode has lasted ``episode_length_s``. Shape: ``(num_envs,)``."""
    return env.episode_length_buf >= env.max_episode_length
