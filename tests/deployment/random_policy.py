"""Checkpoints of policies with random parameters."""

from __future__ import annotations

from pathlib import Path

import torch

from simtrain import TaskCfg
from simtrain.algorithms.networks import make_actor
from simtrain.config.train import TrainConfig
from simtrain.env.env import Env
from simtrain.sim import EngineCfg
from simtrain.training.saved_policy import SavedPolicy


def random_policy(task: TaskCfg, name: str = "tiny", std: float = 0.4) -> SavedPolicy:
    """A checkpoint with random parameters and statistics of observations."""
    torch.manual_seed(0)
    env = Env(task, 3, EngineCfg(threads=1))
    actor = make_actor(task.ppo.actor, env.get_observations(), env.num_actions)
    with torch.no_grad():
        for parameter in actor.parameters():
            parameter.normal_(std=std)
        if actor.obs_normalization:
            actor.obs_normalizer._mean.normal_()
            actor.obs_normalizer._std.uniform_(0.1, 2.0)
    content = {"iter": 7, "actor_state_dict": actor.state_dict()}
    config = TrainConfig.of_task(name, task)
    return SavedPolicy(Path("logs/tiny/some-run/model_7.pt"), config, content)
