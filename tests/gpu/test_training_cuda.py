"""Training on a GPU: nothing in a step or a rollout waits for it, and commands do what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from simtrain.cli.train import train
from simtrain.env.env import Env
from simtrain.errors import ConfigError
from simtrain.launch.rank import Rank
from simtrain.registry import discover
from simtrain.training.ppo import PPO
from simtrain.training.trainer import Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1200),  # the first run on a machine compiles
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TASKS = ["cartpole-swingup", "go1-velocity-flat", "go1-velocity-rough"]
CUDA = torch.device("cuda", 0)


@pytest.fixture
def waiting_fails() -> Iterator[None]:
    """After it was switched on in a test, PyTorch fails instead of waiting; off again after it."""
    yield
    torch.cuda.set_sync_debug_mode("default")


def make_env(task: str) -> Env:
    cfg = discover().find(task).make()
    cfg.episode_length_s = 0.2  # so that resets happen
    return Env(cfg, 64, engine="warp", device=CUDA)


@pytest.mark.parametrize("task", TASKS)
def test_a_step_does_not_wait_for_the_gpu(task: str, waiting_fails) -> None:
    env = make_env(task)
    actions = torch.zeros(64, env.num_actions, device=CUDA)
    with torch.inference_mode():
        for _ in range(4):  # kernels are compiled and graphs captured
            env.step(actions)
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(12):
            observations, *_ = env.step(actions)
        torch.cuda.set_sync_debug_mode("default")
    assert observations["actor"].isfinite().all()
    assert env.sim._graphs.enabled


@pytest.mark.parametrize("task", TASKS)
def test_a_rollout_does_not_wait_for_the_gpu(task: str, waiting_fails) -> None:
    env = make_env(task)
    rank = Rank(0, 0, 1, CUDA, seed=0, threads=1)
    obs = env.get_observations()
    trainer = Trainer(env, PPO(env.cfg.ppo, obs, env.num_actions, 12, rank), rank)
    trainer.run(1, lambda iteration: None, lambda: False)
    torch.cuda.set_sync_debug_mode("error")
    trainer._collect()
    torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(trainer.ppo.storage.returns).all()


@pytest.mark.parametrize("engine", ["warp", "mujoco"])
@pytest.mark.parametrize("deterministic", ["False", "True"])
def test_the_command_trains(engine: str, deterministic: str, tmp_path, capsys) -> None:
    flags = ["--engine", engine, "--deterministic", deterministic, "--log-root", str(tmp_path)]
    flags += ["--gpu-ids", "0", "--num-envs", "64", "--max-iterations", "3"]
    try:
        assert train(["cartpole-balance", *flags]) == 0
    finally:
        torch.use_deterministic_algorithms(False)
    (run,) = (tmp_path / "cartpole-balance").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    told = "physics on CPU threads (--engine mujoco), learning on the GPU"
    assert (told in capsys.readouterr().out) == (engine == "mujoco")


def test_more_environments_than_fit_are_a_mistake_in_the_command(tmp_path) -> None:
    flags = ["--gpu-ids", "0", "--num-envs", "1000000000", "--log-root", str(tmp_path)]
    with pytest.raises(ConfigError, match=r"use --num-envs \d+ or fewer"):
        train(["cartpole-balance", *flags])
