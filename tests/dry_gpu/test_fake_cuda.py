"""Every shipped task is trained on ``cuda:1``, and some are evaluated, without waiting for it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_cuda import DEVICE, NoHostTraffic, fake_cuda, fake_env, fake_ppo, tensors_elsewhere
from machine import everything

from simtrain.algorithms.rollout import StagingBuffer
from simtrain.config.tasks import default_config, discover
from simtrain.env.cfg import TaskCfg
from simtrain.sim import EngineCfg
from simtrain.training.context import Member, RunContext, SharedContext
from simtrain.training.evaluator import Evaluator
from simtrain.training.features import population as population_module
from simtrain.training.features.population import Population
from simtrain.training.graphs import collect_transition
from simtrain.training.loop import Trainer

TASKS = sorted(discover().tasks)


def _cfg(task: str) -> TaskCfg:
    cfg = discover().find(task).configuration()
    # PyTorch cannot move the weights of a GRU or a CNN to a device of fake tensors.
    if cfg.ppo.actor.model == "cnn":  # the picture is still taken
        cfg.ppo.actor.obs_groups = ("actor",)
    cfg.ppo.actor.model = cfg.ppo.critic.model = "mlp"
    return cfg


@pytest.mark.parametrize(("task", "plain"), [*((task, False) for task in TASKS), (TASKS[0], True)])
def test_training_stays_on_the_gpu(task, plain):
    cfg = _cfg(task)
    if plain:
        cfg.ppo.actor.obs_normalization = cfg.ppo.critic.obs_normalization = False
        cfg.ppo.actor.std_type = "log"
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


@pytest.mark.parametrize("task", ["cartpole-balance", "g1-tracking", "go1-velocity-rough"])
def test_evaluation_stays_on_the_gpu(task):
    cfg = _cfg(task)
    cfg.episode_length_s = 2 * cfg.timestep * cfg.decimation
    with fake_cuda():
        evaluator = Evaluator(cfg, 4, engine=EngineCfg("warp", DEVICE))
        policy = fake_ppo(cfg.ppo, evaluator.env).actor.state_dict()
        # It reads the episodes when all have ended, but not of an evaluation that was stopped.
        evaluator(cfg.ppo.actor, policy, stop=lambda: True)
        with NoHostTraffic():
            assert evaluator(cfg.ppo.actor, policy, stop=lambda: True) is None
        assert tensors_elsewhere(evaluator, "evaluator") == []


def test_all_of_a_robots_hardware_stays_on_the_gpu(tmp_path, monkeypatch):
    cfg = everything(tmp_path)
    # TorchScript cannot be read into fake tensors: a layer like the one in the file replaces it.
    monkeypatch.setattr(
        torch.jit, "load", lambda path, map_location: torch.nn.Linear(4, 1, device=map_location)
    )
    with fake_cuda():
        env = fake_env(cfg)
        actions = torch.zeros(env.num_envs, env.num_actions, device=DEVICE)
        with torch.inference_mode(), NoHostTraffic():
            for _ in range(2):
                env.step(actions)
        assert tensors_elsewhere(env, "env") == []


@pytest.mark.parametrize("mutation", ["parameters", "architecture"])
def test_a_member_of_a_population_changes_on_the_gpu(mutation, monkeypatch):
    # There is no random generator of a GPU to put aside.
    monkeypatch.setattr(population_module, "forked_randomness", lambda seed, device: nullcontext())
    task = "cartpole-swingup"
    config = replace(default_config(task), population=2)
    with fake_cuda():
        env = fake_env(config.env)
        ppo = fake_ppo(config.ppo, env)
        trainer = Trainer(env, ppo, ppo.rank, config=config)
        shared, member = SharedContext(Path(), ("cuda:0",)), Member(1, None)
        context = RunContext(config, ppo.rank, None, lambda: False, shared, member)
        population = Population(context, trainer, None, lambda c: fake_ppo(c.ppo, env))
        values = {**population.state()["values"], "ppo.gamma": 0.9}
        population.set_state({**population.state(), "values": values})
        population._mutate(mutation, np.random.default_rng(0))
        changed = trainer.ppo
        assert (changed is not ppo) == (mutation == "architecture")
        with torch.inference_mode(), NoHostTraffic():
            changed.begin_rollout()
            collect_transition(env, changed, changed.storage.transitions[0])
            changed.compute_returns(env.get_observations())
        with NoHostTraffic():
            changed.learn_mini_batch(0)
        assert changed.gamma == 0.9
        assert tensors_elsewhere(changed, "ppo") == []
