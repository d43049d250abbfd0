"""The real `train` command, killed and resumed: as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest
from job import ONE_RANK, Job, make_tasks, timeless_metrics
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from simtrain.run.checkpoint import read_checkpoint
from simtrain.training.resumption import open_run

TASK = "user-pendulum"
FLAGS = (*ONE_RANK, "--torchrunx-log-dir", "", "--save-interval", "7", "--max-iterations", "60")


@pytest.fixture
def start(start):
    return partial(start, TASK, warm=True)


def test_a_killed_run_goes_on_as_if_nothing_had_happened(start):
    whole = start(*FLAGS, folder="whole")
    killed = start(*FLAGS)
    killed.wait_for("iteration 30/60")
    killed.process.send_signal(signal.SIGKILL)
    killed.wait_for_end()
    assert whole.wait() == 0, whole.output

    resumed = start("--resume", "latest")
    assert resumed.wait() == 0, resumed.output
    assert f"going on with logs/{TASK}/{killed.run.name} after iteration" in resumed.output
    assert "not exact" not in resumed.output
    assert timeless_metrics(resumed.run) == timeless_metrics(whole.run)
    assert [line["iteration"] for line in timeless_metrics(resumed.run)] == list(range(1, 61))
    events = EventAccumulator(str(resumed.run))
    events.Reload()
    assert [event.step for event in events.Scalars("Loss/value")] == list(range(1, 61))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of ten iterations, saved after seven and ten."""
    folder = tmp_path_factory.mktemp("user")
    make_tasks(folder)
    job = Job(folder, TASK, *FLAGS, "--max-iterations", "10", warm=True)
    assert job.wait() == 0, job.output
    return job.run


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """A copy of that run, where `start` looks for it."""
    return shutil.copytree(finished, tmp_path / "user" / "logs" / TASK / finished.name)


def test_a_changed_configuration_is_an_error_or_said(start, run):
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    changes = ("--resume", str(run), "--ppo.gamma", "0.8", "--env.rewards.upright.weight", "3.0")
    job = start(*changes, "--max-iterations", "14")
    assert job.wait() == 2, job.output
    assert job.output == (
        f"error: the configuration is not that of {run}:\n"
        "  --env.rewards.upright.weight: 1.0 in the run, 3.0 now\n"
        "  --ppo.gamma: 0.99 in the run, 0.8 now\n"
        "leave out these flags, or go on with --resume-with-changes True\n"
    )
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before

    job = start(*changes, "--max-iterations", "14", "--resume-with-changes", "True")
    assert job.wait() == 0, job.output
    assert (
        "the continuation is not exact: --env.rewards.upright.weight, --ppo.gamma; "
        "environments start new episodes" in job.output
    )
    assert [line["iteration"] for line in timeless_metrics(run)] == list(range(1, 15))


def test_a_damaged_state_is_told_and_the_one_before_goes_on_until_the_run_is_done(start, run):
    newest = run / "resume.pt"
    newest.write_bytes(newest.read_bytes()[:-1000])
    job = start("--resume", str(run))
    assert job.wait() == 0, job.output
    assert f"warning: {newest} is not a training state, or it is damaged" in job.output
    assert f"going on with {run} after iteration 7" in job.output
    assert [line["iteration"] for line in timeless_metrics(run)] == list(range(1, 11))

    job = start("--resume", str(run))
    assert job.wait() == 0
    done = f"{run} is done: it was trained for 10 iterations"
    assert job.output == f"{done}; to continue, pass a larger --max-iterations\n"


def test_a_run_that_is_being_trained_is_not_resumed(start):
    job = start(*ONE_RANK, "--save-interval", "1")
    job.wait_until_saved()
    run = str(job.run)
    other = start("--resume", run, folder="other")
    assert other.wait() == 2
    assert "is still being trained by another process" in other.output
    job.interrupt()
    assert job.wait() == 130


@pytest.mark.slow
def test_a_rank_killed_twice_is_started_again_and_the_run_ends(start):
    flags = (*FLAGS, "--max-iterations", "40", "--save-interval", "2", "--max-restarts", "2")
    job = start(*flags, warm=False)
    for restart in range(3):
        job.wait_until(lambda n=restart: job.output.count("going on with") == n)
        shown = len(job.output)
        job.wait_until(lambda n=shown: job.output.count("\niteration", n) > 2)
        job.wait_until_saved()
        if restart < 2:
            os.kill(job.ranks()[0], signal.SIGKILL)
            job.wait_for(f"restart {restart + 1} of 2 in {2**restart} s")
    assert job.wait() == 0, job.output
    assert job.output.count("was killed: Signal 9 (SIGKILL)") == 2
    assert [line["iteration"] for line in timeless_metrics(job.run)] == list(range(1, 41))


@pytest.fixture
def small_disk(tmp_path):
    """An empty file system of 20 MB, as only root can make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20M", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a file system can be mounted by root alone")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_does_not_end_training_but_is_told(start, small_disk):
    job = start(*FLAGS, "--save-interval", "5", "--log-root", str(small_disk))
    job.wait_until(lambda: any(small_disk.glob("*/*/resume.pt")))
    command = ["dd", "if=/dev/zero", f"of={small_disk / 'filler'}", "bs=4k"]
    filled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "No space left on device" in filled.stderr
    assert job.wait() == 1, job.output
    assert "iteration 60/60" in job.output
    assert job.output.count("cannot be saved, trying again: No space left on device") == 1
    assert job.output.count("metrics cannot be written, trying again: No space left on device") == 1
    assert "warning: the last checkpoint or metrics could not be written" in job.output
    (run,) = small_disk.glob("*/2*")
    saved = open_run(run)
    assert not saved.warnings
    assert 0 < saved.iteration < 60
    assert read_checkpoint(run / f"model_{saved.iteration}.pt")["iter"] == saved.iteration
    assert not list(run.glob(".*"))
