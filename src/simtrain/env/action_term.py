"""What an action is made of: the contract between a task's configuration and actions at work.

Imports neither torch nor MuJoCo, so that configurations can name these types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@dataclass(frozen=True)
class InitialState:
    """What episodes start from, before events change it."""

    qpos: np.ndarray
    """Positions, ``(nq,)``."""
    ctrl: np.ndarray
    """Controls, ``(nu,)``; all zero where the model does not say."""


class ActionTerm(ABC):
    """A slice of the action vector and what it does to ``ctrl``."""

    dim: int
    """Number of actions."""
    actuators: tuple[int, ...] = ()
    """Ids of the actuators that it writes to; no other term may."""

    @abstractmethod
    def apply(self, actions: Tensor, ctrl: Tensor) -> None:
        """Write its part of `ctrl`, ``(num_envs, nu)``, from `actions`, ``(num_envs, dim)``."""

    def reset(self, mask: Tensor) -> None:  # noqa: B027 - most actions keep no state
        """Forget what was kept of the environments in `mask`, boolean ``(num_envs,)``."""
