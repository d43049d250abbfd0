"""Generalized advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438).

An episode that was cut by time is bootstrapped with the value of its last state.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from simtrain.algorithms.rollout import Rollout

Estimator = Callable[[Rollout, Tensor, float, float], None]  # see estimate_by_steps


def make_estimator(device: torch.device) -> Estimator:
    """The fastest on that device."""
    if device.type == "cuda":
        from simtrain.algorithms.advantage_kernel import KernelEstimator

        try:
            return KernelEstimator(device)
        except RuntimeError as error:
            text = f"advantages are estimated step by step, and slower: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
    return estimate_by_steps


def estimate_by_steps(rollout: Rollout, last_values: Tensor, gamma: float, lam: float) -> None:
    """Write a rollout's advantages and returns, in place; `last_values` is ``(num_envs, 1)``."""
    values = rollout.values
    going_on = rollout.dones.eq(0).float()
    next_values = torch.cat((values[1:], last_values.unsqueeze(0)))
    deltas = torch.addcmul(rollout.rewards, values, rollout.time_outs, value=gamma)
    deltas.addcmul_(going_on, next_values, value=gamma).sub_(values)
    decay = going_on.mul_(gamma * lam)
    advantage = torch.zeros_like(last_values)
    steps = zip(deltas.unbind(), decay.unbind(), rollout.advantages.unbind(), strict=True)
    for delta, factor, out in reversed(list(steps)):
        advantage = torch.addcmul(delta, factor, advantage, out=out)
    torch.add(rollout.advantages, values, out=rollout.returns)
