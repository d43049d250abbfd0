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
    assert job.output.rstrip().endswith("ValueError: no step number 21")


def test_a_killed_rank_ends_the_job(start):
    job = start()
    job.wait_for(" steps/s ")
    os.kill(job.ranks()[-1], signal.SIGKILL)
    assert seconds_to_end(job, 1) < 30.0
    assert " on cpu was killed: Signal 9 (SIGKILL)" in job.output
    assert "Traceback" not in job.output


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


def test_sigterm_to_every_process_at_once_saves_and_stops_all_ranks(start):
    """As a cluster sends it, also to processes that would otherwise act on it themselves."""
    job = start("--grace-seconds", "100")
    job.wait_for(" steps/s ")
    job.signal_all(signal.SIGTERM)
    assert job.wait() == 143, job.output
    assert job.output.count("SIGTERM: stopping after this iteration, within 100 s") == 1
    assert "stopped by SIGTERM; the policy so far is saved" in job.output
    (checkpoint,) = job.run.glob("model_*.pt")
    iteration = torch.load(checkpoint, weights_only=True)["iter"]
    assert len((job.run / "metrics.jsonl").read_text().splitlines()) == iteration


def test_a_frozen_rank_does_not_keep_ctrl_c_waiting(start, tmp_path):
    job = start("--grace-seconds", "1", "--save-interval", "1")
    job.wait_until(lambda: any(job.folder.glob("logs/*/*/model_1.pt")))
    os.kill(job.ranks()[-1], signal.SIGSTOP)
    job.interrupt()
    assert job.wait() == 130, job.output
    last = max(job.run.glob("model_*.pt"), key=lambda path: int(path.stem.split("_")[1]))
    assert job.output.count("error: ") == 1
    assert job.output.endswith(
        "error: told to stop by SIGINT, the run could not finish its iteration and save within "
        f"1 s (--grace-seconds); the last checkpoint is {last.relative_to(tmp_path)}\n"
        f"to go on: uv run train user-pendulum --resume {job.run.relative_to(tmp_path)}\n"
    )


def test_a_rank_that_hangs_at_the_start_ends_the_job_with_advice(start):
    job = start("--collective-timeout", "3")
    job.wait_until(lambda: bool(job.ranks()))
    os.kill(job.ranks()[0], signal.SIGSTOP)
    assert job.wait() == 1, job.output
    assert "the first collective of 2 ranks did not finish within 3 s" in job.output
    advice = ["IOMMU", "NCCL_P2P_DISABLE=1", "iommu=pt", "Shared memory", "NCCL_SHM_DISABLE=1",
              "host name", "port"]  # fmt: skip
    places = [job.output.index(word) for word in advice]
    assert places == sorted(places)
    assert job.output.count("first collective of") == 1


def test_a_killed_command_leaves_no_rank_behind(start):
    job = start()
    job.wait_for(" steps/s ")
    job.process.kill()
    deadline = time.monotonic() + 60.0
    while job.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    job.wait()
