"""The part of PPO that depends on the kind of models: acting, records of a step, gradients."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.learners.losses import Coefficients
from simtrain.algorithms.networks import Memory
from simtrain.algorithms.rollout import Rollout, Transition
from simtrain.launch.phase_timer import NO_TIMER, PhaseTimer
from simtrain.launch.rank import Rank

LOSSES = ("value", "surrogate", "entropy", "kl")


class Learner(ABC):
    """Acts and learns with one kind of models in PPO; its state stays in place.

    Policy and value share no parameter: on CPU threads, they are learned side by side.
    """

    storage: Rollout
    memories: Sequence[Memory] = ()
    """The models' hidden states for each environment."""

    def __init__(self, rank: Rank, timer: PhaseTimer) -> None:
        self.threads = max(1, rank.threads // 2)
        """Threads of torch to call `backward` with: those of each of the two networks."""
        self._timer = timer
        self._value_thread: ThreadPoolExecutor | None = None
        if rank.device.type == "cpu" and rank.threads > 1:
            self._value_thread = ThreadPoolExecutor(
                1, "value", torch.set_num_threads, (self.threads,)
            )

    @property
    @abstractmethod
    def std(self) -> Tensor:
        """Standard deviations of the policy's actions, ``(num_actions,)``: the latest's mean."""

    def begin_rollout(self) -> None:  # noqa: B027 - most need nothing
        """Save state from the start of a rollout for its update, in place."""

    @abstractmethod
    def act(self, obs: TensorDict, transition: Transition) -> Tensor:
        """Sample actions, ``(num_envs, num_actions)``; written to `transition`, as is the rest."""

    @abstractmethod
    def evaluate(self, obs: TensorDict) -> Tensor:
        """Values of `obs`, which follows the rollout: ``(num_envs, 1)``. Completes the values and
        log-probabilities of the rollout, in place."""

    @abstractmethod
    def shuffle(self) -> Tensor:
        """Draw the mini-batches of an update, in place; their advantages, a mini-batch a row."""

    @abstractmethod
    def mini_batch(self, number: int) -> Any:
        """A mini-batch, in the form that `backward` takes."""

    def backward(self, batch: Any, coefficients: Coefficients) -> Tensor:
        """Write the gradients of a mini-batch, in place; its mirror loss, if any, and `LOSSES`."""
        if self._value_thread is None:
            value = self._learn_value(batch, coefficients, self._timer)
        else:
            future = self._value_thread.submit(self._learn_value, batch, coefficients, NO_TIMER)
        mirror, *policy = self._learn_policy(batch, coefficients)
        if self._value_thread is not None:
            value = future.result()
        losses = [value, *policy]
        return torch.stack(losses if coefficients.symmetry is None else [mirror, *losses])

    @abstractmethod
    def after_step(self) -> None:
        """Bring parameters back into their bounds, in place."""

    @abstractmethod
    def _learn_policy(self, batch: Any, of: Coefficients) -> tuple[Tensor, ...]:
        """Write the policy's gradients; losses of symmetry and surrogate, entropy, divergence."""

    @abstractmethod
    def _learn_value(self, batch: Any, of: Coefficients, timer: PhaseTimer) -> Tensor:
        """Write the value's gradients; its loss. May run on a thread of its own."""
