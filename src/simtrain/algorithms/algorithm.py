"""The base of PPO and distillation: mini-batches, by graphs if given, and one read-back each."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.flat_adam import FlatAdam, all_reduce
from simtrain.algorithms.networks import Memory
from simtrain.algorithms.rollout import Rollout, Transition
from simtrain.launch.phase_timer import PhaseTimer
from simtrain.launch.rank import Rank

Replay = Callable[[int], None]
"""`MiniBatchAlgorithm.learn_mini_batch` by a graph of each mini-batch."""
MakeReplay = Callable[[], Replay | None]
"""Makes graphs of mini-batches once; returns their replay, or None without. A collective."""


class MiniBatchAlgorithm(ABC):
    """An algorithm of rsl_rl's over one or more ranks; a base class before rsl_rl's own."""

    actor: MLPModel
    storage: Rollout
    memories: Sequence[Memory]
    """The models' hidden states for this rank's environments."""
    rank: Rank
    timer: PhaseTimer
    optimizer: FlatAdam
    learning_rate: float
    num_learning_epochs: int
    num_mini_batches: int
    learning_threads: int
    """Threads of torch to call `update` with."""
    refusal: str | None = None
    """Why mini-batches cannot be CUDA graphs; None if they can."""
    skipped_steps = 0
    """Optimizer steps of the last update whose gradients were not finite."""
    _losses: Tensor
    _saved_networks: ClassVar[tuple[str, ...]]
    """The attributes that are networks, or None; also their names in rsl_rl's `load`."""

    @property
    def networks(self) -> dict[str, MLPModel]:
        """The networks that learn, by the names that they have in checkpoints."""
        return {"actor": self.actor}

    def tensors(self) -> list[Tensor]:
        """Parameters and buffers of all networks; not copies."""
        networks = [getattr(self, name) for name in self._saved_networks]
        states = [network.state_dict() for network in networks if network is not None]
        return [tensor for state in states for tensor in state.values()]

    def hidden_states(self) -> list[Tensor]:
        """State that is kept for this rank's environments, such as hidden states; not copies."""
        return [tensor for memory in self.memories for tensor in memory.tensors]

    def set_hidden_states(self, states: Sequence[Tensor]) -> None:
        """Load `states`, in place; RuntimeError if shapes differ, ValueError if one is missing."""
        for tensor, state in zip(self.hidden_states(), states, strict=True):
            tensor.copy_(state)

    def begin_rollout(self) -> None:
        """Save state from the start of a rollout for its update, in place."""
        for memory in self.memories:
            memory.save()

    @abstractmethod
    def act_in(self, obs: TensorDict, transition: Transition) -> Tensor:
        """Sample actions, ``(num_envs, num_actions)``; written to `transition`, as is `obs`."""

    def record(
        self, transition: Transition, rewards: Tensor, dones: Tensor, time_outs: Tensor
    ) -> None:
        """Write the actions' results to `transition`, in place; zero hidden states in `dones`."""
        transition.record(rewards, dones, time_outs)
        for memory in self.memories:
            memory.forget(dones)

    @abstractmethod
    def learn_mini_batch(self, number: int) -> None:
        """Learn from a mini-batch of the rollout, in place."""

    def update_state(self) -> list[Tensor]:
        """The state that `learn_mini_batch` changes and its next call reads; not copies."""
        return [*self.optimizer.tensors(), self._losses]

    @abstractmethod
    def inherit(self, before: Any) -> None:
        """Copy all but the learning networks from `before`, the same algorithm; in place."""

    def set_hyper_parameter(self, name: str, value: float) -> None:
        """Change a number of the configuration that an update reads anew, such as ``gamma``."""
        setattr(self, name, value)
        if name == "learning_rate":
            self.optimizer.lr.fill_(value)
            self.learning_rate = float(np.float32(value))  # as stored, without reading the device

    def set_state(
        self, state: dict[str, Any], *, optimizer: bool = True, learning_rate: bool = True
    ) -> None:
        """Load `state`, in place, with the optimizer's moments and the learning rate if asked.

        RuntimeError if shapes differ.
        """
        saved_rate = state["optimizer_state_dict"]["param_groups"][0]["lr"]
        rate = float(saved_rate if learning_rate else self.optimizer.lr)
        parts = {**dict.fromkeys(self._saved_networks, True), "optimizer": optimizer}
        self.load(state, parts, strict=True)  # type: ignore[attr-defined]
        self.learning_rate = float(self.optimizer.lr.fill_(rate))

    def _learn_epochs(self, graphs: MakeReplay | None) -> None:
        """Learn from all mini-batches in all epochs, by `graphs` if there are any; add losses."""
        learn: Replay = self.learn_mini_batch
        if graphs is not None:
            self.timer.begin("other")
            if (replay := graphs()) is not None:
                self.timer.begin("update_graph")
                learn = replay
        self._losses.zero_()
        for _ in range(self.num_learning_epochs):
            for number in range(self.num_mini_batches):
                learn(number)
        self.timer.begin("other")

    def _read_back(self, means: Tensor, *more: Tensor) -> list[float]:
        """The `means` over all ranks, then `more`, 0-d. Clears the storage. Only here, an update
        waits for the device and for other ranks."""
        self.storage.clear()
        all_reduce(means, self.rank, self.timer, then="other")
        means /= self.rank.world_size
        numbers = torch.cat((means, torch.stack((*more, self.optimizer.skipped))))
        with self.rank.progress:
            *values, skipped = numbers.tolist()
        self.skipped_steps = int(skipped)
        self.optimizer.skipped.zero_()
        return values


def part_of_the_way(part: float, start: float, end: float | None) -> float:
    """From `start` to `end`, or `start` if there is no end."""
    return start if end is None else start + part * (end - start)
