"""Every shipped task is trained and evaluated on ``cuda:1`` without waiting for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fake_cuda import DEVICE, NoHostTraffic, fake_cuda, fake_env, fake_ppo, tensors_elsewhere

from simtrain.algorithms.rollout import StagingBuffer
from simtrain.env.cfg import TaskCfg
from simtrain.registry import discover
from simtrain.sim import EngineCfg
from simtrain.training.evaluator import Evaluator
from simtrain.training.graphs.rollout import collect_transition

TASKS = sorted(discover().tasks)


def _plain(cfg: TaskCfg) -> None:
    cfg.ppo.actor.obs_normalization = cfg.ppo.critic.obs_normalization = False
    cfg.ppo.actor.std_type = "log"


NETWORKS: dict[str, Callable[[TaskCfg], None]] = {"mlp": lambda cfg: None, "plain": _plain}
"""By name, what makes a task's configuration one of such networks."""


def _cfg(task: str, network: str) -> TaskCfg:
    cfg = discover().find(task).configuration()
    NETWORKS[network](cfg)
    return cfg


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("task", TASKS)
def test_training_stays_on_the_gpu(task, network):
    cfg = _cfg(task, network)
    with fake_cuda():
        env = fake_env(cfg)
        ppo = fake_ppo(cfg.ppo, env)
        staging = StagingBuffer(ppo.storage)
        with torch.inference_mode(), NoHostTraffic():
            ppo.begin_rollout()
            for _ in range(2):
                collect_transition(env, ppo, staging.transition)
                staging.store()
            ppo.compute_returns(env.get_observations())
        with NoHostTraffic():
            ppo.learn_mini_batch(0)
        assert tensors_elsewhere(env, "env") + tensors_elsewhere(ppo, "ppo") == []


@pytest.mark.parametrize("task", TASKS)
def test_evaluation_stays_on_the_gpu(task):
    cfg = _cfg(task, "mlp")
    cfg.episode_length_s = 2 * cfg.timestep * cfg.decimation
    with fake_cuda():
        evaluator = Evaluator(cfg, cfg.ppo.actor, 4, engine=EngineCfg("warp", DEVICE))
        policy = fake_ppo(cfg.ppo, evaluator.env).actor.state_dict()
        # It reads the episodes when all have ended, but not of an evaluation that was stopped.
        evaluator(policy, stop=lambda: True)
        with NoHostTraffic():
            assert evaluator(policy, stop=lambda: True) is None
        assert tensors_elsewhere(evaluator, "evaluator") == []
