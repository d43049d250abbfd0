"""Measuring the layers of training on one rank."""

import mujoco.batch
import pytest
import torch
from tiny_task import tiny_env
from tiny_training import ALONE

from simtrain.algorithms.ppo import PPO
from simtrain.benchmark.figures import LAYERS
from simtrain.benchmark.ranks import StoppedError, _bare_physics, measure_layers
from simtrain.training.loop import Trainer


def make_trainer() -> Trainer:
    env = tiny_env(3)
    ppo = PPO(env.cfg.ppo, env.get_observations(), env.num_actions, 4, ALONE)
    return Trainer(env, ppo, ALONE)


def test_every_layer_is_measured_as_often_as_asked_for_after_a_round_to_warm_up():
    trainer = make_trainer()
    trainer._new_warnings = lambda *of_what: ("rollouts run without CUDA graphs",)
    lines: list[str] = []
    seconds = measure_layers(trainer, 2, lambda: False, lines.append)
    assert {layer: len(times) for layer, times in seconds.items()} == dict.fromkeys(LAYERS, 2)
    assert all(time > 0.0 for times in seconds.values() for time in times)
    assert trainer.iteration == 4  # two to warm up
    assert lines == ["warning: rollouts run without CUDA graphs"] * 4


def test_a_signal_ends_it_after_the_block():
    trainer = make_trainer()
    asked: list[None] = []

    def stop() -> bool:
        asked.append(None)
        return len(asked) == 4

    with pytest.raises(StoppedError):
        measure_layers(trainer, 2, stop, print)
    assert trainer.iteration == 2


def test_bare_physics_simulates_the_same_as_the_engine_and_leaves_it_alone(monkeypatch):
    env, batches = tiny_env(3), []
    controls = [torch.randn_like(env.bind("ctrl")) for _ in range(4)]
    start, make_batch = env.sim.state(), mujoco.batch.Batch

    def noted(*args, **kwargs):
        batches.append(make_batch(*args, **kwargs))
        return batches[-1]

    monkeypatch.setattr(mujoco.batch, "Batch", noted)
    physics = _bare_physics(env.sim, start, controls, env.cfg.decimation)
    for _ in range(2):  # each time from the start
        physics(lambda device, block: block())
    assert torch.equal(env.sim.state()["state"], start["state"])
    for control in controls:
        env.bind("ctrl").copy_(control)
        env.sim.step(env.cfg.decimation)
    (batch,) = batches
    torch.testing.assert_close(torch.from_numpy(batch.state.copy()), env.sim.state()["state"])
