"""A real process that evaluates policies of the cart-pole."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from simtrain.algorithms.networks import make_actor
from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.env.env import Env
from simtrain.env.model import evaluation_task
from simtrain.launch.plan import Devices
from simtrain.sim import EngineCfg
from simtrain.training.evaluator import Evaluation, Evaluator
from simtrain.training.features.checkpoint import PolicySnapshot
from simtrain.training.features.evaluator_process import EvaluatorProcess

pytestmark = pytest.mark.timeout(900)
WAIT = 600.0
"""Seconds that a busy machine may take to start the process."""


def snapshot(config: TrainConfig, iteration: int) -> PolicySnapshot:
    torch.manual_seed(iteration)
    obs = Env(config.env, 1, EngineCfg(threads=1)).get_observations()
    networks = {"actor_state_dict": make_actor(config.ppo.actor, obs, 1).state_dict()}
    return PolicySnapshot(iteration, 0, config, networks)


def evaluated(process: EvaluatorProcess) -> list[tuple[PolicySnapshot, Evaluation]]:
    """All that it evaluates; what is submitted may wait until it is ready."""
    results = []
    while process.is_busy:
        results += process.results(WAIT)
    return results


def test_it_takes_the_newest_policy_finds_what_this_process_finds_and_reports_a_mistake():
    """The first ones come while it is not ready yet."""
    config = default_config("cartpole-balance")
    config.env.episode_length_s, config.eval_episodes = 1.0, 3
    with closing(EvaluatorProcess(config, Devices("cpu", 1, ""), 1)) as process:
        for iteration in (1, 2, 3):
            process.submit(snapshot(config, iteration))
            assert process.results() == []
        ((policy, evaluation),) = evaluated(process)
        assert policy.iteration == 3
        here = Evaluator(evaluation_task(config.env), 3, engine=EngineCfg("mujoco", threads=1))
        assert evaluation == here(config.ppo.actor, policy.networks["actor_state_dict"])

        process.submit(snapshot(config, 4))
        assert [policy.iteration for policy, _ in evaluated(process)] == [4]
        assert process.failure is None

        policy = snapshot(config, 5)
        config.ppo.actor.hidden_dims = (7,)  # not those of its parameters
        process.submit(policy)
        assert evaluated(process) == []
        assert "the checkpoint is of another network" in process.failure
        process.submit(snapshot(config, 6))
        assert (process.is_busy, process.results()) == (False, [])
    assert process._process.returncode is not None
