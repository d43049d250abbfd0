"""Signals to, and the end of, single processes of a job of two ranks."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from job import Job
from orphans import LONGEST_SECONDS, seconds_until_none_is_left, wait_for_moment

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def start(tmp_path):
    """Starts two ranks; `Job.wait` looks for what they leave behind."""
    jobs = []

    def start(*, collective_timeout: float = 100.0, grace_seconds: float = 100.0) -> Job:
        program = ("-u", str(Path(__file__).with_name("light_ranks.py")))
        jobs.append(Job(tmp_path, str(collective_timeout), str(grace_seconds), program=program))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


@pytest.fixture
def job(start):
    """Two ranks at work."""
    job = start()
    job.wait_for("at work")
    return job


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_to_every_process_or_to_a_single_rank_lets_all_ranks_finish(number, job):
    if number == signal.SIGUSR1:
        job.signal_all(number)
    else:
        os.kill(job.ranks()[-1], number)
    assert job.wait() == 0, job.output
    assert f"rank 0 is done, stopped by {number.name}" in job.output


@pytest.mark.parametrize("stage", [2, 5, 8, 9])
def test_a_command_killed_at_any_moment_leaves_no_process_behind(stage, start):
    """From the first fork to ranks at work, see `wait_for_moment`."""
    job = start()
    wait_for_moment(job, stage, "at work")
    time.sleep(random.Random(stage).uniform(0.0, 1.0))
    _, seconds = seconds_until_none_is_left(job)
    assert seconds < LONGEST_SECONDS


def test_agent_and_ranks_end_with_all_that_started_them(job):
    launcher = job.launcher()
    for pid in (job.log_server(), launcher, job.process.pid):
        os.kill(pid, signal.SIGKILL)
    job.wait_for_end()


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (Job.log_server, "error: the log server is gone, the process on this machine"),
        (Job.agent, "error: the torchrunx agent of host localhost, the process that starts"),
    ],
)
def test_a_killed_process_of_the_launch_ends_the_job_and_is_named(process, message, job):
    os.kill(process(job), signal.SIGKILL)
    assert job.wait() == 1, job.output
    assert job.output.splitlines()[-1].startswith(message)


def test_a_rank_that_is_killed_while_it_starts_ends_the_job(start):
    job = start()
    job.wait_until(lambda: len(job.ranks()) == 2)
    os.kill(job.ranks()[0], signal.SIGKILL)
    assert job.wait() == 1, job.output
    assert "error: a rank that was starting was killed: Signal 9 (SIGKILL)" in job.output
    assert "Traceback" not in job.output


def test_a_killed_rank_is_named_also_if_torchrunx_is_slow_to_find_it(job):
    """Longer than the other rank waits for that, whose collective broke."""
    agent = job.agent()
    os.kill(agent, signal.SIGSTOP)
    os.kill(job.ranks()[-1], signal.SIGKILL)
    time.sleep(7.0)
    os.kill(agent, signal.SIGCONT)
    assert job.wait() == 1, job.output
    assert " on cpu was killed: Signal 9 (SIGKILL)" in job.output


def test_a_frozen_rank_does_not_keep_ctrl_c_waiting(start):
    job = start(grace_seconds=1.0)
    job.wait_for("at work")
    os.kill(job.ranks()[-1], signal.SIGSTOP)
    job.interrupt()
    assert job.wait() == 130, job.output
    assert job.output.splitlines()[-1] == (
        "error: told to stop by SIGINT, the run could not finish its iteration and save within "
        "1 s (--grace-seconds); there is no checkpoint"
    )


def test_a_frozen_rank_is_told_of_and_in_the_end_ends_the_job(start):
    job = start(collective_timeout=10.0)
    job.wait_for("at work")
    frozen = job.ranks()[-1]
    name = f"rank 1 on cpu (process {frozen} on localhost)"
    os.kill(frozen, signal.SIGSTOP)
    job.wait_for(f"warning: {name} has not answered for 1 s, and was at ")
    os.kill(frozen, signal.SIGCONT)
    job.wait_for(f"{name} went on")
    os.kill(frozen, signal.SIGSTOP)
    assert job.wait() == 1, job.output
    last = job.output.splitlines()[-1]
    assert last.startswith(f"error: {name} has not answered for 10 s, and was at ")
    assert last.endswith("(--collective-timeout)")


def test_a_rank_that_hangs_at_the_start_ends_the_job_with_advice(start):
    job = start(collective_timeout=3.0)
    job.wait_until(lambda: bool(job.ranks()))
    os.kill(job.ranks()[0], signal.SIGSTOP)
    assert job.wait() == 1, job.output
    assert "error: rank 0 on cpu" in job.output
    assert "the first collective of 2 ranks did not finish within 3 s" in job.output
    advice = ["IOMMU", "NCCL_P2P_DISABLE=1", "iommu=pt", "Shared memory", "NCCL_SHM_DISABLE=1",
              "does not resolve", "port"]  # fmt: skip
    places = [job.output.index(word) for word in advice]
    assert places == sorted(places)
    assert job.output.count("first collective of") == 1
