"""Training goes on, and saves, when nobody reads what it prints any more."""

import fcntl
import os
import pty
import subprocess
import sys
import termios

import pytest
from job import TRAIN, TWO_RANKS, make_tasks, timeless_metrics

pytestmark = pytest.mark.timeout(300)


def test_two_ranks_stop_and_save_when_their_terminal_is_closed(here):
    """The terminal sends SIGHUP, and takes nothing from then on."""
    make_tasks(here)
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, *TRAIN, "user-pendulum", *TWO_RANKS],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
    ) as process:
        os.close(theirs)
        shown = b""
        while b"steps/s" not in shown:
            shown += os.read(ours, 4096)
        os.close(ours)
        assert process.wait() == 129
    (run,) = here.glob("logs/*/*")
    assert (run / "resume.pt").exists()
    assert (run / f"model_{len(timeless_metrics(run))}.pt").exists()
