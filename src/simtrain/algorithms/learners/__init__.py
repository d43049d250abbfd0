"""What of PPO depends on the kinds of models: acting, what a step records, and gradients."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.rollout import Rollout, Transition
from simtrain.launch.rank import Rank

LOSSES = ("value", "surrogate", "entropy", "kl")


class Coefficients(Protocol):
    """PPO's settings that the losses depend on; some may change between updates."""

    clip_param: float
    use_clipped_value_loss: bool
    value_loss_coef: float
    entropy_coef: float


class Learner(Protocol):
    """One kind of models at work in PPO; all that it keeps stays in place."""

    storage: Rollout
    threads: int
    """Threads of torch to call `backward` with."""
    refusal: str | None
    """Why mini-batches cannot be CUDA graphs; None if they can."""

    @property
    def std(self) -> Tensor:
        """Standard deviations of the policy's actions, ``(num_actions,)``: the latest's mean."""

    def begin_rollout(self) -> None:
        """Note what holds for all steps of a rollout, in place."""

    def act(self, obs: TensorDict, transition: Transition) -> Tensor:
        """Sample actions, ``(num_envs, num_actions)``; written to `transition`, as is the rest."""

    def reset(self, dones: Tensor) -> None:
        """Forget, in place, what is remembered of environments in `dones`, ``(num_envs,)``."""

    def hidden_states(self) -> list[Tensor]:
        """What is remembered from one step to the next, always in the same order; not copies."""

    def evaluate(self, obs: TensorDict) -> Tensor:
        """Values of `obs`, ``(num_envs, 1)``, which follows the rollout, whose own are completed,
        in place, as are its log-probabilities."""

    def shuffle(self) -> Tensor:
        """Draw the mini-batches of an update, in place; their advantages, the mini-batch first."""

    def mini_batch(self, number: int) -> Any:
        """A mini-batch, as `backward` wants it."""

    def backward(self, batch: Any, coefficients: Coefficients) -> Tensor:
        """Write the gradients of a mini-batch, in place; its `LOSSES`."""

    def after_step(self) -> None:
        """Bring parameters back into their bounds, in place."""


def value_thread(rank: Rank) -> ThreadPoolExecutor | None:
    """A thread for the value network, with half of the rank's threads; None without CPU threads."""
    if rank.device.type != "cpu" or rank.threads == 1:
        return None
    return ThreadPoolExecutor(1, "value", torch.set_num_threads, (max(1, rank.threads // 2),))
