"""The buffers of a rollout, and the mini-batches that are cut from it.

Beside rsl_rl's storage there are the networks' normalized inputs, the means of the actions and the
time-outs. A step is recorded in a `Transition`, views of the buffers at that step. A CUDA graph
cannot tell steps apart: it records in a `StagingBuffer`, which is copied into its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from operator import itemgetter

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import Tensor


@dataclass(frozen=True)
class Transition:
    """One step of all environments, ``(num_envs, size)`` each."""

    observations: dict[str, Tensor]
    actor_input: Tensor
    """The policy network's input: its groups side by side, normalized."""
    mean: Tensor
    """Actions without exploration."""
    actions: Tensor
    rewards: Tensor
    dones: Tensor
    """1 where the episode ended, uint8."""
    time_outs: Tensor
    """Where it was cut by time, boolean."""

    def record(self, rewards: Tensor, dones: Tensor, time_outs: Tensor) -> None:
        """Write what the actions led to, ``(num_envs,)`` each, in place."""
        self.rewards[:, 0] = rewards
        self.dones[:, 0] = dones
        self.time_outs[:, 0] = time_outs

    def like(self) -> Transition:
        """Zeros of the same shapes."""
        observations = {group: torch.zeros_like(t) for group, t in self.observations.items()}
        rest = {
            field.name: torch.zeros_like(getattr(self, field.name)) for field in fields(self)[1:]
        }
        return Transition(observations, **rest)

    def tensors(self) -> list[Tensor]:
        """All of them, always in the same order."""
        rest = [getattr(self, field.name) for field in fields(self)[1:]]
        return [*self.observations.values(), *rest]


class Rollout(RolloutStorage):  # type: ignore[misc]
    """rsl_rl's storage, and what the update needs beside it."""

    def __init__(
        self,
        obs: TensorDict,
        num_actions: int,
        num_steps_per_env: int,
        input_sizes: tuple[int, int],
        device: torch.device,
    ) -> None:
        """Make the buffers on `device`.

        `obs` is an observation of the environment, ``{group: (num_envs, size)}``; `input_sizes` are
        of policy and value network.
        """
        num_envs = obs.batch_size[0]
        super().__init__("rl", num_envs, num_steps_per_env, obs, [num_actions], device)
        self.actor_input, self.critic_input = (
            torch.zeros(num_steps_per_env, num_envs, size, device=device) for size in input_sizes
        )
        self.last_critic_input = torch.zeros_like(self.critic_input[0])
        self.mean = torch.zeros_like(self.actions)
        self.std = torch.zeros_like(self.actions[0, 0])
        """Standard deviations of the actions, the same in all steps, ``(num_actions,)``."""
        self.time_outs = torch.zeros_like(self.dones, dtype=torch.bool)
        self.distribution_params = (self.mean, self.std.expand_as(self.mean))
        self.transitions = [self.transition(step) for step in range(num_steps_per_env)]

    def transition(self, step: int | slice) -> Transition:
        """Views of the buffers at one step, or at several."""
        observations = {group: buffer[step] for group, buffer in self.observations.items()}
        return Transition(
            observations, **{f.name: getattr(self, f.name)[step] for f in fields(Transition)[1:]}
        )

    def samples(self) -> Samples:
        """The rollout with steps and environments in one axis; views."""
        names = [field.name for field in fields(Samples)[:-1]]
        return Samples(**{n: getattr(self, n).flatten(0, 1) for n in names}, std=self.std)


class StagingBuffer:
    """A transition that is copied into a rollout at a step that is counted on the device."""

    def __init__(self, rollout: Rollout) -> None:
        self.transition = rollout.transition(0).like()
        self.step = torch.zeros(1, dtype=torch.long, device=rollout.actions.device)
        """Where the transition goes next."""
        self._targets = rollout.transition(slice(None)).tensors()
        self._sources = [tensor.unsqueeze(0) for tensor in self.transition.tensors()]

    def store(self) -> None:
        """Copy the transition into the rollout, in place, and count the step."""
        for target, source in zip(self._targets, self._sources, strict=True):
            target.index_copy_(0, self.step, source)
        self.step += 1


@dataclass(frozen=True)
class Samples:
    """Transitions of a rollout or a mini-batch; the leading axis is the sample, but for `std`."""

    actor_input: Tensor
    critic_input: Tensor
    actions: Tensor
    actions_log_prob: Tensor
    values: Tensor
    returns: Tensor
    advantages: Tensor
    mean: Tensor
    """Means of the policy that collected the samples, ``(samples, num_actions)``."""
    std: Tensor
    """Its standard deviations, the same for all samples, ``(num_actions,)``."""

    def like(self) -> Samples:
        """Zeros of the same shapes; `std` is the same tensor."""
        return self._map(torch.zeros_like)

    def shuffled(self, order: Tensor, out: Samples) -> None:
        """Write `out`, in place: these in another order; `order` is long, ``(samples,)``."""
        for field in fields(self)[:-1]:
            target = getattr(out, field.name)
            torch.index_select(getattr(self, field.name), 0, order, out=target)

    def mini_batches(self, count: int) -> Iterator[Samples]:
        """`count` consecutive slices of equal size; a remainder is left out."""
        size = len(self.actions) // count
        for i in range(count):
            yield self._map(itemgetter(slice(i * size, (i + 1) * size)))

    def _map(self, function: Callable[[Tensor], Tensor]) -> Samples:
        changed = {field.name: function(getattr(self, field.name)) for field in fields(self)[:-1]}
        return replace(self, **changed)
