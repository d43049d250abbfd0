"""Uniform random numbers for every environment, which events draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from simtrain.env.env import Env

Bounds = tuple[float, float]


class Uniform:
    """Draws between bounds, a pair for each column.

    They are drawn for all environments from torch's default generator: what one environment sees
    does not depend on whether another is changed, and the same seed gives the same values.
    """

    def __init__(self, env: Env, bounds: Sequence[Bounds]) -> None:
        ends = list(zip(*bounds, strict=True))
        low, high = torch.tensor(ends, dtype=torch.float32, device=env.device)
        self._low, self._width = low, high - low
        self._num_envs = env.num_envs

    def draw(self) -> Tensor:
        """New values. Shape: ``(num_envs, columns)``."""
        random = torch.rand(self._num_envs, len(self._low), device=self._low.device)
        return torch.addcmul(self._low, random, self._width, out=random)
