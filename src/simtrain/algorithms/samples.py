"""The samples that PPO learns from: a rollout, flattened, shuffled, and cut into mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from operator import itemgetter

import torch
from torch import Tensor


@dataclass
class Samples:
    """Transitions of a rollout, flattened; the leading axis is the sample, but for `std`."""

    actor_input: Tensor
    critic_input: Tensor
    actions: Tensor
    log_prob: Tensor
    values: Tensor
    returns: Tensor
    advantages: Tensor
    mean: Tensor
    """Means of the policy that collected the samples, ``(samples, num_actions)``."""
    std: Tensor
    """Its standard deviations, the same for all samples, ``(num_actions,)``."""

    def like(self) -> Samples:
        """Room for as many other samples; `std` is the same."""
        return self._map(torch.zeros_like)

    def shuffled(self, order: Tensor, out: Samples) -> None:
        """Write `out`, in place: these in another order; `order` is long, ``(samples,)``."""
        for field in fields(self):
            if field.name != "std":
                torch.index_select(
                    getattr(self, field.name), 0, order, out=getattr(out, field.name)
                )

    def mini_batches(self, count: int) -> Iterator[Samples]:
        """`count` consecutive slices of equal size; a remainder is left out."""
        size = len(self.actions) // count
        for i in range(count):
            yield self._map(itemgetter(slice(i * size, (i + 1) * size)))

    def _map(self, function: Callable[[Tensor], Tensor]) -> Samples:
        return Samples(
            actor_input=function(self.actor_input),
            critic_input=function(self.critic_input),
            actions=function(self.actions),
            log_prob=function(self.log_prob),
            values=function(self.values),
            returns=function(self.returns),
            advantages=function(self.advantages),
            mean=function(self.mean),
            std=self.std,
        )
