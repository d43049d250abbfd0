"""Signals to, and the end of, single processes of a job of two ranks."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from job import Job

pytestmark = pytest.mark.slow

PROCESSES = 8
"""Command, launcher, log server, shell, agent, its resource tracker and two ranks."""


@pytest.fixture
def light(start):
    """Starts two ranks; `Job.wait` looks for what they leave behind."""

    def light(
        *, collective_timeout: float = 100.0, grace_seconds: float = 100.0, returns: str = ""
    ) -> Job:
        program = ("-u", str(Path(__file__).with_name("light_ranks.py")))
        return start(str(collective_timeout), str(grace_seconds), returns, program=program)

    return light


@pytest.fixture
def job(light):
    """Two ranks at work."""
    job = light()
    job.wait_for("at work")
    return job


def test_a_signal_to_a_single_rank_lets_all_ranks_finish(job):
    """That all finish when every process gets one is shown in `test_hosts.py`."""
    os.kill(job.ranks()[-1], signal.SIGTERM)
    assert job.wait() == 0, job.output
    assert "rank 0 is done, stopped by SIGTERM" in job.output


@pytest.mark.parametrize("processes", [2, 5, PROCESSES])
def test_a_command_killed_at_any_moment_leaves_no_process_behind(processes, light):
    """From the first fork to ranks at work."""
    job = light()
    job.wait_until(lambda: len(job.processes()) >= processes)
    time.sleep(random.Random(processes).uniform(0.0, 1.0))
    job.process.kill()
    job.wait_for_end()


def test_agent_and_ranks_end_with_all_that_started_them(job):
    for pid in (job.log_server(), job.launcher(), job.process.pid):
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


def test_a_result_that_cannot_be_pickled_ends_the_job_with_its_traceback(light):
    job = light(returns="a lambda")
    job.wait_for("at work")
    began = time.monotonic()
    assert job.wait() == 1, job.output
    assert time.monotonic() - began < 60.0
    assert "failed:\nTraceback" in job.output
    assert "Can't pickle local object 'work.<locals>.<lambda>'" in job.output.splitlines()[-1]


def test_a_rank_that_is_killed_while_it_starts_ends_the_job(light):
    job = light()
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


def test_a_frozen_rank_does_not_keep_ctrl_c_waiting(light):
    job = light(grace_seconds=1.0)
    job.wait_for("at work")
    os.kill(job.ranks()[-1], signal.SIGSTOP)
    job.interrupt()
    assert job.wait() == 130, job.output
    assert job.output.splitlines()[-1] == (
        "error: told to stop by SIGINT, the run could not finish its iteration and save within "
        "1 s (--grace-seconds); there is no checkpoint"
    )


def test_a_frozen_rank_is_told_of_and_in_the_end_ends_the_job(light):
    job = light(collective_timeout=10.0)
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
