"""Populations that are killed at random moments and resumed, without torchrunx.

A program of its own: it imports torch once and forks the ranks. Exchanges and saves are slowed
down, so that many kills fall into one. Prints for every run what was going on when it was killed.
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
from simtrain.run.console import StatusConsole
from simtrain.training.context import Resumption, RunContext, SharedContext
from simtrain.training.evaluator import Evaluator
from simtrain.training.resumption import NEWEST, PREVIOUS, can_resume, open_run, read_resume_state
from simtrain.training.transfer import with_teacher
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
    """Members in processes of their own, resuming if the folder has something to resume from.

    With `stop_at` each is told to stop, after as many iterations more as its number says.
    """

    def __init__(self, run: Path, config: TrainConfig = CONFIG, stop_at: int | None = None) -> None:
        run.mkdir(exist_ok=True)
        store = run.with_suffix(f".store-{time.monotonic_ns()}")
        fork = multiprocessing.get_context("fork")
        resumption = None
        if can_resume(run):
            saved = open_run(run)
            resumption = Resumption(saved.file, True, (), tuple(m.file for m in saved.members))
        assert config.population is not None
        ranks = config.ranks_per_member
        count = config.population * ranks
        members = tuple(tuple(range(i, i + ranks)) for i in range(0, count, ranks))
        shared = SharedContext(run, ("cpu",) * count, resumption, members=members)
        arguments = store, config, shared, stop_at
        self._ranks = [fork.Process(target=train, args=(i, *arguments)) for i in range(count)]
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


def train(
    number: int, store: Path, config: TrainConfig, shared: SharedContext, stop_at: int | None
) -> None:
    os.fsync = lambda descriptor: time.sleep(0.01)
    torch.set_num_threads(1)
    world = len(shared.devices)
    dist.init_process_group(
        "gloo", store=dist.FileStore(str(store), world), rank=number, world_size=world
    )
    rank = Rank(number, number, world, torch.device("cpu"), seed=3 + number, threads=1)
    member = number // config.ranks_per_member
    exchanging = shared.run / f".exchanging-{member}"
    evaluate = Evaluator.__call__

    def mark_and_evaluate(self: Evaluator, *args: Any, **kwargs: Any) -> Any:
        exchanging.touch()
        return evaluate(self, *args, **kwargs)

    Evaluator.__call__ = mark_and_evaluate
    iterations = 0

    def stop() -> bool:
        nonlocal iterations
        iterations += 1
        exchanging.unlink(missing_ok=True)
        return stop_at is not None and iterations >= stop_at + member

    quiet = StatusConsole(lambda message: None, lambda status: None)
    run_worker(RunContext(config, rank, quiet, stop, shared).of_member())
    dist.destroy_process_group()


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
        check_numbers(run, expected, f"killed {state}")
    run = folder / "stopped"
    for stop_at in (2, 1, 4, None):
        Members(run, stop_at=stop_at).until_end()
    check_numbers(run, expected, "stopped")
    # Each save compares the parameters of the ranks of a member, whose batches differ.
    pairs = replace(CONFIG, population=2, ranks_per_member=2, max_iterations=4)
    Members(folder / "pairs", pairs).until_end()
    # Saves between two exchanges, of which a killed member lacks the newest.
    seldom = replace(CONFIG, population_interval=6, save_interval=2, eval_interval=3)
    Members(folder / "seldom", seldom).until_end()
    run = folder / "seldom-killed"
    members = Members(run, seldom)
    own = [run / "members" / str(i) for i in range(3)]
    wait_until(lambda: all((member / PREVIOUS).exists() for member in own))
    members.kill()
    # One killed between its two renames has no newest, and so lacks it already.
    newest = [member / NEWEST for member in own if (member / NEWEST).exists()]
    iterations = {read_resume_state(file)["iteration"] for file in newest}
    if len(newest) == len(own) and len(iterations) == 1:
        (own[1] / PREVIOUS).replace(own[1] / NEWEST)
    Members(run, seldom).until_end()
    check_numbers(run, folder / "seldom", "seldom")
    growing = replace(CONFIG, population_mutations=(0.0, 0.4, 0.0, 0.6))
    students = with_teacher(replace(growing, teacher=str(expected)))
    Members(folder / "students", students).until_end()
    run = folder / "students-killed"
    members = Members(run, students)
    wait_until(lambda: lines_of(run) >= 3)
    members.kill()
    Members(run, students).until_end()
    check_numbers(run, folder / "students", "students")


def lines_of(run: Path) -> int:
    path = run / "population.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def check_numbers(run: Path, expected: Path, state: str) -> None:
    if numbers_of(run) != numbers_of(expected):
        sys.exit(f"{run} {state} went on differently")
    print(state, flush=True)


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
