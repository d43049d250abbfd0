"""Timing phases on a GPU, or without one on the CPU, and the benchmark there."""

import json
import time

import pytest
import torch
from gpu_or_cpu import DEVICE, ENVS, HAS_GPU, MARKS, graph_backend, no_waiting
from tiny_training import run_for

from simtrain.algorithms.ppo import PPO
from simtrain.cli.benchmark import benchmark
from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.launch.phase_timer import make_timer
from simtrain.launch.rank import Rank
from simtrain.sim import EngineCfg
from simtrain.training.features import Feature, Iteration
from simtrain.training.loop import Trainer

pytestmark = MARKS


def test_a_phase_lasts_as_long_as_the_device_works_on_it():
    timer = make_timer(DEVICE)
    size = 4096 if HAS_GPU else 512
    work = torch.randn(size, size, device=DEVICE)
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
        assert much[1] > little[1] * (5.0 if HAS_GPU else 1.0) > 0.0
    assert [phase for phase, _ in timer.take("end")] == ["after"]


class Ends(Feature):
    """Notes when iterations end."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def after_iteration(self, iteration: Iteration) -> None:
        self.times.append(time.perf_counter())


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("engine", ["warp", "mujoco"])
def test_phases_add_up_to_the_iteration_within_3_percent(engine, graphs):
    device = DEVICE if engine == "warp" else torch.device("cpu")
    timer = make_timer(DEVICE)
    cfg = discover().find("cartpole-balance").make()
    env = Env(cfg, 4 * ENVS, EngineCfg(engine, device), timer=timer)
    rank = Rank(0, 0, 1, DEVICE, seed=0, threads=1)
    obs = env.get_observations().to(DEVICE)
    ppo = PPO(env.cfg.ppo, obs, env.num_actions, 16, rank, timer)
    backend = graph_backend(env if engine == "warp" else None)
    ends = Ends()
    iterations = run_for(Trainer(env, ppo, rank, timer, backend if graphs else None), 12, ends)
    timed = sum(sum(iteration.phases.values()) for iteration in iterations[1:])
    if HAS_GPU:  # a machine with other work is no clock
        assert timed == pytest.approx(ends.times[-1] - ends.times[0], rel=0.03)
    steps = {"rollout_graph"} if graphs and engine == "warp" else {"physics", "inference"}
    some = steps | ({"update_graph"} if graphs else {"backward", "optimizer"})
    others = {"rollout_graph", "physics", "update_graph", "backward"} - some
    assert all(iterations[-1].phases[name] > 0.0 for name in some)
    assert not any(iterations[-1].phases[name] for name in others)


def test_noting_a_phase_does_not_wait_for_the_device():
    timer = make_timer(DEVICE)
    timer.take("before")
    with no_waiting():
        for _ in range(10):
            timer.begin("phase")
    assert len(timer.take("after")) == 11


def test_the_benchmark_measures_both_engines(tmp_path, capsys):
    path = tmp_path / "benchmark.json"
    flags = ["--num-envs", str(ENVS), "--engine", "warp", "mujoco", "--repetitions", "2"]
    assert benchmark(["cartpole-balance", *flags, "--json", str(path)]) == 0
    content = json.loads(path.read_text())
    measured = {(f["engine"], f["device"]) for f in content["figures"]}
    assert measured == {("warp", DEVICE.type), ("mujoco", DEVICE.type)}
    if HAS_GPU:
        assert content["machine"]["device"] == torch.cuda.get_device_name(DEVICE)
    assert path.with_suffix(".png").exists()
