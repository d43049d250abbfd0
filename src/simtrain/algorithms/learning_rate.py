"""The adaptive learning rate, by rsl_rl's rule, on the device."""

from __future__ import annotations

import torch
from torch import Tensor

MIN_LEARNING_RATE = 1e-5
MAX_LEARNING_RATE = 1e-2


def adapt_learning_rate(rate: Tensor, kl: Tensor, desired_kl: float) -> None:
    """Lower the rate where the policy moved too far, raise it where too little, in place.

    Args:
        rate: the learning rate, 0-d.
        kl: divergence of the policy from the one that collected the samples, 0-d.
        desired_kl: what it should be, within a factor of 2.
    """
    lower = (rate / 1.5).clamp_(min=MIN_LEARNING_RATE)
    higher = (rate * 1.5).clamp_(max=MAX_LEARNING_RATE)
    too_near = (kl < desired_kl / 2.0) & (kl > 0.0)
    rate.copy_(torch.where(kl > desired_kl * 2.0, lower, torch.where(too_near, higher, rate)))
