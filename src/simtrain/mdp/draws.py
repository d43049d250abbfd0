"""Random numbers for every environment, which events draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Bounds

Distribution = Literal["uniform", "log_uniform", "gaussian"]
_CUT = 3.0  # standard deviations from a Gaussian's mean to its bounds
_PART = math.erf(_CUT / math.sqrt(2.0))  # of a Gaussian within its bounds


class Draws:
    """Draws between bounds, a pair a column, for all environments, from torch's generator.

    Each of several `bounds`, of equally many columns, is for a set of numbers of its own. The mean
    of ``gaussian`` numbers is in the middle of the bounds, which are three standard deviations away
    and cut it off; of ``log_uniform`` numbers the logarithms are uniform.
    """

    def __init__(
        self, env: Env, *bounds: Sequence[Bounds], distribution: Distribution = "uniform"
    ) -> None:
        self._distribution = distribution
        ends = torch.tensor([list(columns) for columns in bounds], dtype=torch.float32)
        if distribution == "log_uniform":
            ends = ends.log()
        low, high = ends.to(env.device).unsqueeze(1).unbind(3)
        self._low, self._width = low.clone(), high - low
        self._shape = (len(bounds), env.num_envs, len(bounds[0]))

    def draw(self) -> Tensor:
        """New values. Shape: ``(sets, num_envs, columns)``."""
        random = torch.rand(self._shape, device=self._low.device)
        if self._distribution == "gaussian":  # by the inverse of its distribution function
            random.sub_(0.5).mul_(2.0 * _PART).erfinv_().mul_(math.sqrt(0.5) / _CUT).add_(0.5)
        torch.addcmul(self._low, random, self._width, out=random)
        return random.exp_() if self._distribution == "log_uniform" else random
