"""Whatever ends a job of two ranks ends all of it, and says why; `Job.wait` looks for leftovers."""

import os
import signal
import time

import pytest
import torch
from job import TWO_RANKS, Job, make_tasks

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def start(tmp_path):
    """Starts a run without end of two ranks, on the user's task; killed after the test."""
    jobs = []

    def start(*flags: str, **variables: str) -> Job:
        make_tasks(tmp_path)
        flags = ("--save-interval", "1000000", "--torchrunx-log-dir", "", *flags)
        jobs.append(Job(tmp_path, "user-pendulum", *TWO_RANKS, *flags, **variables))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


def seconds_to_end(job: Job, code: int) -> float:
    began = time.monotonic()
    assert job.wait() == code, job.output
    return time.monotonic() - began


def test_an_exception_in_a_rank_ends_the_job_with_its_traceback_once(start):
    job = start("--env.rewards.upright.break-rank", "1")
    job.wait_for(" steps/s ")
    assert seconds_to_end(job, 1) < 30.0
    assert "error: rank 1 on cpu failed:\nTraceback" in job.output
    assert job.output.count("Traceback") == 1
    assert job.output.rstrip().endswith(
        "ValueError: no step number 21\nin the term rewards.upright"
    )


def test_a_killed_rank_ends_the_job_with_the_command_to_resume(start):
    job = start("--save-interval", "1")
    job.wait_until(lambda: any(job.folder.glob("logs/*/*/resume.pt")))
    os.kill(job.ranks()[-1], signal.SIGKILL)
    assert seconds_to_end(job, 1) < 30.0
    assert " on cpu was killed: Signal 9 (SIGKILL)" in job.output
    assert "Traceback" not in job.output
    relative = job.run.relative_to(job.folder)
    assert f"to go on: uv run train user-pendulum --resume {relative}" in job.output


@pytest.mark.slow
def test_a_rank_that_is_killed_while_it_starts_ends_the_job(start):
    job = start()
    job.wait_until(lambda: len(job.ranks()) == 2)
    os.kill(job.ranks()[0], signal.SIGKILL)
    assert job.wait() == 1
    assert "error: a rank that was starting was killed: Signal 9 (SIGKILL)" in job.output
    assert "Traceback" not in job.output


@pytest.mark.slow
def test_a_rank_that_is_stuck_in_a_term_ends_the_job_and_is_named_with_the_place(start):
    """The other rank, which waits for it in a collective, is not to blame."""
    stuck = ("--env.rewards.upright.break-rank", "1", "--env.rewards.upright.stuck-after", "18")
    job = start(*stuck, "--save-interval", "1", "--collective-timeout", "8")
    job.wait_for("warning: rank 1 on cpu (process ")
    assert seconds_to_end(job, 1) < 60.0
    (line,) = (line for line in job.output.splitlines() if line.startswith("error: "))
    assert line.startswith("error: rank 1 on cpu (process ")
    assert " on localhost) has kept the others waiting for 8 s, and is in iteration 3, at " in line
    assert "tasks/pendulum.py:" in line
    assert line.endswith(" in Upright.__call__ (--collective-timeout)")
    relative = job.run.relative_to(job.folder)
    assert f"to go on: uv run train user-pendulum --resume {relative}" in job.output


def test_ctrl_c_saves_and_stops_all_ranks(start):
    """Also with W&B, which has a process of its own and is offline without an API key."""
    wandb = ("--logger", "wandb", "--wandb-project", "tests")
    job = start(*wandb, WANDB_API_KEY="", NETRC="none")
    job.wait_for(" steps/s ")
    job.interrupt()
    assert seconds_to_end(job, 130) < 30.0
    assert "stopped by SIGINT; the policy so far is saved" in job.output
    assert "W&B: no API key, so offline" in job.output
    (checkpoint,) = job.run.glob("model_*.pt")
    iteration = torch.load(checkpoint, weights_only=True)["iter"]
    assert len((job.run / "metrics.jsonl").read_text().splitlines()) == iteration
    (uploads,) = job.run.glob("wandb/offline-run-*")
    (kept,) = uploads.glob("files/model_*.pt")
    assert kept.name == checkpoint.name
    (record,) = uploads.glob("*.wandb")
    for written in (b"Perf/total_fps", b"num_steps_per_env"):
        assert written in record.read_bytes()
