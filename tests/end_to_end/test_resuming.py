"""The real `train` command, killed and resumed: as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from job import Job, make_tasks, timeless_metrics
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from simtrain.run.checkpoint import read_checkpoint
from simtrain.training.resumption import open_run

pytestmark = pytest.mark.timeout(300)

ONE_RANK = ("--gpu-ids", "None", "--cpu-threads", "1")
FLAGS = ("--torchrunx-log-dir", "", "--save-interval", "7", "--max-iterations", "60")


@pytest.fixture
def start(tmp_path):
    """Starts `train` on the user's task in a folder of its own; killed after the test."""
    jobs = []

    def start(*flags: str, folder: str = "run", warm: bool = True) -> Job:
        here = tmp_path / folder
        if not here.exists():
            here.mkdir()
            make_tasks(here)
        jobs.append(Job(here, "user-pendulum", *flags, warm=warm))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


def test_a_killed_run_goes_on_as_if_nothing_had_happened(start):
    whole = start(*ONE_RANK, *FLAGS, folder="whole")
    killed = start(*ONE_RANK, *FLAGS)
    killed.wait_for("iteration 30/60")
    killed.process.send_signal(signal.SIGKILL)
    killed.wait_for_end()
    assert whole.wait() == 0, whole.output

    resumed = start("--resume", "latest")
    assert resumed.wait() == 0, resumed.output
    assert f"going on with logs/user-pendulum/{killed.run.name} after iteration" in resumed.output
    assert "not exact" not in resumed.output
    assert timeless_metrics(resumed.run) == timeless_metrics(whole.run)
    assert [line["iteration"] for line in timeless_metrics(resumed.run)] == list(range(1, 61))
    events = EventAccumulator(str(resumed.run))
    events.Reload()
    assert [event.step for event in events.Scalars("Loss/value")] == list(range(1, 61))


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Job:
    """A run of ten iterations, saved after seven and ten."""
    folder = tmp_path_factory.mktemp("user")
    make_tasks(folder)
    job = Job(folder, "user-pendulum", *ONE_RANK, *FLAGS, "--max-iterations", "10", warm=True)
    assert job.wait() == 0, job.output
    return job


@pytest.fixture
def run(finished, tmp_path) -> Path:
    """A copy of that run, where `start` looks for it."""
    (tmp_path / "run").mkdir()
    make_tasks(tmp_path / "run")
    copy = tmp_path / "run" / "logs" / "user-pendulum" / finished.run.name
    shutil.copytree(finished.run, copy)
    return copy


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


def test_a_damaged_state_is_told_and_the_one_before_goes_on(start, run):
    newest = run / "resume.pt"
    newest.write_bytes(newest.read_bytes()[:-1000])
    job = start("--resume", str(run))
    assert job.wait() == 0, job.output
    assert f"warning: {newest} is not a training state, or it is damaged" in job.output
    assert f"going on with {run} after iteration 7" in job.output
    assert [line["iteration"] for line in timeless_metrics(run)] == list(range(1, 11))


def test_a_finished_run_is_not_trained_further(start, run):
    job = start("--resume", str(run))
    assert job.wait() == 0
    done = f"{run} is done: it was trained for 10 iterations"
    assert job.output == f"{done}; a larger --max-iterations goes on with it\n"


def test_a_run_that_is_being_trained_is_not_resumed(start):
    job = start(*ONE_RANK, "--save-interval", "1")
    job.wait_until(lambda: any(job.folder.glob("logs/*/*/resume.pt")))
    command = [
        sys.executable,
        "-m",
        "simtrain.cli.start",
        "train",
        "user-pendulum",
        "--resume",
        "latest",
    ]
    other = subprocess.run(command, cwd=job.folder, capture_output=True, text=True, timeout=100)
    assert other.returncode == 2
    assert "is still being trained by another process" in other.stderr
    os.killpg(job.process.pid, signal.SIGINT)
    assert job.wait() == 130


@pytest.mark.slow
def test_a_rank_killed_twice_is_started_again_and_the_run_ends(start):
    job = start(
        *ONE_RANK, "--max-iterations", "40", "--save-interval", "2", "--max-restarts", "2",
        "--torchrunx-log-dir", "", warm=False,
    )  # fmt: skip
    for restart in range(3):
        job.wait_until(lambda n=restart: job.output.count("going on with") == n)
        shown = len(job.output)
        job.wait_until(lambda n=shown: job.output.count("\niteration", n) > 2)
        job.wait_until(lambda: any(job.folder.glob("logs/*/*/resume.pt")))
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
    job = start(
        *ONE_RANK, "--save-interval", "5", "--max-iterations", "60", "--log-root", str(small_disk)
    )
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


def test_a_vanished_folder_does_not_end_training_but_is_told(start, tmp_path):
    job = start(*ONE_RANK, "--save-interval", "5", "--max-iterations", "40")
    job.wait_until(lambda: any(job.folder.glob("logs/*/*/resume.pt")))
    (job.folder / "logs").rename(tmp_path / "elsewhere")
    assert job.wait() == 1, job.output
    assert "iteration 40/40" in job.output
    assert "cannot be saved, trying again: No such file or directory" in job.output
