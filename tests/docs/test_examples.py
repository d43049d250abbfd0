"""The manual's examples: their terms by hand-computed values, and trainings of both."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import simtrain
from simtrain.cli.export import export
from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.sim import EngineCfg

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.fixture(autouse=True)
def _examples(monkeypatch) -> None:
    monkeypatch.setenv("SIMTRAIN_TASKS", str(EXAMPLES))


@pytest.fixture
def env() -> Env:
    cfg = discover().find("ball-balance").make()
    del cfg.events["push"]
    return Env(cfg, 4, EngineCfg(threads=1))


def _put_ball(env: Env, x: torch.Tensor, z: float = 0.54) -> None:
    place = torch.stack((x, torch.zeros(len(x)), torch.full((len(x),), z)), dim=1)
    env.sim.write("qpos", place, index=slice(2, 5))
    env.sim.forward()


def _train(task: str, folder: Path, **overrides: int) -> Path:
    of_all = {"log_root": folder, "gpu_ids": None, "cpu_threads": 1}
    return simtrain.train(simtrain.train_config(task, {**of_all, **overrides}))


def test_the_ball_s_policy_runs_without_simtrain(tmp_path):
    run = _train("ball-balance", tmp_path, num_envs=16, max_iterations=2)
    assert export([str(run), "--formats", "onnx"]) == 0
    command = [sys.executable, str(run / "exported" / "mujoco_robot.py"), "--seconds", "0.1"]
    command += ["--target", "0.1", "-0.05"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout
    assert re.fullmatch(r"qpos \[[-. 0-9]+\]\n", said)


def test_the_policy_sees_how_far_the_ball_moved_but_not_across_a_reset(env):
    term = env.make_term("seen", env.cfg.observations["actor"]["ball_vel"].func, {})
    _put_ball(env, torch.zeros(4))
    assert not term(env).any()
    _put_ball(env, torch.full((4,), 0.01))
    env._reset_declared(torch.tensor([False, False, False, True]))
    seen = term(env)
    torch.testing.assert_close(seen[:, 0], torch.tensor([0.5, 0.5, 0.5, 0.0]))


def test_the_reward_is_1_at_the_target_and_less_by_e_at_a_distance_of_std(env):
    term = env.cfg.rewards["near_target"]
    env.command("target").zero_()
    _put_ball(env, torch.tensor([0.0, 0.07, -0.07, 0.14]))
    expected = torch.tensor([0.0, -1.0, -1.0, -4.0]).exp()
    torch.testing.assert_close(term.func(env, **term.params), expected)


def test_a_ball_below_the_plate_ends_the_episode_as_failed(env):
    _put_ball(env, torch.tensor([0.0, 0.0, 0.4, 0.0]), z=0.3)
    env.sim.reset(torch.tensor([True, True, False, True]))
    env.step(torch.zeros(4, 2))
    assert env.terminations.terminated.tolist() == [False, False, True, False]


def test_the_readme_shows_the_arm_which_is_held_level_after_training(tmp_path):
    code = (EXAMPLES / "level_arm" / "level_arm.py").read_text()
    assert code in (EXAMPLES.parents[1] / "README.md").read_text()
    run = _train("level-arm", tmp_path, max_iterations=40)
    result = simtrain.evaluate(run, episodes=8).estimates
    assert result["mean_return"].value > 4.0  # of 5
