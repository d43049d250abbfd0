"""What a second rank brings: two CPU ranks of one thread each against one rank of one thread.

  uv run python benchmarks/weak_scaling.py [task] [--iterations 40] [--num-envs 256] [--repeats 3]

Both sides run the same number of environments on each rank, one after the other and in turns, for
other load on the machine moves the figures: compare within one run only. A core is needed for each
rank. Also measured is what averaging the gradients costs: the time of the collective alone when
both ranks are at it, and in place, where it includes waiting for the slower rank.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from simtrain.config import TrainConfig
from simtrain.launch.job import plan_job
from simtrain.launch.launcher import launch_ranks
from simtrain.launch.rank import Rank
from simtrain.registry import discover

WARM_UP = 3


@dataclass(frozen=True)
class Measured:
    steps_per_second: float
    iteration_s: float
    averaging_alone_s: float
    """Of an iteration."""
    averaging_in_place_s: float
    cpu_us_a_step: float
    """Time on a core for each environment step; other load moves it less."""


@dataclass(frozen=True)
class TimedRank(Rank):
    """Notes how long collectives on the gradients take."""

    gradients: list[float] = dataclasses.field(default_factory=list)

    def all_reduce(self, tensor: Tensor, op: Any = torch.distributed.ReduceOp.SUM) -> Tensor:
        start = time.perf_counter()
        Rank.all_reduce(self, tensor, op)
        if tensor.numel() > 1000:
            self.gradients.append(time.perf_counter() - start)
        return tensor


def measure(
    rank: Rank,
    show: Callable[[object], None],
    stop: Callable[[], bool],
    task: str,
    num_envs: int,
    iterations: int,
) -> dict[str, float]:
    from simtrain.env.env import Env
    from simtrain.training.ppo import PPO
    from simtrain.training.trainer import Iteration, Trainer

    cfg = discover().find(task).make()
    timed = TimedRank(**{f.name: getattr(rank, f.name) for f in dataclasses.fields(Rank)})
    timed.seed_everything()
    env = Env(cfg, num_envs, threads=1)
    ppo = PPO(cfg.ppo, env.get_observations(), env.num_actions, cfg.num_steps_per_env, timed)
    per_second: list[float] = []
    cpu: list[float] = []

    def note(iteration: Iteration) -> None:
        if iteration.number <= WARM_UP:
            timed.gradients.clear()
            cpu[:] = [time.process_time()]
        else:
            per_second.append(iteration.metrics["Perf/total_fps"])

    Trainer(env, ppo, timed).run(WARM_UP + iterations, note, stop)
    cpu.append(time.process_time())
    in_place = sum(timed.gradients) / iterations
    times = []
    for _ in range(200):
        rank.gather([0.0])  # start together
        start = time.perf_counter()
        rank.all_reduce(ppo.gradients.buffer)
        times.append(time.perf_counter() - start)
    batches = cfg.ppo.num_learning_epochs * cfg.ppo.num_mini_batches
    speed = statistics.median(per_second)
    return {
        "steps_per_second": speed,
        "iteration_s": num_envs * cfg.num_steps_per_env * rank.world_size / speed,
        "averaging_alone_s": statistics.median(times) * batches,
        "averaging_in_place_s": in_place,
        "cpu_us_a_step": 1e6 * (cpu[1] - cpu[0]) / (iterations * num_envs * cfg.num_steps_per_env),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("task", nargs="?", default="cartpole-balance")
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    flags = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # for the ranks, as the train command

    config = TrainConfig.of_task(flags.task, discover().find(flags.task).make())
    config.gpu_ids, config.cpu_threads = None, 1
    # So named, the machine runs also a single rank in a process of its own.
    config.hosts = ("localhost",)
    print(f"{flags.task}, {flags.num_envs} environments on each rank, one thread each")
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    by_ranks: dict[int, list[Measured]] = {1: [], 2: []}
    for _ in range(flags.repeats):
        for ranks, measured in by_ranks.items():
            config.cpu_workers = ranks
            found = launch_ranks(
                plan_job(config),
                measure,
                flags.task,
                flags.num_envs,
                flags.iterations,
                receive=print,
                stop=lambda: False,
                log_dir="",
            )
            measured.append(Measured(**found))
            print(f"  {ranks} rank(s): {measured[-1].steps_per_second:,.0f} steps/s")
    one, two = (max(m.steps_per_second for m in by_ranks[n]) for n in (1, 2))
    print(f"best of {flags.repeats}: {one:,.0f} and {two:,.0f} steps/s, ratio {two / one:.2f}")
    one, two = (min(m.cpu_us_a_step for m in by_ranks[n]) for n in (1, 2))
    print(f"time on a core: {one:.1f} and {two:.1f} us a step; alone on two cores that is a ratio")
    print(f"of at most {2 * one / two:.2f}")
    best = max(by_ranks[2], key=lambda m: m.steps_per_second)
    for name, seconds in (
        ("alone", best.averaging_alone_s),
        ("in place, waiting included", best.averaging_in_place_s),
    ):
        share = seconds / best.iteration_s
        print(f"averaging gradients, {name}: {1e3 * seconds:.1f} ms, {share:.1%} of an iteration")


if __name__ == "__main__":
    main()
