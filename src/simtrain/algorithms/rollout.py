"""What a rollout is recorded in: rsl_rl's storage, and what our update needs beside it.

A step is recorded in a `Row`, views of the buffers at that step. A CUDA graph cannot tell steps
apart; it records in a `Stage` of its own, which puts the row into its place by a number on the
device.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from rsl_rl.storage import RolloutStorage
from torch import Tensor


@dataclass(frozen=True)
class Row:
    """One step of a rollout, of all environments."""

    observations: tuple[Tensor, ...]
    """What the policy saw, by group, ``(num_envs, size)``."""
    actor_input: Tensor
    """That as the policy's network got it, normalized."""
    mean: Tensor
    """What the policy would have done without exploring, ``(num_envs, num_actions)``."""
    actions: Tensor
    """What it did, ``(num_envs, num_actions)``."""
    rewards: Tensor
    """``(num_envs, 1)``."""
    dones: Tensor
    """1 where the episode ended, uint8, ``(num_envs, 1)``."""
    time_outs: Tensor
    """Where it was cut by time, boolean, ``(num_envs, 1)``."""

    def tensors(self) -> list[Tensor]:
        """All of them, in an order."""
        rest = [getattr(self, field.name) for field in fields(self)[1:]]
        return [*self.observations, *rest]

    def record(self, rewards: Tensor, dones: Tensor, time_outs: Tensor) -> None:
        """Write what the actions led to, ``(num_envs,)`` each, in place."""
        self.rewards[:, 0] = rewards
        self.dones[:, 0] = dones
        self.time_outs[:, 0] = time_outs


@dataclass(frozen=True)
class Outcome:
    """What the steps of a rollout led to and what was expected, ``(steps, num_envs, 1)`` each."""

    rewards: Tensor
    dones: Tensor
    """1 where an episode ended, uint8."""
    time_outs: Tensor
    """Where it was cut by time, boolean."""
    values: Tensor
    """Expected returns before each step."""


class Stage:
    """A row that is put into its place in a rollout by a number on the device."""

    def __init__(self, rollout: Row) -> None:
        """Make the row; `rollout` has all steps of each tensor, in a leading axis."""
        self._targets = rollout.tensors()
        self.row = Row(
            tuple(torch.zeros_like(t[0]) for t in rollout.observations),
            *(torch.zeros_like(getattr(rollout, field.name)[0]) for field in fields(Row)[1:]),
        )
        self._sources = [tensor.unsqueeze(0) for tensor in self.row.tensors()]
        self.step = torch.zeros(1, dtype=torch.long, device=rollout.actions.device)
        """Where the row goes next."""

    def put(self) -> None:
        """Copy the row into its place, in place, and count the step."""
        for target, source in zip(self._targets, self._sources, strict=True):
            target.index_copy_(0, self.step, source)
        self.step += 1


class Rollout:
    """The buffers of a rollout; `storage` is rsl_rl's part of them."""

    def __init__(self, storage: RolloutStorage, actor_size: int, critic_size: int) -> None:
        """Make what `storage` does not have.

        Args:
            storage: rsl_rl's.
            actor_size: length of the policy network's input.
            critic_size: length of the value network's input.
        """
        self.storage = storage
        steps, num_envs, device = (
            storage.num_transitions_per_env,
            storage.num_envs,
            storage.actions.device,
        )
        self.groups = tuple(storage.observations.keys())
        """Names of the observations' groups, in the order of `Row.observations`."""
        self.actor_input = torch.zeros(steps, num_envs, actor_size, device=device)
        self.critic_input = torch.zeros(steps, num_envs, critic_size, device=device)
        self.last_input = torch.zeros(num_envs, critic_size, device=device)
        """The value network's input after the last step."""
        self.mean = torch.zeros_like(storage.actions)
        self.std = torch.zeros_like(storage.actions[0, 0])
        """Standard deviations of the actions, the same in all steps, ``(num_actions,)``."""
        self.time_outs = torch.zeros_like(storage.dones, dtype=torch.bool)
        storage.distribution_params = (self.mean, self.std.expand_as(self.mean))
        self.rows = [self._row(step) for step in range(steps)]
        """The steps."""

    def stage(self) -> Stage:
        """A row for graphs."""
        return Stage(self._row(slice(None)))

    def _row(self, step: int | slice) -> Row:
        st = self.storage
        return Row(
            tuple(st.observations[group][step] for group in self.groups),
            self.actor_input[step],
            self.mean[step],
            st.actions[step],
            st.rewards[step],
            st.dones[step],
            self.time_outs[step],
        )
