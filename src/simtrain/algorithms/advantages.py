"""Generalized advantage estimation, for all environments at once.

Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016
(https://arxiv.org/abs/1506.02438). An episode that was cut by time is bootstrapped with the value
of its last state.
"""

from __future__ import annotations

import warnings
from typing import Protocol

import torch
from torch import Tensor

from simtrain.algorithms.rollout import Outcome


class Estimator(Protocol):
    """Something that estimates advantages."""

    def __call__(
        self,
        outcome: Outcome,
        last_values: Tensor,
        *,
        gamma: float,
        lam: float,
        advantages: Tensor,
        returns: Tensor,
    ) -> None:
        """Write `advantages` and `returns`, ``(steps, num_envs, 1)``, in place.

        Args:
            outcome: what they follow from.
            last_values: expected returns after the last step, ``(num_envs, 1)``.
            gamma: discount factor.
            lam: weight of longer returns.
            advantages: written.
            returns: written; advantages plus values.
        """


def make_estimator(device: torch.device) -> Estimator:
    """The fastest on that device."""
    if device.type == "cuda":
        from simtrain.algorithms.advantage_kernel import KernelEstimator

        try:
            return KernelEstimator(device)
        except RuntimeError as error:
            warnings.warn(
                f"advantages are estimated step by step, and slower: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
    return estimate_by_steps


def estimate_by_steps(
    outcome: Outcome,
    last_values: Tensor,
    *,
    gamma: float,
    lam: float,
    advantages: Tensor,
    returns: Tensor,
) -> None:
    """See `Estimator`; an operation of PyTorch a step, backwards."""
    values = outcome.values
    going_on = outcome.dones.eq(0).float()
    next_values = torch.cat((values[1:], last_values.unsqueeze(0)))
    deltas = torch.addcmul(outcome.rewards, values, outcome.time_outs, value=gamma)
    deltas.addcmul_(going_on, next_values, value=gamma).sub_(values)
    decay = going_on.mul_(gamma * lam)
    advantage = torch.zeros_like(last_values)
    for delta, factor, out in reversed(
        list(zip(deltas.unbind(), decay.unbind(), advantages.unbind(), strict=True))
    ):
        advantage = torch.addcmul(delta, factor, advantage, out=out)
    torch.add(advantages, values, out=returns)
