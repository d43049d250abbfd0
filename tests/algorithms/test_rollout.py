"""A rollout runs ahead of the device: physics, terms, policy and storage."""

from __future__ import annotations

import pytest
import torch
from waiting import RefuseWaiting

from simtrain.algorithms.ppo import PPO
from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.launch.rank import Rank
from simtrain.sim import EngineCfg
from simtrain.training.loop import Trainer, train
from simtrain.training.reflection import mirror_maps


@pytest.mark.parametrize("task", ["cartpole-swingup", "go1-velocity-rough", "g1-velocity-flat"])
def test_a_rollout_does_not_wait_for_the_device(task: str) -> None:
    cfg = discover().find(task).make()
    cfg.episode_length_s = 0.1  # so that resets happen
    env = Env(cfg, 4, EngineCfg(threads=1))
    rank = Rank(0, 0, 1, env.device, seed=0, threads=1)
    mirror = mirror_maps(env, env.device) if cfg.ppo.symmetry.is_used else None
    obs = env.get_observations()
    trainer = Trainer(env, PPO(cfg.ppo, obs, env.num_actions, 12, rank, mirror=mirror), rank)
    train(trainer, [], 1, lambda: False)
    with RefuseWaiting():
        trainer.collect()
    finished = dict(zip(env.episodes.names, env.episodes.take().tolist(), strict=True))["count"]
    assert finished >= 4
    assert torch.isfinite(trainer.ppo.storage.returns).all()
