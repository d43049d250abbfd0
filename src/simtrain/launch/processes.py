"""Processes on Linux: that they neither outlive nor slow down each other. Imports no torch."""

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def limit_spinning() -> None:
    """Let OpenMP threads spin for some ten microseconds; call it before torch is imported.

    By default they spin for milliseconds after each operation. Against any other busy thread on the
    same cores, that makes an update up to fifty times slower. Sleeping at once makes small
    operations wait for the kernel instead, for half as long again. Values that the user set hold.
    """
    if "GOMP_SPINCOUNT" not in os.environ and "OMP_WAIT_POLICY" not in os.environ:
        os.environ["GOMP_SPINCOUNT"] = "10000"


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its `parent` is gone; an id finds one gone already."""
    parent = parent or os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def state_and_session(pid: int) -> tuple[str, int]:
    """A process's state, "Z" of one whose end its parent has not noticed, "X" of none; session."""
    try:
        # The command's name, in parentheses, may hold spaces and parentheses.
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return stat[0], int(stat[3])


def end_session(session: int, grace: float) -> None:
    """Wait until no process of a session runs; kill those that do after `grace` seconds."""
    deadline = time.monotonic() + grace
    while _session_members(session) and time.monotonic() < deadline:
        time.sleep(0.05)
    for _ in range(100):
        if not (members := _session_members(session)):
            return
        for member in members:
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        time.sleep(0.05)


def _session_members(session: int) -> list[int]:
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    found = [(pid, *state_and_session(pid)) for pid in pids]
    return [pid for pid, state, its in found if its == session and state not in ("Z", "X")]
