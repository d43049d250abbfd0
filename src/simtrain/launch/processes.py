"""Processes that must not outlive each other, on Linux."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when the process that started it is gone.

    Args:
        parent: id of that process; without it, one that is gone already is not noticed.
    """
    parent = parent or os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def session_of(pid: int) -> int | None:
    """The session of a process; None if it does not run, or no longer."""
    try:
        # The command's name, in parentheses, may hold spaces and parentheses.
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return None
    state, _, _, session, *_ = stat.split()
    return None if state in ("Z", "X") else int(session)


def session_members(session: int) -> list[int]:
    """Ids of the processes of a session that still run."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if session_of(pid) == session]


def end_session(session: int, grace: float) -> None:
    """Wait until no process of a session runs; kill those that do after `grace` seconds."""
    deadline = time.monotonic() + grace
    while session_members(session) and time.monotonic() < deadline:
        time.sleep(0.05)
    for _ in range(100):
        members = session_members(session)
        if not members:
            return
        for member in members:
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        time.sleep(0.05)
