"""Processes on Linux: that they neither outlive nor slow down each other. Imports no torch."""

import ctypes
import os
import select
import signal
import threading
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


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its `parent` is gone, or now if it is gone already."""
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


def end_session_without_reader(pipe: int) -> None:
    """Kill the processes of this one's session, itself last, once nobody can read from a pipe.

    A thread waits for that. `pipe` is the descriptor of the end that is written to.
    """

    def wait_and_end() -> None:
        reader = select.poll()
        reader.register(pipe, 0)  # for errors alone
        reader.poll()
        end_session(os.getsid(0), 0.0)
        os._exit(1)

    threading.Thread(target=wait_and_end, daemon=True).start()


def _session_members(session: int) -> list[int]:
    """Processes of a session that run, without this one."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    found = [(pid, *state_and_session(pid)) for pid in pids if pid != os.getpid()]
    return [pid for pid, state, its in found if its == session and state not in ("Z", "X")]
