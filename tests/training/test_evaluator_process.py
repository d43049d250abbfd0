"""A real process that evaluates policies of the cart-pole."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from simtrain.algorithms.networks import make_actor
from simtrain.config import TrainConfig
from simtrain.env.env import Env
from simtrain.env.model import evaluation_task
from simtrain.launch.devices import Devices
from simtrain.registry import discover
from simtrain.sim import EngineCfg
from simtrain.training.evaluator import Evaluator
from simtrain.training.features.evaluator_process import Candidate, EvaluatorProcess


@pytest.fixture
def config() -> TrainConfig:
    config = TrainConfig.of_task("cartpole-balance", discover().find("cartpole-balance").make())
    config.env.episode_length_s = 1.0
    config.eval_episodes = 3
    return config


@pytest.fixture
def process(config) -> Iterator[EvaluatorProcess]:
    process = EvaluatorProcess(config, Devices("cpu", 1, ""), threads=1)
    yield process
    process.close()
    assert process._process.returncode is not None


def candidate(config: TrainConfig, iteration: int) -> Candidate:
    torch.manual_seed(iteration)
    obs = Env(config.env, 1, EngineCfg(threads=1)).get_observations()
    networks = {"actor_state_dict": make_actor(config.ppo.actor, obs, 1).state_dict()}
    return Candidate(iteration, networks, {})


def test_it_takes_the_newest_policy_and_finds_what_this_process_finds(config, process):
    """The first ones come while it is not ready yet."""
    for iteration in (1, 2, 3):
        process.submit(candidate(config, iteration))
    assert process.results() == []
    assert process.finish(lambda: False, seconds=100.0)
    ((judged, evaluation),) = process.results()
    assert judged.iteration == 3
    here = Evaluator(
        evaluation_task(config.env), config.ppo.actor, 3, engine=EngineCfg("mujoco", threads=1)
    )
    assert evaluation == here(judged.networks["actor_state_dict"])

    process.submit(candidate(config, 4))
    assert process.finish(lambda: False, seconds=100.0)
    ((judged, _),) = process.results()
    assert judged.iteration == 4
    assert process.failure is None


def test_waiting_for_it_ends_when_asked_to_and_after_its_time(config, process):
    process.submit(candidate(config, 1))
    assert not process.finish(lambda: True)
    assert not process.finish(lambda: False, seconds=0.0)


def test_a_mistake_that_it_finds_is_told(config, process):
    config.ppo.actor.hidden_dims = (7,)  # not what the process was started with
    process.submit(candidate(config, 1))
    assert not process.finish(lambda: False, seconds=100.0)
    assert "the checkpoint is of another network" in process.failure
    process.submit(candidate(config, 2))
    assert process.results() == []
