"""Trained policies as they act: networks without exploration."""

from __future__ import annotations

import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.networks import make_actor
from simtrain.errors import ConfigError
from simtrain.ppo_cfg import ActorCfg


class Policy:
    """A trained policy without its exploration: the mean of its actions."""

    def __init__(
        self, cfg: ActorCfg, obs: TensorDict, num_actions: int, state: dict[str, Tensor]
    ) -> None:
        """Make the network and load its parameters.

        Args:
            cfg: the network.
            obs: an observation of the environment, ``{group: (num_envs, size)}``.
            num_actions: size of the action vector.
            state: ``actor_state_dict`` of a checkpoint.

        Raises:
            ConfigError: the parameters are of another network, or of other observations or actions.
        """
        self.actor: MLPModel = make_actor(cfg, obs, num_actions).to(obs.device or "cpu")
        self.load(state)
        self.actor.eval()

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over parameters and normalization statistics, in place; ConfigError as above."""
        mine = {name: tuple(t.shape) for name, t in self.actor.state_dict().items()}
        theirs = {name: tuple(t.shape) for name, t in state.items()}
        if mine != theirs:
            differing = sorted(n for n in {*mine, *theirs} if mine.get(n) != theirs.get(n))
            name = differing[0]
            raise ConfigError(
                "the checkpoint is of another network, or of a task with other observations or "
                f"actions: {name} is {theirs.get(name, 'missing')} in the checkpoint and "
                f"{mine.get(name, 'missing')} here"
            )
        self.actor.load_state_dict(state)

    @torch.inference_mode()
    def __call__(self, obs: TensorDict) -> Tensor:
        """Actions, ``(num_envs, num_actions)``, for observations ``{group: (num_envs, size)}``."""
        actions: Tensor = self.actor(obs)
        return actions
