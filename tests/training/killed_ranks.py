"""Two ranks of which one is killed between the parts of a save; a program, for it forks them.

Each scenario is a run that is started again after every kill, as `--max-restarts` does, and then
trains to its end. Prints the iterations from which it went on (`test_killed_ranks.py`).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import torch.distributed as dist
from tiny_training import make_context
from two_ranks import CARTPOLE

from simtrain.launch.rank import Rank
from simtrain.training import resumption as module
from simtrain.training.context import Resumption
from simtrain.training.features.checkpoint import Checkpoint
from simtrain.training.resumption import can_resume, open_run
from simtrain.training.worker import run_worker

ITERATIONS = 5


class Kill(NamedTuple):
    """A rank that ends before its n-th write of a part, when the other one has made that."""

    rank: int
    write: int


SCENARIOS: dict[str, list[Kill]] = {
    "whole": [],
    "in the first save": [Kill(1, 1), Kill(0, 1)],
    "again and again in the same": [Kill(0, 2), Kill(1, 1), Kill(1, 1), Kill(0, 1), Kill(0, 2)],
}


def train(number: int, store: Path, run: Path, resumption: Resumption | None, kill: Kill) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(store), 2), rank=number, world_size=2)
    write, writes = module.write_tensors, 0

    def marked(other: int) -> Path:
        return store.with_suffix(f".{other}-{writes}")

    def write_or_die(*args: Any) -> None:
        nonlocal writes
        writes += 1
        if kill == (number, writes):
            wait_for(marked(1 - number).exists)
            os.kill(os.getpid(), signal.SIGKILL)
        write(*args)
        marked(number).touch()

    module.write_tensors = write_or_die
    has_written = Checkpoint.has_written  # or saves would be left out, now and then
    Checkpoint.has_written = lambda self, seconds: has_written(self, 60.0)
    rank = Rank(number, number, 2, torch.device("cpu"), seed=3 + number, threads=1)
    config = replace(CARTPOLE, max_iterations=ITERATIONS)
    run_worker(make_context(run, config, rank, resumption=resumption))
    dist.destroy_process_group()


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    fork = multiprocessing.get_context("fork")
    found: dict[str, list[int]] = {}
    for name, kills in SCENARIOS.items():
        run = folder / name
        run.mkdir()
        found[name] = []
        for attempt, kill in enumerate([*kills, Kill(-1, 0)]):
            resumption = None
            if can_resume(run):
                saved = open_run(run)
                resumption = Resumption(saved.file, True, ())
                found[name].append(saved.iteration)
            store = folder / f"{name} {attempt}"
            given = store, run, resumption, kill
            ranks = [fork.Process(target=train, args=(i, *given)) for i in range(2)]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
            assert all(process.exitcode == 0 for process in ranks) == (kill.rank < 0)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
