"""PPO's losses on a mini-batch, and their gradients by formula.

Schulman et al., "Proximal policy optimization algorithms", 2017 (https://arxiv.org/abs/1707.06347).
Numbers that are not finite go on into the gradients, so that the step is skipped. Must be called
without autograd.
"""

import math
from typing import NamedTuple, Protocol

import torch
from rsl_rl.modules.distribution import GaussianDistribution
from rsl_rl.storage import RolloutStorage
from torch import Tensor, nn

from simtrain.algorithms.symmetry import MirrorSymmetry

_HALF_LOG_2_PI = 0.5 * math.log(2.0 * math.pi)


class Coefficients(Protocol):
    """PPO's settings that the losses depend on; some may change between updates."""

    clip_param: float
    use_clipped_value_loss: bool
    value_loss_coef: float
    entropy_weight: Tensor
    """Weight of the entropy bonus, 0-d."""
    symmetry: MirrorSymmetry | None


class Samples(NamedTuple):
    """Transitions, by sample; `mean` is that of the actions under the policy that collected them.

    The standard deviation is the same for all.
    """

    actor_input: Tensor
    critic_input: Tensor
    actions: Tensor
    actions_log_prob: Tensor
    values: Tensor
    returns: Tensor
    advantages: Tensor
    mean: Tensor


def policy_losses(
    batch: Samples,
    old_std: Tensor,
    mean: Tensor,
    std: Tensor,
    clip_param: float,
    entropy_weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Surrogate loss, entropy and divergence from the policy that collected the samples, 0-d; and
    the gradients of ``surrogate - entropy_weight * entropy`` by `mean` and `std`, shaped as these.

    `mean` is ``(1, samples, actions)``, or 2 with those of mirror images, as then are the batch's
    actions; the rest is the same for both. Entropy and divergence are those of the samples.
    """
    z = (batch.actions - mean).div_(std)
    log_ratio = log_prob(z, std).sub_(batch.actions_log_prob)
    loss, by_log_prob = surrogate_loss(log_ratio, batch.advantages, clip_param)
    entropy = (std.log() + (0.5 + _HALF_LOG_2_PI)).sum()
    by_mean = z * (by_log_prob / std)
    by_std = (by_log_prob * (z.square_().sub_(1.0))).flatten(0, 1).sum(dim=0)
    moved = (batch.mean - mean[0]).div_(std).square_().sum(dim=1)
    change = (old_std / std).square()
    kl = moved.add_((change - 1.0 - change.log()).sum()).mul_(0.5).mean()
    return loss, entropy, kl, by_mean, (by_std - entropy_weight).div_(std)


def surrogate_loss(
    log_ratio: Tensor, advantages: Tensor, clip_param: float
) -> tuple[Tensor, Tensor]:
    """The clipped surrogate loss, 0-d, and its gradient by the log-probabilities.

    `log_ratio`, their growth since the samples were collected, is overwritten.
    """
    ratio = log_ratio.exp_()
    surrogate = ratio * advantages.neg()
    clipped = ratio.clamp_(1.0 - clip_param, 1.0 + clip_param).mul_(advantages).neg_()
    loss = torch.maximum(surrogate, clipped).mean()
    # d ratio / d log p is the ratio itself; nothing where the clipped surrogate is the larger.
    return loss, surrogate.masked_fill_(surrogate < clipped, 0.0).div_(ratio.numel())


def value_loss(
    batch: Samples | RolloutStorage.Batch, values: Tensor, of: Coefficients
) -> tuple[Tensor, Tensor]:
    """The value's loss, 0-d, and the gradient of its part in PPO's loss by `values`.

    `values` are those of the batch's samples, ``(..., samples, 1)``.
    """
    error = values - batch.returns
    loss = error.square()
    if of.use_clipped_value_loss:
        clip_param = of.clip_param
        change = values - batch.values
        bounded = change.clamp(-clip_param, clip_param)
        error_if_bounded = (batch.values + bounded).sub_(batch.returns)
        loss_if_bounded = error_if_bounded.square()
        worse = loss_if_bounded > loss
        loss = torch.maximum(loss, loss_if_bounded)
        error = torch.where(worse, error_if_bounded * (change == bounded), error)
    return loss.mean(), (error * (2.0 / values.numel())).mul_(of.value_loss_coef)


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
