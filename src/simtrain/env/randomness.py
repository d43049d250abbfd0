"""The random generators of a rank, seeded, saved, restored and forked; and draws of terms."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from simtrain.env.names import Bounds

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.base import BaseEnv

Distribution = Literal["uniform", "log_uniform", "gaussian"]
_CUT = 3.0  # standard deviations from a Gaussian's mean to its bounds
_PART = math.erf(_CUT / math.sqrt(2.0))  # of a Gaussian within its bounds


def seed_everything(seed: int) -> None:
    """Seed the generators of torch (on all devices), NumPy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """The states of all random generators that a rank on `device` uses, as plain data."""
    kind, keys, *rest = np.random.get_state()
    version, words, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys, np.int64)), *rest],
        "python": [version, list(words), gauss_next],
    }


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Continue all random generators from the result of `random_state`."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, words, gauss_next = state["python"]
    random.setstate((version, tuple(words), gauss_next))


@contextmanager
def forked_randomness(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Within, draw from `seed`; then restore the generators. Does not touch other GPUs."""
    device = device or torch.device("cpu")
    before = random_state(device)
    try:
        # Not torch.manual_seed, which seeds every GPU.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        np.random.seed(seed % 2**32)  # for task files that use it
        random.seed(seed)
        yield
    finally:
        set_random_state(before, device)


def draw_where(mask: Tensor, values: Tensor, bounds: tuple[float, float]) -> None:
    """Draw `values` anew where `mask`, in place; numbers are drawn for all environments."""
    torch.where(mask, torch.empty_like(values).uniform_(*bounds), values, out=values)


class Draws:
    """Draws between bounds, a pair a column, for all environments, from torch's generator.

    Each of several `bounds`, of equally many columns, is for a set of numbers of its own. The mean
    of ``gaussian`` numbers is in the middle of the bounds, which are three standard deviations away
    and cut it off; of ``log_uniform`` numbers the logarithms are uniform.
    """

    def __init__(
        self, env: BaseEnv, *bounds: Sequence[Bounds], distribution: Distribution = "uniform"
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
