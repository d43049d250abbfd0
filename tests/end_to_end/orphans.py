"""SIGKILL to the command of a two-rank job at random moments: how soon its processes are gone.

``python tests/end_to_end/orphans.py [kills] [seed]`` prints a line a kill: the moment, how many
processes the command left, and the seconds until none of them ran. Moments are stages of the start,
and up to a second more.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

from job import TWO_RANKS, Job, make_tasks

FLAGS = (*TWO_RANKS, "--max-iterations", "10", "--logger", "none", "--torchrunx-log-dir", "")
PROCESSES = 8
"""Command, launcher, log server, shell, agent, its resource tracker and two ranks."""
LONGEST_SECONDS = 60.0


def wait_for_moment(job: Job, stage: int, at_work: str) -> None:
    """Wait until so many processes run; one more: until a text is shown; two more: for the end."""
    while job.process.poll() is None:
        if stage <= PROCESSES and len(job.processes()) >= stage:
            break
        if stage == PROCESSES + 1 and at_work in job.output:
            break
        time.sleep(0.05)


def seconds_until_none_is_left(job: Job) -> tuple[int, float]:
    """Kill the command; how many processes that left, and for how long one of them ran."""
    job.process.kill()
    job.process.wait()
    began = time.monotonic()
    count = len(job.processes())
    while job.processes() and time.monotonic() < began + LONGEST_SECONDS:
        time.sleep(0.05)
    seconds = time.monotonic() - began
    job.kill()
    return count, seconds


def main(folder: Path, kills: int = 50, seed: int = 1) -> None:
    make_tasks(folder)
    chance = random.Random(seed)
    longest = 0.0
    for number in range(kills):
        job = Job(folder, "user-pendulum", *FLAGS)
        stage, pause = chance.randint(1, PROCESSES + 2), chance.uniform(0.0, 1.0)
        wait_for_moment(job, stage, " steps/s ")
        time.sleep(pause)
        count, seconds = seconds_until_none_is_left(job)
        longest = max(longest, seconds)
        moment = f"{number + 1}: stage {stage} and {pause:.2f} s"
        print(f"{moment}: {count} left, gone in {seconds:.2f} s", flush=True)
    print(f"longest: {longest:.2f} s")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary), *map(int, sys.argv[1:]))
