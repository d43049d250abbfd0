"""What collecting and learning at the same time could gain over doing them in turn.

  uv run python benchmarks/overlap.py [task] [--num-envs 256] [--rounds 20] [--threads 2]

In turn is how training works. Beside each other, a thread updates one policy on a rollout that
exists already while another collects its next one: a trainer that is a rollout ahead (as APPO is)
could not do better, for it would have parameters to exchange as well, and older data to learn from.
Both take turns, round after round, so that a machine whose speed drifts still gives honest ratios.

Prints one JSON line: median seconds of an iteration, and how much shorter the best way is.
"""

from __future__ import annotations

from simtrain.launch.processes import limit_spinning

# ruff: noqa: E402 - the OpenMP runtime reads its settings when torch is imported
from simtrain.sim import EngineCfg

limit_spinning()

import json
import os
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Annotated

import torch
import tyro

from simtrain.algorithms.ppo import PPO
from simtrain.cli.parse import parse_flags
from simtrain.cli.terminal import run_command
from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.launch.rank import Rank
from simtrain.training.loop import Trainer


@dataclass
class Options:
    """Compare collecting and learning in turn with both at the same time."""

    task: Annotated[str, tyro.conf.Positional] = "cartpole-balance"
    """The task."""
    num_envs: int | None = None
    """Environments; the task's if it is not said."""
    rounds: int = 20
    """Iterations of each way that are timed, after three that are not."""
    threads: int = len(os.sched_getaffinity(0))
    """CPU threads of an iteration in turn, and of physics beside an update."""


def main() -> int:
    options = parse_flags("overlap.py", Options(), sys.argv[1:])
    in_turn = make_trainer(options, physics=options.threads, learning=options.threads)
    collector = make_trainer(options, physics=options.threads, learning=1)
    learners = {
        threads: make_trainer(options, physics=options.threads, learning=threads)
        for threads in sorted({1, options.threads})
    }
    seconds: dict[str, list[float]] = {}
    with ThreadPoolExecutor(1, "learner") as thread:
        for _ in range(options.rounds + 3):
            seconds.setdefault("in_turn_s", []).append(iterate(in_turn))
            for threads, learner in learners.items():
                name = f"overlapped_{threads}_learning_threads_s"
                seconds.setdefault(name, []).append(overlap(collector, learner, thread))
    medians = {name: round(statistics.median(times[3:]), 4) for name, times in seconds.items()}
    best = min(value for name, value in medians.items() if name != "in_turn_s")
    print(json.dumps({**asdict(options), **medians, "gain": round(medians["in_turn_s"] / best, 3)}))
    return 0


def make_trainer(options: Options, physics: int, learning: int) -> Trainer:
    """A trainer of the task whose environments and updates have so many threads."""
    cfg = discover().find(options.task).make()
    num_envs = cfg.num_envs if options.num_envs is None else options.num_envs
    torch.manual_seed(0)
    env = Env(cfg, num_envs, EngineCfg(threads=physics))
    rank = Rank(0, 0, 1, env.device, seed=0, threads=learning)
    obs = env.get_observations()
    ppo = PPO(cfg.ppo, obs, env.num_actions, cfg.num_steps_per_env, rank)
    return Trainer(env, ppo, rank)


def iterate(trainer: Trainer) -> float:
    """Seconds of a rollout and the update after it."""
    start = time.perf_counter()
    trainer.begin()
    trainer.iterate(trainer.iteration + 1, lambda: False)
    return time.perf_counter() - start


def overlap(collector: Trainer, learner: Trainer, thread: ThreadPoolExecutor) -> float:
    """Seconds of a rollout of one trainer beside an update of another, whose rollout is ready."""
    torch.set_num_threads(1)
    collector.ppo.storage.clear()
    learner.collect()
    start = time.perf_counter()
    update = thread.submit(update_with_threads, learner)
    collector.collect()
    update.result()
    return time.perf_counter() - start


def update_with_threads(trainer: Trainer) -> None:
    """Update the policy; the number of threads is this thread's own affair."""
    torch.set_num_threads(trainer.ppo.learner.threads)
    trainer.ppo.update()


if __name__ == "__main__":
    run_command(main)
