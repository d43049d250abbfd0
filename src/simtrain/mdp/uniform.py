"""Uniform random numbers for every environment, which events draw."""

from collections.abc import Sequence

import torch
from torch import Tensor

from simtrain.env.env import Env
from simtrain.env.names import Bounds


class Uniform:
    """Draws between bounds, a pair a column, for all environments, from torch's generator.

    Each of several `bounds`, of equally many columns, is for a set of numbers of its own.
    """

    def __init__(self, env: Env, *bounds: Sequence[Bounds]) -> None:
        ends = torch.tensor([list(columns) for columns in bounds], dtype=torch.float32)
        low, high = ends.to(env.device).unsqueeze(1).unbind(3)
        self._low, self._width = low.clone(), high - low
        self._shape = (len(bounds), env.num_envs, len(bounds[0]))

    def draw(self) -> Tensor:
        """New values. Shape: ``(sets, num_envs, columns)``."""
        random = torch.rand(self._shape, device=self._low.device)
        return torch.addcmul(self._low, random, self._width, out=random)
