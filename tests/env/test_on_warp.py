"""The same task on both engines, and nothing in a step that would wait for a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from waiting import RefuseWaiting

from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.sim import EngineCfg

pytestmark = [pytest.mark.usefixtures("fast_compilation"), pytest.mark.timeout(600)]


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
@pytest.mark.parametrize("task", ["cartpole-balance", "cartpole-swingup"])
def test_a_step_does_not_wait_for_the_device(task: str, engine: Any) -> None:
    cfg = discover().find(task).make()
    cfg.episode_length_s = 0.2  # so that resets happen
    env = Env(cfg, 4, EngineCfg(engine, threads=1))
    actions = torch.zeros(4, env.num_actions)
    env.step(actions)
    with torch.inference_mode(), RefuseWaiting():
        for _ in range(6):
            env.step(actions)


def test_cartpole_is_the_same_task_on_both_engines() -> None:
    cfg = discover().find("cartpole-swingup").make()
    exact = Env(cfg, 8, EngineCfg("mujoco", threads=1))
    single = Env(cfg, 8, EngineCfg("warp"))
    for field in ("qpos", "qvel"):
        single.sim.write(field, exact.bind(field))
    single.sim.forward()
    generator = torch.Generator().manual_seed(0)
    for step in range(100):
        actions = torch.empty(8, 1).uniform_(-1.0, 1.0, generator=generator)
        obs, rewards, dones, _ = exact.step(actions)
        other_obs, other_rewards, other_dones, _ = single.step(actions)
        where = f"at step {step}: "
        torch.testing.assert_close(
            other_obs["actor"], obs["actor"], rtol=1e-3, atol=1e-3, msg=lambda m, w=where: w + m
        )
        torch.testing.assert_close(other_rewards, rewards, rtol=1e-3, atol=1e-3)
        assert torch.equal(dones, other_dones)
