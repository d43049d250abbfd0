"""Signals to, and the end of, single processes of a job of two ranks."""

import os
import signal
from pathlib import Path

import pytest
from job import Job

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def job(tmp_path):
    """Two ranks at work; `Job.wait` looks for what they leave behind."""
    job = Job(tmp_path, program=("-u", str(Path(__file__).with_name("light_ranks.py"))))
    try:
        job.wait_for("at work")
        yield job
    finally:
        job.kill()


def test_sigusr1_to_every_process_lets_all_ranks_finish(job):
    job.signal_all(signal.SIGUSR1)
    assert job.wait() == 0, job.output
    assert "rank 0 is done, stopped by SIGUSR1" in job.output


def test_sigterm_to_a_single_rank_lets_all_ranks_finish(job):
    os.kill(job.ranks()[-1], signal.SIGTERM)
    assert job.wait() == 0, job.output
    assert "rank 0 is done, stopped by SIGTERM" in job.output


def test_a_killed_log_server_ends_the_job_and_is_named(job):
    os.kill(job.log_server(), signal.SIGKILL)
    assert job.wait() == 1, job.output
    assert job.output.splitlines()[-1].startswith("error: the log server is gone, the process on")


def test_a_killed_agent_ends_the_job_and_its_host_is_named(job):
    os.kill(job.agent(), signal.SIGKILL)
    assert job.wait() == 1, job.output
    last = job.output.splitlines()[-1]
    assert last.startswith("error: the torchrunx agent of host localhost, the process that starts")
