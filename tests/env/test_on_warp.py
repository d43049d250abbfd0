"""The same task on both engines, and nothing in a step that would wait for a GPU."""

from typing import Any

import pytest
import torch
from machine import everything
from waiting import RefuseWaiting

from simtrain.config.tasks import discover
from simtrain.env.cfg import TaskCfg
from simtrain.env.env import Env
from simtrain.sim import EngineCfg

pytestmark = pytest.mark.usefixtures("fast_compilation")


@pytest.fixture(params=["cartpole-swingup", "all kinds of actions and actuators"])
def task(request, tmp_path) -> TaskCfg:
    if request.param.startswith("cartpole"):
        return discover().find(request.param).make()
    return everything(tmp_path, drawn=False)


def test_the_refusal_sees_what_it_should() -> None:
    flags = torch.tensor([True, False])
    for wait in (
        lambda: bool(flags.any()),
        lambda: flags.nonzero(),
        lambda: flags[flags],
        lambda: torch.tensor([1.0, 2.0]),
    ):
        with RefuseWaiting(), pytest.raises(AssertionError, match="waits"):
            wait()


@pytest.mark.parametrize("engine", ["mujoco", "warp"])
def test_a_step_does_not_wait_for_the_device(task: TaskCfg, engine: Any) -> None:
    task.episode_length_s = 0.1  # so that resets happen
    env = Env(task, 4, EngineCfg(engine, threads=1))
    actions = torch.zeros(4, env.num_actions)
    env.step(actions)
    with torch.inference_mode(), RefuseWaiting():
        for _ in range(6):
            env.step(actions)
    assert env.undeclared_changes() == []


def test_a_task_is_the_same_on_both_engines(task: TaskCfg) -> None:
    exact, single = (Env(task, 8, EngineCfg(name, threads=1)) for name in ("mujoco", "warp"))
    for field in ("qpos", "qvel"):
        single.sim.write(field, exact.bind(field))
    single.sim.forward()
    generator = torch.Generator().manual_seed(0)
    for step in range(15 if "machine" in str(task.model) else 100):
        actions = torch.randn(8, exact.num_actions, generator=generator).clamp(-2.0, 2.0)
        obs, rewards, dones, _ = exact.step(actions)
        other_obs, other_rewards, other_dones, _ = single.step(actions)
        where = f"at step {step}: "
        torch.testing.assert_close(
            other_obs["actor"], obs["actor"], rtol=1e-3, atol=1e-3, msg=lambda m, w=where: w + m
        )
        torch.testing.assert_close(other_rewards, rewards, rtol=1e-3, atol=1e-3)
        assert torch.equal(dones, other_dones)
    assert obs["actor"].std(dim=0).min() > 1e-3
