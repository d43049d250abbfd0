"""The samples that PPO learns from: a rollout, flattened, shuffled, and cut into mini-batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter

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

    def shuffled(self, order: Tensor) -> Samples:
        """A contiguous copy in another order; `order` is long, ``(samples,)``."""
        return self._map(lambda tensor: tensor.index_select(0, order))

    def mini_batches(self, count: int) -> Iterator[Samples]:
        """`count` consecutive slices of equal size; a remainder is left out."""
        size = len(self.actions) // count
        for start in range(0, count * size, size):
            yield self._map(itemgetter(slice(start, start + size)))

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
