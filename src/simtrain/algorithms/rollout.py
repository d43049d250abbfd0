"""The buffers of a rollout, and the mini-batches that are cut from it.

A step is recorded in a `Transition`, views of the buffers at that step. A CUDA graph cannot tell
steps apart: it records in a `StagingBuffer`, which is copied into its place.
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
    """One step of all environments, ``(num_envs, size)``; `dones` uint8, `time_outs` boolean."""

    observations: dict[str, Tensor]
    actor_input: Tensor  # the policy network's groups side by side, normalized
    mean: Tensor  # actions without exploration
    actions: Tensor
    rewards: Tensor
    dones: Tensor
    time_outs: Tensor

    def record(self, rewards: Tensor, dones: Tensor, time_outs: Tensor) -> None:
        """Write what the actions led to, ``(num_envs,)`` each, in place."""
        self.rewards[:, 0] = rewards
        self.dones[:, 0] = dones
        self.time_outs[:, 0] = time_outs

    def tensors(self) -> list[Tensor]:
        """All of them, always in the same order."""
        return [*self.observations.values(), *(getattr(self, f.name) for f in fields(self)[1:])]


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
        """`obs` is ``{group: (num_envs, size)}``; `input_sizes` are of policy and value network."""
        num_envs = obs.batch_size[0]
        super().__init__("rl", num_envs, num_steps_per_env, obs, [num_actions], device)
        self.actor_input, self.critic_input = (
            torch.zeros(num_steps_per_env, num_envs, size, device=device) for size in input_sizes
        )
        self.last_critic_input = torch.zeros_like(self.critic_input[0])
        self.mean = torch.zeros_like(self.actions)
        self.std = torch.zeros_like(self.actions[0, 0])  # of the actions, the same in all steps
        self.time_outs = torch.zeros_like(self.dones, dtype=torch.bool)
        self.distribution_params = (self.mean, self.std.expand_as(self.mean))
        self.transitions = [self.transition(itemgetter(i)) for i in range(num_steps_per_env)]

    def transition(self, view: Callable[[Tensor], Tensor]) -> Transition:
        """A function of each buffer, as their views at one step."""
        rest = {f.name: view(getattr(self, f.name)) for f in fields(Transition)[1:]}
        return Transition({name: view(buf) for name, buf in self.observations.items()}, **rest)

    def samples(self) -> Samples:
        """The rollout with steps and environments in one axis; views."""
        rest = {f.name: getattr(self, f.name).flatten(0, 1) for f in fields(Samples)[:-1]}
        return Samples(**rest, std=self.std)


class StagingBuffer:
    """A transition that is copied into a rollout at a step that is counted on the device."""

    def __init__(self, rollout: Rollout) -> None:
        self.transition = rollout.transition(lambda buffer: torch.zeros_like(buffer[0]))
        self.step = torch.zeros(1, dtype=torch.long, device=rollout.actions.device)
        self._targets = rollout.transition(itemgetter(slice(None))).tensors()
        self._sources = [tensor.unsqueeze(0) for tensor in self.transition.tensors()]

    def store(self) -> None:
        """Copy the transition into the rollout, in place, and count the step."""
        for target, source in zip(self._targets, self._sources, strict=True):
            target.index_copy_(0, self.step, source)
        self.step += 1


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
