"""The Control Suite's tasks against what dm_control says of them (`benchmarks/dmc_oracle.py`)."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

import simtrain
from simtrain.config.tasks import discover
from simtrain.errors import ConfigError

ORACLE = dict(np.load(Path(__file__).with_name("dmc_oracle.npz")))
NAMES = sorted({key.split("/")[0] for key in ORACLE})
WITHOUT_CONTACTS = (
    *("cartpole-balance", "cartpole-swingup", "cartpole-swingup_sparse", "fish-upright"),
    *("fish-swim", "pendulum-swingup", "point_mass-easy", "reacher-easy", "reacher-hard"),
    "swimmer-swimmer6",
)
needs_dm_control = pytest.mark.skipif(
    importlib.util.find_spec("dm_control") is None, reason="uv sync --extra dmc"
)


@cache
def _env(name: str, num_envs: int):
    env = simtrain.make_env(f"dmc-{name}", num_envs=num_envs)
    env.reset()
    return env


def _recorded(name: str, key: str) -> torch.Tensor:
    return torch.as_tensor(ORACLE[f"{name}/{key}"])


def _put(env, name: str, rows: slice, target: torch.Tensor) -> None:
    """Put recorded states, without a memory of the last contacts."""
    for field in ("qpos", "qvel", "act"):
        values = _recorded(name, field)[rows]
        if values.numel():
            env.sim.write(field, values)
    env.sim.write("qacc_warmstart", 0.0)
    if env.model.nmocap:
        env.sim.write("mocap_pos", target.reshape(-1, 1, 3))
    env.sim.forward()


def _actions(env, controls: torch.Tensor) -> torch.Tensor:
    low, high = torch.as_tensor(env.model.actuator_ctrlrange, dtype=torch.float32).unbind(1)
    return (controls - (high + low) / 2.0) / ((high - low) / 2.0)


@needs_dm_control
@pytest.mark.parametrize("name", NAMES)
def test_observations_and_rewards_are_the_suites(name):
    observed, action = _recorded(name, "observation"), _recorded(name, "action")
    env = _env(name, len(observed))
    _put(env, name, slice(None), _recorded(name, "target"))
    observations, reward, *_ = env.step(_actions(env, action))
    torch.testing.assert_close(observations["actor"], observed, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(reward, _recorded(name, "reward"), rtol=1e-5, atol=1e-5)
    assert reward.max() > 1e-4


@needs_dm_control
@pytest.mark.parametrize("name", WITHOUT_CONTACTS)
def test_the_same_actions_lead_to_the_same_return_and_place(name):
    env = _env(name, 1)
    env.reset()
    start = int(ORACLE[f"{name}/start"])
    _put(env, name, slice(start, start + 1), _recorded(name, "return_target"))
    phases, total = torch.arange(env.num_actions), 0.0
    for step in range(999):
        _, reward, *_ = env.step(torch.sin(0.1 * step + phases).unsqueeze(0))
        total += float(reward)
    assert total == pytest.approx(float(ORACLE[f"{name}/return"]), rel=1e-3, abs=1e-3)
    final = env.bind("qpos")[0]
    torch.testing.assert_close(final, _recorded(name, "final"), rtol=0.0, atol=0.01)


@needs_dm_control
@pytest.mark.parametrize("name", NAMES)
def test_starts_are_distributed_as_the_suites(name):
    env = _env(name, 1000)
    env.reset()
    targets = env.bind("mocap_pos").unbind(1)
    away = [target[:, :2].norm(dim=1, keepdim=True) for target in targets]
    parts = [env.bind("qpos"), env.bind("qvel"), *targets, *away]
    starts = torch.cat(parts, dim=1)
    quantiles = _recorded(name, "starts")[:, : starts.shape[1]]
    for place, expected in enumerate(quantiles.unbind(1)):
        values = starts[:, place].contiguous()
        if expected[-1] - expected[0] < 1e-5:
            assert torch.allclose(values, expected[0], atol=1e-5), place
        else:
            below = (values.unsqueeze(1) <= expected).float().mean(dim=0)
            wanted = torch.tensor((0.1, 0.25, 0.5, 0.75, 0.9))
            torch.testing.assert_close(below, wanted, rtol=0.0, atol=0.12, msg=f"{place}")


def test_without_dm_control_a_task_says_what_it_needs(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "dm_control" else find(n, *a)
    )
    found = discover()
    assert not any(name.startswith("dmc-") for name in found.tasks)
    with pytest.raises(ConfigError, match="needs the package dm_control, which `uv sync --extra"):
        found.find("dmc-walker-walk")
