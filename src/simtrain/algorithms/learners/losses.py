"""PPO's losses on a mini-batch, and their gradients by formula.

Schulman et al., "Proximal policy optimization algorithms", 2017 (https://arxiv.org/abs/1707.06347).
Numbers that are not finite go on into the gradients, so that the step is skipped. Must be called
without autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from operator import itemgetter

import torch
from rsl_rl.modules.distribution import GaussianDistribution
from torch import Tensor, nn

_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Samples:
    """Transitions, by sample, and the policy that collected them: `mean` and `std` of actions."""

    actor_input: Tensor
    critic_input: Tensor
    actions: Tensor
    actions_log_prob: Tensor
    values: Tensor
    returns: Tensor
    advantages: Tensor
    mean: Tensor
    std: Tensor  # the same for all samples, ``(num_actions,)``

    def map(self, function: Callable[[Tensor], Tensor]) -> Samples:
        """A function of each tensor; `std` is the same tensor."""
        changed = {field.name: function(getattr(self, field.name)) for field in fields(self)[:-1]}
        return replace(self, **changed)

    def shuffled(self, order: Tensor, out: Samples) -> None:
        """Write `out`, in place: these in another order; `order` is long, ``(samples,)``."""
        for name in (field.name for field in fields(self)[:-1]):
            torch.index_select(getattr(self, name), 0, order, out=getattr(out, name))

    def mini_batches(self, count: int) -> Iterator[Samples]:
        """`count` consecutive slices of equal size; a remainder is left out."""
        size = len(self.actions) // count
        for i in range(count):
            yield self.map(itemgetter(slice(i * size, (i + 1) * size)))


@dataclass(frozen=True)
class PolicyLoss:
    """Losses, 0-d, and the gradients of ``surrogate - entropy_coef * entropy`` by mean and std."""

    surrogate: Tensor
    entropy: Tensor
    kl: Tensor  # divergence from the policy that collected the samples; not in the loss
    mean_gradient: Tensor
    std_gradient: Tensor


def policy_losses(
    batch: Samples, mean: Tensor, std: Tensor, clip_param: float, entropy_coef: float
) -> PolicyLoss:
    """The policy's losses and gradients; `mean` and `std` are shaped as their gradients."""
    z = (batch.actions - mean).div_(std)
    ratio = log_prob(z, std).sub_(batch.actions_log_prob).exp_()
    surrogate = ratio * batch.advantages.neg()
    clipped = ratio.clamp_(1.0 - clip_param, 1.0 + clip_param).mul_(batch.advantages).neg_()
    entropy = (std.log() + (0.5 + _HALF_LOG_2_PI)).sum()
    loss = torch.maximum(surrogate, clipped).mean()
    # d ratio / d log p is the ratio itself; nothing where the clipped surrogate is the larger.
    by_log_prob = surrogate.masked_fill_(surrogate < clipped, 0.0).div_(len(mean))
    by_mean = z * (by_log_prob / std)
    by_std = (by_log_prob * (z.square_().sub_(1.0))).sum(dim=0)
    moved = (batch.mean - mean).div_(std).square_().sum(dim=1)
    change = (batch.std / std).square()
    kl = moved.add_((change - 1.0 - change.log()).sum()).mul_(0.5).mean()
    return PolicyLoss(loss, entropy, kl, by_mean, (by_std - entropy_coef).div_(std))


def value_loss(batch: Samples, values: Tensor, clip_param: float | None) -> tuple[Tensor, Tensor]:
    """The value's loss, 0-d, and its gradient by `values`, ``(samples, 1)``; None: not clipped."""
    error = values - batch.returns
    loss = error.square()
    if clip_param is not None:
        change = values - batch.values
        bounded = change.clamp(-clip_param, clip_param)
        error_if_bounded = (batch.values + bounded).sub_(batch.returns)
        loss_if_bounded = error_if_bounded.square()
        worse = loss_if_bounded > loss
        loss = torch.maximum(loss, loss_if_bounded)
        error = torch.where(worse, error_if_bounded * (change == bounded), error)
    return loss.mean(), error * (2.0 / len(values))


def log_prob(z: Tensor, std: Tensor) -> Tensor:
    """Log-probabilities, ``(..., 1)``, of normal actions `z` standard deviations from the means."""
    squares = z.square().sum(dim=-1, keepdim=True)
    return squares.mul_(-0.5).sub_((std.log() + _HALF_LOG_2_PI).sum())


class PolicyStd:
    """The standard deviation that rsl_rl's Gaussian learns, the same in every state."""

    def __init__(self, distribution: GaussianDistribution) -> None:
        self._of_log = distribution.std_type == "log"
        name = "log_std" if self._of_log else "std"
        self._parameter: nn.Parameter = getattr(distribution, f"{name}_param")
        self._range: tuple[float, float] = getattr(distribution, f"{name}_range")

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """Its present value, ``(num_actions,)``."""
        value: Tensor = self._parameter.clamp(*self._range)
        return value.exp_() if self._of_log else value

    def bound(self) -> None:
        """Bring the parameter back into its range, in place: outside of it, it has no gradient."""
        self._parameter.clamp_(*self._range)

    def backward(self, gradient: Tensor, std: Tensor) -> None:
        """Write the parameter's ``.grad``, in place, from the gradient of `std`, its value."""
        if self._of_log:
            gradient = gradient * std
        low, high = self._range
        inside = (self._parameter >= low) & (self._parameter <= high)
        torch.mul(gradient, inside, out=self._parameter.grad)
