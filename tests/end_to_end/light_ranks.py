"""A command of its own for tests of the launcher: two ranks that do next to nothing.

Its arguments are ``--collective-timeout`` and ``--grace-seconds`` of `train`, and a third if ranks
return what cannot be pickled.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from simtrain.cli.terminal import run_command
from simtrain.config.train import TrainConfig
from simtrain.launch.launcher import launch_ranks
from simtrain.launch.plan import Devices, Job
from simtrain.launch.rank import Rank
from simtrain.run.console import TrainingConsole
from simtrain.training.job import Attempts

COLLECTIVE_TIMEOUT, GRACE_SECONDS = map(float, sys.argv[1:3])
JOB = Job(
    hosts=("localhost",),
    devices=(Devices("cpu", 2, ""),),
    threads=1,
    collective_timeout=COLLECTIVE_TIMEOUT,
    grace_seconds=GRACE_SECONDS,
)


def work(rank: Rank, show: Callable[[object], None], stop: Callable[[], bool], odd: str) -> str:
    """Meet the other rank again and again until one of them is told to stop."""
    show("at work")
    if odd:
        return lambda: None
    while not rank.all_gather([float(stop())]).any():
        time.sleep(0.02)
    return f"rank {rank.rank} is done"


def command() -> int:
    odd = "".join(sys.argv[3:])
    config = TrainConfig("light", grace_seconds=GRACE_SECONDS)
    with Attempts(config, JOB, None, None, Path("none"), TrainingConsole("light", 1)).stop as stop:
        result = launch_ranks(JOB, work, odd, receive=print, stop=stop, log_dir="")
    print(f"{result}, stopped by {stop.received.name if stop.received else None}")
    return 0


if __name__ == "__main__":
    run_command(command)
