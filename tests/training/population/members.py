"""Populations that are killed at random moments and resumed, without torchrunx.

A program of its own: it imports torch once and forks the ranks. Exchanges and saves are slowed
down, so that many kills fall into one. Prints for every run what was going on when it was killed.
Also prints what two members of two ranks each compute.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import scipy.stats  # noqa: F401 - so that ranks need not
import tensorboard.compat.proto.event_pb2
import tensorboard.summary.writer.record_writer  # noqa: F401
import torch
import torch.distributed as dist

from simtrain.algorithms.cfg import ActorCfg, CriticCfg, PpoCfg
from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.launch.rank import Rank
from simtrain.training.context import Resumption, RunContext, SharedContext
from simtrain.training.evaluator import Evaluator
from simtrain.training.resumption import can_resume, open_run
from simtrain.training.worker import run_worker

TASK = "cartpole-balance"
ITERATIONS = 13  # an odd one, so that the end is no exchange that is due anyway
LINES = 7  # exchanges
SMALL = PpoCfg(
    ActorCfg((8,)), CriticCfg((8,)), num_learning_epochs=2, num_mini_batches=2, desired_kl=0.02
)
CONFIG = replace(
    default_config(TASK),
    num_envs=4,
    num_steps_per_env=8,
    max_iterations=ITERATIONS,
    save_interval=3,
    eval_episodes=4,
    population=3,
    population_interval=2,
    population_warm_up=2,
    population_grace=0,
    population_mutations=(0.1, 0.3, 0.3, 0.3),
    ppo=SMALL,
)
CONFIG.env.episode_length_s = 1.0


class Members:
    """Members in processes of their own, resuming if the folder has something to resume from."""

    def __init__(self, run: Path, config: TrainConfig = CONFIG) -> None:
        run.mkdir(exist_ok=True)
        store = run.with_suffix(f".store-{time.monotonic_ns()}")
        fork = multiprocessing.get_context("fork")
        resumption = None
        if can_resume(run):
            saved = open_run(run)
            resumption = Resumption(saved.file, True, (), saved.of_members)
        assert config.population is not None
        each = config.ranks_per_member
        count = config.population * each
        members = tuple(tuple(range(i, i + each)) for i in range(0, count, each))
        shared = SharedContext(run, ("cpu",) * count, resumption, members=members)
        self._ranks = [
            fork.Process(target=train, args=(number, store, config, shared))
            for number in range(count)
        ]
        for process in self._ranks:
            process.start()

    def kill(self) -> None:
        for process in self._ranks:
            process.kill()
        for process in self._ranks:
            process.join()

    def until_end(self) -> None:
        for process in self._ranks:
            process.join()
            assert process.exitcode == 0


def train(number: int, store: Path, config: TrainConfig, shared: SharedContext) -> None:
    os.fsync = lambda descriptor: time.sleep(0.01)
    torch.set_num_threads(1)
    world = len(shared.devices)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(store), world), rank=number, world_size=world
    )
    rank = Rank(number, number, world, torch.device("cpu"), seed=3 + number, threads=1)
    member = rank.rank // config.ranks_per_member
    exchanging = shared.run / f".exchanging-{member}"
    evaluate = Evaluator.__call__

    def mark_and_evaluate(self: Evaluator, *args: Any, **kwargs: Any) -> Any:
        exchanging.touch()
        return evaluate(self, *args, **kwargs)

    Evaluator.__call__ = mark_and_evaluate
    stop_at = os.environ.get("STOP_AT")
    iterations = 0

    def stop() -> bool:
        """Told to stop after as many iterations as the member's number says, if at all."""
        nonlocal iterations
        iterations += 1
        exchanging.unlink(missing_ok=True)
        return stop_at is not None and iterations >= int(stop_at) + member

    run_worker(RunContext(config, rank, Quiet(), stop, shared).of_member())
    dist.destroy_process_group()


class Quiet:
    def say(self, message: str) -> None: ...

    def show(self, status: object) -> None: ...


def main(folder: Path, kills: int) -> None:
    torch.set_num_threads(1)
    expected = folder / "uninterrupted"
    Members(expected).until_end()
    chance = random.Random(1)
    for number in range(kills):
        run = folder / f"run-{number}"
        members = Members(run)
        exchanges = chance.randrange(ITERATIONS // 2)
        wait_until(lambda run=run, n=exchanges: lines_of(run) >= n)
        if number % 2:
            wait_until(lambda run=run: any(run.glob(".exchanging-*")) or lines_of(run) == LINES)
        time.sleep(chance.uniform(0.0, 0.15))
        members.kill()
        state = f"after {lines_of(run)} exchanges"
        if any(run.glob(".exchanging-*")):
            state += ", during another"
        if any(run.glob(".*.tmp")):
            state += ", during a write"
        Members(run).until_end()
        if numbers_of(run) != numbers_of(expected):
            sys.exit(f"{run} killed {state} went on differently")
        print(state, flush=True)


def stopped(folder: Path) -> None:
    """Members that are told to stop, each after another iteration, and go on."""
    expected, run = folder / "uninterrupted", folder / "stopped"
    for first in (2, 1, 4):
        os.environ["STOP_AT"] = str(first)
        Members(run).until_end()
    del os.environ["STOP_AT"]
    Members(run).until_end()
    if numbers_of(run) != numbers_of(expected):
        sys.exit("the population that was stopped went on differently")
    print("stopped", flush=True)


def two_ranks_each(folder: Path) -> None:
    """How far gradients and parameters of members of two ranks are from those of one alone."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from two_ranks import ENVS, update

    fork = multiprocessing.get_context("fork")
    store, results = folder / "store", [folder / f"ranks.{i}" for i in range(4)]

    def run(number: int) -> None:
        torch.set_num_threads(1)
        dist.init_process_group(
            "gloo", store=dist.FileStore(str(store), 4), rank=number, world_size=4
        )
        rank = Rank(number, number, 4, torch.device("cpu"), seed=3 + number, threads=1)
        rank = rank.split(((0, 1), (2, 3)))
        mine = slice(rank.rank * ENVS, (rank.rank + 1) * ENVS)
        torch.save(update(rank, ENVS, mine)["tensors"], results[number])
        dist.destroy_process_group()

    ranks = [fork.Process(target=run, args=(i,)) for i in range(4)]
    for process in ranks:
        process.start()
    alone = Rank(0, 0, 1, torch.device("cpu"), seed=3, threads=1)
    expected = update(alone, 2 * ENVS, slice(None))["tensors"]
    for process in ranks:
        process.join()
        assert process.exitcode == 0
    errors = [
        max(
            float((a - b).abs().max() / b.abs().max().clamp(min=1e-3))
            for a, b in zip(torch.load(path), expected, strict=True)
        )
        for path in results
    ]
    print("ranks:", *errors, flush=True)


def lines_of(run: Path) -> int:
    path = run / "population.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def numbers_of(run: Path) -> dict[str, list[dict[str, Any]]]:
    """The lineage and all metrics without what a clock says."""
    paths = [run / "population.jsonl", run / "metrics.jsonl", *run.glob("members/*/metrics.jsonl")]
    return {
        str(path.relative_to(run)): [
            {
                key: value
                for key, value in json.loads(line).items()
                if key not in ("wall_s", "Population/waiting") and not key.startswith("Perf/")
            }
            for line in path.read_text().splitlines()
        ]
        for path in paths
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
    stopped(Path(sys.argv[1]))
    two_ranks_each(Path(sys.argv[1]))  # last, for here this process computes, too
