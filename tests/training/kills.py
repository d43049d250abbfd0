"""Runs of two ranks that are killed at random moments and resumed, without torchrunx.

A program of its own: it imports torch once and forks the ranks. Saves are slowed down, so that many
kills fall into one. Prints for every run what was going on when it was killed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tensorboard.compat.proto.event_pb2
import tensorboard.summary.writer.record_writer  # noqa: F401 - so that ranks need not
import torch
import torch.distributed as dist

from simtrain.algorithms.cfg import ActorCfg, CriticCfg, PpoCfg
from simtrain.config.tasks import discover
from simtrain.config.train import TrainConfig
from simtrain.launch.rank import Rank
from simtrain.training.context import Resumption, RunContext, SharedContext
from simtrain.training.resumption import can_resume, open_run
from simtrain.training.worker import run_worker

TASK = "cartpole-swingup"
DEFAULT = TrainConfig.of_task(TASK, discover().find(TASK).configuration())
ITERATIONS = 6


def main(folder: Path, kills: int) -> None:
    torch.set_num_threads(1)
    expected = folder / "uninterrupted"
    Pair(expected).until_end()
    chance = random.Random(1)
    for number in range(kills):
        run = folder / f"run-{number}"
        pair = Pair(run)
        iterations = chance.randrange(ITERATIONS)
        wait_until(lambda run=run, n=iterations: iterations_of(run) >= n)
        if number % 2:
            wait_until(lambda run=run: any(run.glob(".*.tmp")) or iterations_of(run) == ITERATIONS)
        time.sleep(chance.uniform(0.0, 0.05))
        pair.kill()
        state = "between saves"
        if any(run.glob(".*.tmp")):
            state = "during a save"
        elif not can_resume(run):
            state = "before the first save"
        Pair(run).until_end()
        if timeless(run) != timeless(expected):
            sys.exit(f"{run} killed {state} went on differently")
        print(state, flush=True)


def iterations_of(run: Path) -> int:
    path = run / "metrics.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


class Pair:
    """Two ranks in processes of their own, resuming if the folder has something to resume from."""

    def __init__(self, run: Path) -> None:
        run.mkdir(exist_ok=True)
        store = run.with_suffix(f".store-{time.monotonic_ns()}")
        fork = multiprocessing.get_context("fork")
        resumption = Resumption(open_run(run).file, True, ()) if can_resume(run) else None
        self._ranks = [
            fork.Process(target=train, args=(number, store, run, resumption)) for number in range(2)
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


def train(number: int, store: Path, run: Path, resumption: Resumption | None) -> None:
    os.fsync = lambda descriptor: time.sleep(0.03)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=number, world_size=2)
    rank = Rank(number, number, 2, torch.device("cpu"), seed=3 + number, threads=1)
    config = TrainConfig(
        task=TASK,
        num_envs=4,
        num_steps_per_env=8,
        max_iterations=ITERATIONS,
        save_interval=1,
        env=DEFAULT.env,
        ppo=PpoCfg(
            actor=ActorCfg((8,)), critic=CriticCfg((8,)), num_learning_epochs=1, num_mini_batches=1
        ),
    )
    config.env.episode_length_s = 1.0
    run_worker(
        RunContext(
            config, rank, Quiet(), lambda: False, SharedContext(run, ("cpu", "cpu"), resumption)
        )
    )
    dist.destroy_process_group()


class Quiet:
    def say(self, message: str) -> None: ...

    def show(self, status: object) -> None: ...


def timeless(run: Path) -> list[dict]:
    """The metrics without what a clock says."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k != "wall_s" and not k.startswith("Perf/")}
        for line in lines
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
