"""What a second rank brings: two CPU ranks of one thread each against one rank of one thread.

  uv run python benchmarks/weak_scaling.py [task] [--num-envs 256] [--blocks 12] [--iterations 10]

Both sides run the same number of environments on each rank. They take turns in short blocks within
one job, while the second rank sleeps or takes part, for other load on the machine moves the
figures: only blocks beside each other compare. A core is needed for each rank.

Also measured is what averaging the gradients costs: the collective alone, when both ranks are at
it, and in place, where it includes waiting for the slower rank.
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


@dataclass(frozen=True)
class TimedRank(Rank):
    """Notes how long collectives on the gradients take."""

    seconds: list[float] = dataclasses.field(default_factory=list)

    def all_reduce(self, tensor: Tensor, op: Any = torch.distributed.ReduceOp.SUM) -> Tensor:
        start = time.perf_counter()
        Rank.all_reduce(self, tensor, op)
        if tensor.numel() > 1000:
            self.seconds.append(time.perf_counter() - start)
        return tensor


def measure(
    rank: Rank,
    show: Callable[[object], None],
    stop: Callable[[], bool],
    flags: argparse.Namespace,
) -> dict[str, list[float]]:
    """Seconds of an iteration, and of averaging in it, block by block."""
    from simtrain.env.env import Env
    from simtrain.training.ppo import PPO
    from simtrain.training.trainer import Trainer

    torch.set_num_threads(1)
    values = {field.name: getattr(rank, field.name) for field in dataclasses.fields(Rank)}
    together, alone = TimedRank(**values), Rank(**{**values, "rank": 0, "world_size": 1})

    def trainer(rank: Rank) -> Trainer:
        rank.seed_everything()
        cfg = discover().find(flags.task).make()
        # rsl_rl's normalizer reduces over all processes there are, also for a rank that is alone.
        cfg.ppo.actor.obs_normalization = cfg.ppo.critic.obs_normalization = False
        env = Env(cfg, flags.num_envs, threads=1)
        obs = env.get_observations()
        return Trainer(env, PPO(cfg.ppo, obs, env.num_actions, cfg.num_steps_per_env, rank), rank)

    def seconds_an_iteration(trainer: Trainer, iterations: int = flags.iterations) -> float:
        start = time.perf_counter()
        trainer.run(trainer.iteration + iterations, lambda iteration: None, lambda: False)
        return (time.perf_counter() - start) / iterations

    one, two = trainer(alone), trainer(together)
    found: dict[str, list[float]] = {"one": [], "two": [], "in place": [], "collective": []}
    for block in range(-1, flags.blocks):
        if rank.is_main:
            found["one"].append(seconds_an_iteration(one))
        rank.gather([0.0])  # the other rank sleeps here
        together.seconds.clear()
        found["two"].append(seconds_an_iteration(two))
        found["in place"].append(sum(together.seconds) / flags.iterations)
        batches = len(together.seconds) // flags.iterations
        times = []
        for _ in range(50):
            rank.gather([0.0])  # start together
            start = time.perf_counter()
            rank.all_reduce(torch.zeros_like(two.ppo.gradients.buffer))
            times.append(time.perf_counter() - start)
        found["collective"].append(statistics.median(times) * batches)
        if block < 0:  # to warm up
            for series in found.values():
                series.clear()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("task", nargs="?", default="cartpole-balance")
    parser.add_argument("--num-envs", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--iterations", type=int, default=10, help="of a block")
    flags = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # for the ranks, as the train command

    config = TrainConfig.of_task(flags.task, discover().find(flags.task).make())
    config.gpu_ids, config.cpu_threads, config.cpu_workers = None, 1, 2
    found = launch_ranks(
        plan_job(config), measure, flags, receive=print, stop=lambda: False, log_dir=""
    )
    steps = flags.num_envs * config.num_steps_per_env
    ratios = [2 * one / two for one, two in zip(found["one"], found["two"], strict=True)]
    print(
        f"{flags.task}, {flags.num_envs} environments on each rank, one thread each, "
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    )
    print(f"one rank:  {steps / min(found['one']):,.0f} steps/s in its best block")
    print(f"two ranks: {2 * steps / min(found['two']):,.0f} steps/s in theirs")
    print(
        f"ratio: {statistics.median(ratios):.2f} in the median of blocks, "
        f"{min(found['one']) / min(found['two']) * 2:.2f} of the best"
    )
    best = min(range(flags.blocks), key=found["two"].__getitem__)
    for name, key in (("alone", "collective"), ("in place, waiting included", "in place")):
        seconds = found[key][best]
        share = seconds / found["two"][best]
        print(f"averaging gradients, {name}: {1e3 * seconds:.1f} ms, {share:.1%} of an iteration")


if __name__ == "__main__":
    main()
