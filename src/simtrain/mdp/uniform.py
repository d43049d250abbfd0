"""Uniform random numbers for every environment, which events draw."""

from collections.abc import Sequence

import torch
from torch import Tensor

from simtrain.env.env import Env

Bounds = tuple[float, float]


class Uniform:
    """Draws between bounds, a pair a column, for all environments, from torch's generator."""

    def __init__(self, env: Env, bounds: Sequence[Bounds]) -> None:
        ends = torch.tensor(list(bounds), dtype=torch.float32, device=env.device)
        self._low, self._width = ends[:, 0].clone(), ends[:, 1] - ends[:, 0]
        self._num_envs = env.num_envs

    def draw(self) -> Tensor:
        """New values. Shape: ``(num_envs, columns)``."""
        random = torch.rand(self._num_envs, len(self._low), device=self._low.device)
        return torch.addcmul(self._low, random, self._width, out=random)
