"""Training goes on, and saves, when nobody reads what it prints any more."""

import fcntl
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from job import TRAIN, TWO_RANKS, make_tasks, timeless_metrics

pytestmark = pytest.mark.timeout(300)


def only_run(folder: Path) -> Path:
    (run,) = folder.glob("logs/*/*")
    return run


def test_a_training_of_two_ranks_ends_as_if_its_output_were_read(tmp_path):
    make_tasks(tmp_path)
    flags = ("user-pendulum", *TWO_RANKS, "--max-iterations", "5")
    command = [sys.executable, *TRAIN, *flags]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        assert process.wait() == 0
    assert len(timeless_metrics(only_run(tmp_path))) == 5
    assert (only_run(tmp_path) / "model_5.pt").exists()


def test_training_stops_and_saves_when_its_terminal_is_closed(tmp_path):
    """The terminal sends SIGHUP, and takes nothing from then on."""
    make_tasks(tmp_path)
    ours, theirs = pty.openpty()
    command = [sys.executable, *TRAIN, "user-pendulum", "--gpu-ids", "None", "--cpu-threads", "1"]

    def take_terminal() -> None:
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    with subprocess.Popen(
        command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs,
        start_new_session=True, preexec_fn=take_terminal,
    ) as process:  # fmt: skip
        os.close(theirs)
        shown = b""
        while b"steps/s" not in shown:
            shown += os.read(ours, 4096)
        os.close(ours)
        assert process.wait() == 129
    run = only_run(tmp_path)
    assert (run / "resume.pt").exists()
    assert (run / f"model_{len(timeless_metrics(run))}.pt").exists()
