"""Trained policies: from a run directory back to a task, its environments and the actions."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.networks import make_actor
from simtrain.config import TrainConfig
from simtrain.config_tree import overlay
from simtrain.errors import ConfigError
from simtrain.ppo_cfg import ActorCfg
from simtrain.registry import discover
from simtrain.run.checkpoint import find_checkpoint, read_checkpoint
from simtrain.run.directory import read_config


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


@dataclass(frozen=True)
class SavedPolicy:
    """A checkpoint and the configuration of the run that it belongs to."""

    checkpoint: Path
    """The file."""
    config: TrainConfig
    """The run's whole configuration."""
    content: dict[str, Any]
    """What the file holds, see `simtrain.run.checkpoint`."""

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.checkpoint.parent

    @property
    def iteration(self) -> int:
        """How many iterations were trained."""
        return int(self.content["iter"])

    def policy(self, obs: TensorDict, num_actions: int) -> Policy:
        """The policy for an environment with these observations and actions.

        Raises:
            ConfigError: the environment does not fit the policy.
        """
        return Policy(self.config.ppo.actor, obs, num_actions, self.content["actor_state_dict"])


def open_policy(path: Path) -> SavedPolicy:
    """The policy that a user names by its run directory or checkpoint.

    Raises:
        ConfigError: there is none, it is damaged, or its task is not to be found.
    """
    checkpoint = find_checkpoint(path)
    plain = read_config(checkpoint.parent)
    content = read_checkpoint(checkpoint)
    task = content["infos"].get("task") if isinstance(content["infos"], dict) else None
    if task != plain["task"]:
        raise ConfigError(
            f"{checkpoint} is of the task {task!r}, but lies in a run of {plain['task']!r}"
        )
    return SavedPolicy(checkpoint, _configuration(checkpoint.parent, plain), content)


def _configuration(run: Path, plain: dict[str, Any]) -> TrainConfig:
    default = TrainConfig.of_task(plain["task"], discover().find(plain["task"]).configuration())
    model = plain["env"]["model"]
    own = default.env.model
    # The run may come from another machine, where the task's folder was elsewhere.
    moved = isinstance(own, Path) and not Path(model).exists() and Path(model).name == own.name
    if moved:
        plain = {**plain, "env": {**plain["env"], "model": str(own)}}
    try:
        return overlay(default, plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{run / 'config.yaml'} does not fit the task {plain['task']!r} as it is now: {error}"
        ) from error
