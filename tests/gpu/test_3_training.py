"""Training on a GPU: nothing in a step or a rollout waits for it, and commands do what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch

from simtrain import RewardTermCfg, TaskCfg
from simtrain.algorithms.ppo import PPO
from simtrain.cli import train as command
from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.errors import ConfigError
from simtrain.launch.rank import Rank
from simtrain.sim import EngineCfg
from simtrain.sim.cuda_graphs import CudaGraphs, RefusedError
from simtrain.training.loop import Iteration, Trainer

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


def make_env(task: str | TaskCfg, *, deterministic: bool = False) -> Env:
    cfg = discover().find(task).make() if isinstance(task, str) else task
    cfg.episode_length_s = 0.2  # so that resets happen
    return Env(cfg, 64, EngineCfg("warp", CUDA, deterministic=deterministic))


def make_trainer(task: str | TaskCfg, *, graphs: bool, deterministic: bool = False) -> Trainer:
    torch.manual_seed(0)
    env = make_env(task, deterministic=deterministic)
    rank = Rank(0, 0, 1, CUDA, seed=0, threads=1)
    ppo = PPO(env.cfg.ppo, env.get_observations(), env.num_actions, 12, rank)
    return Trainer(env, ppo, rank, graphs=CudaGraphs(CUDA) if graphs else None)


def train(trainer: Trainer, iterations: int) -> tuple[Trainer, list[str]]:
    """The trainer, and what it warned of."""
    found: list[Iteration] = []
    trainer.run(iterations, found.append, lambda: False)
    return trainer, [text for iteration in found for text in iteration.warnings]


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
    assert env.sim.graphs.enabled


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("task", TASKS)
def test_a_rollout_does_not_wait_for_the_gpu(task: str, graphs: bool, waiting_fails) -> None:
    trainer = make_trainer(task, graphs=graphs)
    warnings = train(trainer, 2)[1]
    assert warnings == []
    torch.cuda.set_sync_debug_mode("error")
    trainer.collect()
    torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(trainer.ppo.storage.returns).all()
    assert (trainer._graphs is not None) == graphs


@pytest.mark.parametrize("task", ["cartpole-balance", *TASKS])
def test_training_by_graphs_is_training_eagerly(task: str) -> None:
    """With physics whose sums have a fixed order, or chance would set them apart."""
    (eager, _), (graphed, warnings) = (
        train(make_trainer(task, graphs=graphs, deterministic=True), 3) for graphs in (False, True)
    )
    assert warnings == []
    for mine, theirs in zip(graphed.ppo.tensors(), eager.ppo.tensors(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-3)
    for name in ("observations", "actions", "rewards", "dones", "returns"):
        mine, theirs = (getattr(t.ppo.storage, name) for t in (graphed, eager))
        for one, other in (
            zip(mine.values(), theirs.values(), strict=True)
            if name == "observations"
            else [(mine, theirs)]
        ):
            near = torch.isclose(one.float(), other.float(), rtol=1e-2, atol=1e-2)
            assert near.float().mean() > 0.98, name


def test_a_waiting_term_is_refused_and_the_random_generator_goes_on(waiting_fails) -> None:
    cfg = discover().find("cartpole-balance").make()
    cfg.rewards["waits"] = RewardTermCfg(
        lambda env: torch.full((env.num_envs,), env.bind("qpos").sum().item(), device=CUDA),
        weight=0.0,
    )
    trainer = make_trainer(cfg, graphs=True)
    (warning,) = train(trainer, 2)[1]
    assert "in the term rewards.waits" in warning
    with pytest.raises(RefusedError, match="capturing"):
        CudaGraphs(CUDA).capture(lambda: torch.rand(3, device=CUDA).sum().item())
    assert torch.rand(1000, device=CUDA).std() > 0.1
    total = torch.zeros((), device=CUDA)
    captured = CudaGraphs(CUDA).capture(lambda: total.add_(1.0))
    for _ in range(3):
        captured.replay()
    assert total.item() == 3.0


@pytest.mark.parametrize("engine", ["warp", "mujoco"])
@pytest.mark.parametrize("deterministic", ["False", "True"])
def test_the_command_trains(engine: str, deterministic: str, tmp_path, capsys) -> None:
    flags = ["--engine", engine, "--deterministic", deterministic, "--log-root", str(tmp_path)]
    flags += ["--gpu-ids", "0", "--num-envs", "64", "--max-iterations", "3"]
    try:
        assert command.train(["cartpole-balance", *flags]) == 0
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
        command.train(["cartpole-balance", *flags])
