"""What a second rank brings: two CPU ranks of one thread each against one rank of one thread.

  uv run python benchmarks/weak_scaling.py [task] [--num-envs 256] [--blocks 12] [--iterations 10]

Prints one JSON line. One rank, two ranks, and two ranks that do not average their gradients take
turns in short blocks within one job, each rank with the same number of environments: other load on
the machine moves the figures, and only blocks beside each other compare. A core is needed for each
rank. While one rank is measured the other sleeps.

What averaging the gradients costs is measured in two ways, as a share of an iteration:
``averaging_share`` adds up the time in the all-reduce calls, of that rank at each call which came
last and waited for nobody; ``averaging_and_waiting_share`` is what an iteration takes longer than
without averaging, so that it counts the waits for the slower rank at each mini-batch as well.
"""

from __future__ import annotations

from simtrain.launch.processes import limit_spinning

# ruff: noqa: E402 - the OpenMP runtime reads its settings when torch is imported
from simtrain.sim import EngineCfg

limit_spinning()

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import tyro
from torch import Tensor

from simtrain.config.tasks import discover
from simtrain.config.train import TrainConfig
from simtrain.launch.launcher import launch_ranks
from simtrain.launch.plan import plan_job
from simtrain.launch.processes import StopSignals
from simtrain.launch.rank import Rank


@dataclass
class Options:
    """Measure what a second rank brings."""

    task: tyro.conf.Positional[str] = "cartpole-balance"
    num_envs: int = 256
    """Environments of each rank."""
    blocks: int = 12
    """How often each side is measured."""
    iterations: int = 10
    """Iterations of a block."""


@dataclass(frozen=True)
class MeasuredRank(Rank):
    """Notes how long it averages gradients, or leaves it out."""

    averages: bool = True
    seconds: list[float] = dataclasses.field(default_factory=list)

    def all_reduce(self, tensor: Tensor, op: Any = torch.distributed.ReduceOp.SUM) -> Tensor:
        if tensor.numel() < 1000:  # other sums
            return Rank.all_reduce(self, tensor, op)
        start = time.perf_counter()
        if self.averages:
            Rank.all_reduce(self, tensor, op)
        self.seconds.append(time.perf_counter() - start)
        return tensor


def measure(
    rank: Rank, show: Callable[[object], None], stop: Callable[[], bool], options: Options
) -> dict[str, list[float]]:
    """Seconds of an iteration, and of averaging in it, block by block."""
    from simtrain.algorithms.ppo import PPO
    from simtrain.env.env import Env
    from simtrain.env.randomness import seed_everything
    from simtrain.training.loop import Trainer, train

    torch.set_num_threads(1)
    values = {field.name: getattr(rank, field.name) for field in dataclasses.fields(Rank)}
    together, apart = MeasuredRank(**values), MeasuredRank(**values, averages=False)

    def trainer(rank: Rank) -> Trainer:
        seed_everything(rank.seed)
        cfg = discover().find(options.task).make()
        # rsl_rl's normalizer reduces over all processes there are, also for a rank that is alone.
        cfg.ppo.actor.obs_normalization = cfg.ppo.critic.obs_normalization = False
        env = Env(cfg, options.num_envs, EngineCfg(threads=1))
        obs = env.get_observations()
        return Trainer(env, PPO(cfg.ppo, obs, env.num_actions, cfg.num_steps_per_env, rank), rank)

    def seconds_of_a_block(trainer: Trainer) -> float:
        start = time.perf_counter()
        train(trainer, (), trainer.iteration + options.iterations, lambda: False)
        return time.perf_counter() - start

    one = trainer(Rank(**{**values, "rank": 0, "world_size": 1}))
    two, without = trainer(together), trainer(apart)
    found: dict[str, list[float]] = {"one": [], "two": [], "without": [], "averaging": []}
    for block in range(-1, options.blocks):
        if rank.is_main:
            found["one"].append(seconds_of_a_block(one))
        rank.barrier()  # the other rank sleeps here
        # Which of the two comes first changes, for a machine may slow down within a round.
        for side in ("two", "without") if block % 2 else ("without", "two"):
            together.seconds.clear()
            found[side].append(seconds_of_a_block(two if side == "two" else without))
            if side == "two":
                shortest = rank.all_gather(together.seconds).amin(dim=0)
                found["averaging"].append(float(shortest.sum()))
        if block < 0:  # to warm up
            for series in found.values():
                series.clear()
    return found


def main() -> None:
    options = tyro.cli(Options)
    config = TrainConfig.of_task(options.task, discover().find(options.task).make())
    config.gpu_ids, config.cpu_threads, config.cpu_workers = None, 1, 2
    found = launch_ranks(
        plan_job(config, config.seed),
        measure,
        options,
        receive=print,
        stop=StopSignals(60.0),
        log_dir="",
    )
    steps = options.num_envs * config.num_steps_per_env * options.iterations
    pairs = list(zip(found["one"], found["two"], found["without"], found["averaging"], strict=True))
    iteration = statistics.median(found["two"]) / options.iterations
    result = {
        "task": options.task,
        "num_envs": options.num_envs,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 2),
        "steps_per_second_one_rank": round(steps / statistics.median(found["one"])),
        "steps_per_second_two_ranks": round(2 * steps / statistics.median(found["two"])),
        "scaling": round(statistics.median(2 * one / two for one, two, _, _ in pairs), 3),
        "scaling_of_best_blocks": round(2 * min(found["one"]) / min(found["two"]), 3),
        "iteration_ms": round(1e3 * iteration, 2),
        "averaging_share": round(
            statistics.median(averaging / two for _, two, _, averaging in pairs), 4
        ),
        "averaging_and_waiting_share": round(
            statistics.median(1.0 - without / two for _, two, without, _ in pairs), 4
        ),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
