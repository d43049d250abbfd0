"""Signals to, and the end of, single processes of a job of two ranks."""

import os
import signal
import time
from pathlib import Path

import pytest
from job import Job

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


def test_sigusr1_to_every_process_lets_all_ranks_finish(job):
    job.signal_all(signal.SIGUSR1)
    assert job.wait() == 0, job.output
    assert "rank 0 is done, stopped by SIGUSR1" in job.output


def test_sigterm_to_a_single_rank_lets_all_ranks_finish(job):
    os.kill(job.ranks()[-1], signal.SIGTERM)
    assert job.wait() == 0, job.output
    assert "rank 0 is done, stopped by SIGTERM" in job.output


def test_a_killed_command_leaves_no_process_behind(job):
    job.process.kill()
    job.wait_for_end()


def test_a_killed_log_server_ends_the_job_and_is_named(job):
    os.kill(job.log_server(), signal.SIGKILL)
    assert job.wait() == 1, job.output
    assert job.output.splitlines()[-1].startswith("error: the log server is gone, the process on")


def test_a_killed_agent_ends_the_job_and_its_host_is_named(job):
    os.kill(job.agent(), signal.SIGKILL)
    assert job.wait() == 1, job.output
    last = job.output.splitlines()[-1]
    assert last.startswith("error: the torchrunx agent of host localhost, the process that starts")


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


def test_a_rank_that_hangs_at_the_start_ends_the_job_with_advice(start):
    job = start(collective_timeout=3.0)
    job.wait_until(lambda: bool(job.ranks()))
    os.kill(job.ranks()[0], signal.SIGSTOP)
    assert job.wait() == 1, job.output
    assert "the first collective of 2 ranks did not finish within 3 s" in job.output
    advice = ["IOMMU", "NCCL_P2P_DISABLE=1", "iommu=pt", "Shared memory", "NCCL_SHM_DISABLE=1",
              "host name", "port"]  # fmt: skip
    places = [job.output.index(word) for word in advice]
    assert places == sorted(places)
    assert job.output.count("first collective of") == 1
