"""The buffers of a rollout, and its advantages.

A step is recorded in a `Transition`, views of the buffers at that step. A CUDA graph cannot tell
steps apart: it records in a `StagingBuffer`, which is copied into its place.
"""

from operator import itemgetter
from typing import NamedTuple

import torch
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


class Transition(NamedTuple):
    """One step of all environments, ``(num_envs, size)``; `dones` uint8, `time_outs` boolean.

    With a first dimension more, these are the buffers of all steps of a rollout.
    """

    observations: dict[str, Tensor]
    recorded: dict[str, Tensor]  # tensors that the learner records, by its own names
    actions: Tensor
    rewards: Tensor
    dones: Tensor
    time_outs: Tensor

    def observe(self, obs: TensorDict) -> None:
        """Write the observations of the policy, in place."""
        for group, observed in self.observations.items():
            observed.copy_(obs[group])

    def record(self, rewards: Tensor, dones: Tensor, time_outs: Tensor) -> None:
        """Write the results of the actions, ``(num_envs,)`` each, in place."""
        self.rewards[:, 0] = rewards
        self.dones[:, 0] = dones
        self.time_outs[:, 0] = time_outs


class Rollout(RolloutStorage):  # type: ignore[misc]
    """rsl_rl's storage, with further buffers that the update needs."""

    def __init__(
        self,
        obs: TensorDict,
        num_actions: int,
        num_steps_per_env: int,
        recorded: dict[str, Tensor],
        device: torch.device,
    ) -> None:
        """`obs` is ``{group: (num_envs, *shape)}``; `recorded` are examples of the tensors that a
        learner records of a step; each has a buffer of all steps: rsl_rl's, or a new one."""
        super().__init__("rl", obs.batch_size[0], num_steps_per_env, obs, [num_actions], device)
        self.recorded: dict[str, Tensor] = {
            name: getattr(self, name, example.new_zeros(num_steps_per_env, *example.shape))
            for name, example in recorded.items()
        }
        self.time_outs = torch.zeros_like(self.dones, dtype=torch.bool)
        groups, ends = dict(self.observations.items()), (self.dones, self.time_outs)
        self.buffers = Transition(groups, self.recorded, self.actions, self.rewards, *ends)
        """The buffers of all steps, ``(steps, num_envs, size)``."""
        steps = range(num_steps_per_env)
        self.transitions: list[Transition] = [tree_map(itemgetter(i), self.buffers) for i in steps]


class StagingBuffer:
    """A transition that is copied into a rollout at a step that is counted on the device."""

    def __init__(self, rollout: Rollout) -> None:
        buffers = rollout.buffers
        self.transition: Transition = tree_map(lambda b: torch.zeros_like(b[0]), buffers)
        self.step = torch.zeros(1, dtype=torch.long, device=rollout.actions.device)
        self._targets: list[Tensor] = tree_leaves(buffers)
        self._sources = [tensor.unsqueeze(0) for tensor in tree_leaves(self.transition)]

    def store(self) -> None:
        """Copy the transition into the rollout, in place, and go on to the next step, or to 0."""
        for target, source in zip(self._targets, self._sources, strict=True):
            target.index_copy_(0, self.step, source)
        self.step.add_(1).remainder_(len(self._targets[0]))


def estimate_advantages(rollout: Rollout, last_values: Tensor, gamma: float, lam: float) -> None:
    """Write a rollout's advantages and returns, in place; `last_values` is ``(num_envs, 1)``.

    Generalized advantage estimation (Schulman et al. 2016, https://arxiv.org/abs/1506.02438). An
    episode that was cut by time is bootstrapped with the value of its last state.
    """
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
