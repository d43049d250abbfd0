"""Timing phases on a GPU, and the benchmark there."""

from __future__ import annotations

import json
import time

import pytest
import torch

from simtrain.algorithms.ppo import PPO
from simtrain.cli.benchmark import benchmark
from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.launch.phase_timer import CudaTimer, make_timer
from simtrain.launch.rank import Rank
from simtrain.sim import EngineCfg
from simtrain.sim.cuda_graphs import CudaGraphs
from simtrain.training.loop import Iteration, Trainer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(1200),  # the first run on a machine compiles
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CUDA = torch.device("cuda", 0)


def test_a_phase_lasts_as_long_as_the_device_works_on_it():
    timer = make_timer(CUDA)
    assert isinstance(timer, CudaTimer)
    work = torch.randn(4096, 4096, device=CUDA)
    (work @ work).sum().item()  # the first time loads libraries
    for _ in range(2):  # events are used again
        timer.take("idle")
        timer.begin("work")
        for _ in range(20):
            work @ work
        timer.begin("little work")
        work @ work
        (idle, much, little) = timer.take("after")
        assert [idle[0], much[0], little[0]] == ["idle", "work", "little work"]
        assert much[1] > 5.0 * little[1] > 0.0
    assert [phase for phase, _ in timer.take("end")] == ["after"]


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("engine", ["warp", "mujoco"])
def test_phases_add_up_to_the_iteration_within_3_percent(engine, graphs):
    device = CUDA if engine == "warp" else torch.device("cpu")
    timer = make_timer(CUDA)
    cfg = discover().find("cartpole-balance").make()
    env = Env(cfg, 256, EngineCfg(engine, device), timer=timer)
    rank = Rank(0, 0, 1, CUDA, seed=0, threads=1)
    obs = env.get_observations().to(CUDA)
    ppo = PPO(env.cfg.ppo, obs, env.num_actions, 16, rank, timer)
    trainer = Trainer(env, ppo, rank, timer, CudaGraphs(CUDA) if graphs else None)
    ends: list[float] = []
    found: list[Iteration] = []

    def report(iteration: Iteration) -> None:
        ends.append(time.perf_counter())
        found.append(iteration)

    trainer.run(12, report, lambda: False)
    timed = sum(sum(iteration.phases.values()) for iteration in found[1:])
    assert timed == pytest.approx(ends[-1] - ends[0], rel=0.03)
    steps = {"rollout_graph"} if graphs and engine == "warp" else {"physics", "inference"}
    some = steps | ({"update_graph"} if graphs else {"backward", "optimizer"})
    others = {"rollout_graph", "physics", "update_graph", "backward"} - some
    assert all(found[-1].phases[name] > 0.0 for name in some)
    assert not any(found[-1].phases[name] for name in others)


def test_noting_a_phase_does_not_wait_for_the_gpu():
    timer = CudaTimer()
    timer.take("before")
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            timer.begin("phase")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(timer.take("after")) == 11


def test_the_benchmark_measures_both_engines(tmp_path, capsys):
    path = tmp_path / "benchmark.json"
    flags = ["--num-envs", "64", "--engine", "warp", "mujoco", "--repetitions", "2"]
    assert benchmark(["cartpole-balance", *flags, "--json", str(path)]) == 0
    content = json.loads(path.read_text())
    assert {(f["engine"], f["device"]) for f in content["figures"]} == {
        ("warp", "cuda"),
        ("mujoco", "cuda"),
    }
    assert content["machine"]["device"] == torch.cuda.get_device_name(CUDA)
    assert path.with_suffix(".png").exists()
