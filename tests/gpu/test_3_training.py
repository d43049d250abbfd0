"""Training on a GPU: nothing in a step or a rollout waits for it, and commands do what they say."""

import json
from pathlib import Path

import pytest
import torch
from gpu_or_cpu import DEVICE, ENVS, GPU_FLAGS, HAS_GPU, MARKS, graph_backend, no_waiting, warp
from tiny_training import run_for

from simtrain import RewardTermCfg, TaskCfg
from simtrain.algorithms.networks import make_actor
from simtrain.algorithms.ppo import PPO
from simtrain.cli import train as command
from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.env.model import evaluation_task
from simtrain.errors import ConfigError
from simtrain.launch.rank import Rank
from simtrain.sim.cuda_graphs import RefusedError
from simtrain.sim.warp_engine import WarpEngine
from simtrain.training.evaluator import Evaluation, Evaluator
from simtrain.training.loop import Trainer

pytestmark = MARKS

TASKS = ["cartpole-swingup"]
if HAS_GPU:  # without one, compiling takes minutes; tests/dry_gpu has all tasks
    TASKS += ["go1-velocity-flat", "go1-velocity-rough"]
# MuJoCo Warp does not sort contacts: those with a height field, many at a time, set runs apart.
REPEATABLE = [task for task in TASKS if not task.endswith("rough")]


def make_trainer(task: str | TaskCfg, *, graphs: bool, deterministic: bool = False) -> Trainer:
    torch.manual_seed(0)
    cfg = discover().find(task).make() if isinstance(task, str) else task
    cfg.episode_length_s = 0.2  # so that resets happen
    env = Env(cfg, ENVS, warp(deterministic=deterministic))
    rank = Rank(0, 0, 1, DEVICE, seed=0, threads=1)
    ppo = PPO(env.cfg.ppo, env.get_observations(), env.num_actions, 12, rank)
    backend = graph_backend(env)
    return Trainer(env, ppo, rank, graphs=backend if graphs else None)


def warnings(trainer: Trainer, iterations: int) -> list[str]:
    """What `trainer` warned of while it trained."""
    return [text for iteration in run_for(trainer, iterations) for text in iteration.warnings]


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("task", TASKS)
def test_a_rollout_does_not_wait_for_the_device(task: str, graphs: bool) -> None:
    trainer = make_trainer(task, graphs=graphs)
    assert warnings(trainer, 2) == []
    with no_waiting():
        trainer.collect()
    assert torch.isfinite(trainer.ppo.storage.returns).all()
    engine = trainer.env.sim
    assert isinstance(engine, WarpEngine)
    assert engine.graphs.enabled


@pytest.mark.parametrize("task", ["cartpole-balance", *REPEATABLE])
def test_training_by_graphs_is_training_eagerly(task: str) -> None:
    """With physics whose sums have a fixed order, or chance would set them apart."""
    eager, graphed = (make_trainer(task, graphs=g, deterministic=True) for g in (False, True))
    for trainer in (eager, graphed):
        torch.manual_seed(1)
        assert warnings(trainer, 3) == []
    for mine, theirs in zip(graphed.ppo.tensors(), eager.ppo.tensors(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-3)
    for name in ("observations", "actions", "rewards", "dones", "returns"):
        mine, theirs = (getattr(t.ppo.storage, name) for t in (graphed, eager))
        for group in mine.keys() if name == "observations" else [...]:
            one, other = mine[group].float(), theirs[group].float()
            near = torch.isclose(one, other, rtol=1e-2, atol=1e-2)
            assert near.float().mean() > 0.98, name


def evaluations(task: str, *, graphs: bool) -> list[Evaluation]:
    """Two evaluations of a policy; with `graphs` by a graph from the 32nd step of the first on."""
    cfg = evaluation_task(discover().find(task).make())
    cfg.episode_length_s = 60 * cfg.timestep * cfg.decimation
    evaluator = Evaluator(cfg, ENVS, engine=warp(deterministic=True))
    backend = graph_backend(evaluator.env)
    evaluator._backend = backend if graphs else None
    torch.manual_seed(0)
    actor = make_actor(cfg.ppo.actor, evaluator.env.get_observations(), evaluator.env.num_actions)
    results = [evaluator(cfg.ppo.actor, actor.state_dict()) for _ in range(2)]
    return [result for result in results if result is not None]


@pytest.mark.parametrize("task", REPEATABLE)
def test_an_evaluation_by_a_graph_is_one_without_it(task: str) -> None:
    for eager, graphed in zip(*(evaluations(task, graphs=g) for g in (False, True)), strict=True):
        assert graphed.warnings == eager.warnings
        for name, estimate in eager.estimates.items():
            assert graphed.estimates[name].value == pytest.approx(
                estimate.value, rel=0.02, abs=0.02
            )


def test_a_waiting_term_is_refused_and_the_random_generator_goes_on() -> None:
    cfg = discover().find("cartpole-balance").make()
    cfg.rewards["waits"] = RewardTermCfg(
        lambda env: torch.full((env.num_envs,), env.bind("qpos").sum().item(), device=DEVICE),
        weight=0.0,
    )
    (warning,) = warnings(make_trainer(cfg, graphs=True), 2)
    assert "in the term rewards.waits" in warning
    backend = graph_backend()
    with pytest.raises(RefusedError, match="capturing"):
        backend.capture(lambda: torch.rand(3, device=DEVICE).sum().item())
    assert torch.rand(1000, device=DEVICE).std() > 0.1
    total = torch.zeros((), device=DEVICE)
    captured = backend.capture(lambda: total.add_(1.0))
    total.zero_()
    for _ in range(3):
        captured.replay()
    assert total.item() == 3.0


@pytest.mark.parametrize("engine", ["warp", "mujoco"])
@pytest.mark.parametrize("deterministic", ["False", "True"])
def test_the_command_trains(engine: str, deterministic: str, tmp_path: Path, capsys) -> None:
    flags = ["--engine", engine, "--deterministic", deterministic, "--log-root", str(tmp_path)]
    flags += [*GPU_FLAGS, "--num-envs", str(ENVS), "--max-iterations", "3"]
    try:
        assert command.train(["cartpole-balance", *flags]) == 0
    finally:
        torch.use_deterministic_algorithms(False)
    (run,) = (tmp_path / "cartpole-balance").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["iteration"] for line in lines] == [1, 2, 3]
    text = "physics on CPU threads (--engine mujoco), learning on the GPU"
    assert (text in capsys.readouterr().out) == (HAS_GPU and engine == "mujoco")


def test_more_environments_than_fit_are_a_mistake_in_the_command(tmp_path: Path) -> None:
    flags = [*GPU_FLAGS, "--num-envs", str(2**24), "--log-root", str(tmp_path)]
    with pytest.raises(ConfigError, match=r"environments.* use .*--num-envs"):
        command.train(["cartpole-balance", *flags])
