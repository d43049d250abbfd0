"""The manual's examples: their terms by hand-computed values, and trainings of both."""

from __future__ import annotations

import json
import math
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


def _run(*command: str, folder: Path) -> str:
    options = {"cwd": folder, "text": True, "timeout": 100}
    done = subprocess.run([sys.executable, *command], capture_output=True, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_trains_by_the_real_command_and_runs_without_simtrain(tmp_path):
    flags = ["--gpu-ids", "None", "--cpu-threads", "1", "--num-envs", "16", "--max-iterations", "2"]
    _run("-m", "simtrain.cli.start", "train", "ball-balance", *flags, folder=tmp_path)
    (run,) = (tmp_path / "logs" / "ball-balance").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["env_steps"] for line in lines] == [384, 768]
    assert all(math.isfinite(line["Loss/value"]) for line in lines)

    assert export([str(run), "--formats", "onnx"]) == 0
    flags = ["--seconds", "0.1", "--target", "0.1", "-0.05"]
    said = _run(str(run / "exported" / "mujoco_robot.py"), *flags, folder=tmp_path)
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
    overrides = {"max_iterations": 40, "log_root": tmp_path, "gpu_ids": None, "cpu_threads": 1}
    run = simtrain.train(simtrain.train_config("level-arm", overrides))
    result = simtrain.evaluate(run, episodes=8).estimates
    assert result["mean_return"].value > 4.0  # of 5
