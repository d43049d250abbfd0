"""Limits of how fast targets change, and of how fast that changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor


class Limiter:
    """Lets targets follow what is wanted within limits of their rate and acceleration.

    A target slows down in time to stop where it is wanted to be.
    """

    def __init__(
        self, env: Any, start: Tensor, rate: Sequence[float], acceleration: Sequence[float]
    ) -> None:
        """Episodes begin at rest at `start`, ``(dim,)``; limits are per s and per s²."""
        self._start, self._dt = start, env.step_dt
        self._most = torch.tensor(rate, dtype=torch.float32, device=env.device)
        self._acceleration = torch.tensor(acceleration, dtype=torch.float32, device=env.device)
        self._moved: Tensor = env.buffer("moved", start.shape)  # from the start
        self._rate = env.buffer("rate", start.shape)

    def follow(self, wanted: Tensor) -> Tensor:
        """The next targets on the way to `wanted`, ``(num_envs, dim)``."""
        before = self._moved + self._start
        way, dt = wanted - before, self._dt
        distance = way.abs()
        change = self._acceleration * dt
        # From a rate r it moves at most (r + change / 2)² / 2a before it stands, in whole steps.
        braking = (2.0 * self._acceleration * distance).sqrt() - change / 2
        rate = torch.minimum(distance / dt, torch.maximum(braking, change))
        rate = torch.minimum(rate, self._most) * way.sign()
        rate = torch.clamp(rate, self._rate - change, self._rate + change)
        self._rate.copy_(rate)
        self._moved.add_(rate, alpha=dt)
        return self._moved + self._start
