"""A trained policy without its exploration."""

import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.cfg import ActorCfg
from simtrain.algorithms.networks import make_actor
from simtrain.errors import ConfigError


class Policy:
    """The mean of a policy's actions; a recurrent one remembers what it saw before."""

    def __init__(
        self, cfg: ActorCfg, obs: TensorDict, num_actions: int, state: dict[str, Tensor]
    ) -> None:
        """Make the network and `load` a checkpoint's ``actor_state_dict``."""
        self.actor: MLPModel = make_actor(cfg, obs, num_actions).to(obs.device or "cpu").eval()
        self.load(state)

    def load(self, state: dict[str, Tensor]) -> None:
        """Take over parameters and normalization, in place; ConfigError if shapes differ."""
        mine = {name: tuple(t.shape) for name, t in self.actor.state_dict().items()}
        theirs = {name: tuple(t.shape) for name, t in state.items()}
        if mine != theirs:
            name = min(n for n in {*mine, *theirs} if mine.get(n) != theirs.get(n))
            there, here = (shapes.get(name, "missing") for shapes in (theirs, mine))
            raise ConfigError(
                "the checkpoint is of another network, or of a task with other observations or "
                f"actions: {name} is {there} in the checkpoint and {here} here"
            )
        self.actor.load_state_dict(state)

    @torch.inference_mode()
    def __call__(self, obs: TensorDict, fresh: Tensor | None = None) -> Tensor:
        """Actions, ``(num_envs, num_actions)``, for observations ``{group: (num_envs, *shape)}``.

        `fresh`, boolean ``(num_envs,)``, is whose episode begins here; None for nobody's.
        """
        if fresh is not None:
            self.actor.reset(fresh)
        actions: Tensor = self.actor(obs)
        return actions
