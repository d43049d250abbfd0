"""How processes end: by signals that ask a run to stop, with their parent, and with their session.

A run that is asked to stop finishes its iteration, saves and exits, within some seconds. Threads
act on signals: Python's own handlers run between two bytecodes of the main thread, which may be
stuck, in a collective that another rank never enters or in a simulation. Imports no torch.
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from signal import Signals
from types import FrameType

import psutil

STOP_SIGNALS = (Signals.SIGINT, Signals.SIGTERM, Signals.SIGHUP, Signals.SIGUSR1)
"""Ctrl-C, the end of a job, the end of a terminal, and an early warning that SLURM can send."""
_END = b"\0"
_PR_SET_PDEATHSIG = 1


@dataclass
class StopSignals:
    """Catches `heeded_signals` while it is entered, which only the main thread can do.

    The first one is passed to `on_signal` at once, and to `on_expiry` if this is still entered
    `seconds` later; when SIGINT follows it, `on_second_interrupt` is called. All three are called
    in other threads. While one of the last two runs, `__exit__` waits: they may end the process.
    With `raises`, the second SIGINT also raises KeyboardInterrupt in the main thread.
    """

    seconds: float
    _: KW_ONLY
    on_signal: Callable[[Signals], None] = lambda number: None
    on_expiry: Callable[[Signals], None] = lambda number: None
    on_second_interrupt: Callable[[], None] = lambda: None
    repeat_seconds: float = 0.5
    """For how long after the first signal SIGINT counts as the same one: a signal to a process
    group comes a second time from a parent that passes it on, as uv does."""
    raises: bool = False
    received: Signals | None = field(default=None, init=False)
    """The first signal."""

    def __post_init__(self) -> None:
        self._pipe: int | None = None
        self._lock = threading.Lock()
        self._cancelled = False
        self._interrupted_at = math.inf

    def __enter__(self) -> StopSignals:
        reading, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        threading.Thread(target=self._act, args=(reading, self._pipe), daemon=True).start()
        # Written to as soon as a signal comes, whatever the main thread does.
        self._wakeup = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        # Unlike SIG_IGN, a handler that does nothing lets signals reach the pipe.
        self._previous = {n: signal.signal(n, self._handle) for n in heeded_signals()}
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel_deadline()
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._write(_END)

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.received is not None

    def cancel_deadline(self) -> None:
        """Call neither `on_expiry` nor `on_second_interrupt` from now on: the run is done."""
        with self._lock:
            self._cancelled = True

    def receive(self, number: Signals) -> None:
        """Act on a signal that another process has received."""
        self.received = self.received or number
        self._write(bytes([number]))

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not self.raises or number != Signals.SIGINT:
            return
        now = time.monotonic()
        if now > self._interrupted_at + self.repeat_seconds:
            raise KeyboardInterrupt
        self._interrupted_at = min(self._interrupted_at, now)

    def _write(self, message: bytes) -> None:
        if self._pipe is not None:
            os.write(self._pipe, message)

    def _act(self, reading: int, writing: int) -> None:
        """Act on the signals in a pipe until `__exit__`."""
        expiry: threading.Timer | None = None
        began = 0.0
        while _END not in (numbers := os.read(reading, 64)):
            for number in (number for number in STOP_SIGNALS if number in numbers):
                now = time.monotonic()
                if expiry is None:
                    self.received = self.received or number
                    began, seconds = now, min(self.seconds, threading.TIMEOUT_MAX)
                    expire = partial(self.on_expiry, number)
                    expiry = threading.Timer(seconds, self._unless_cancelled, (expire,))
                    # It may wait for a terminal or a network, which must not hold up the rest.
                    on_signal = threading.Thread(target=self.on_signal, args=(number,))
                    for thread in (expiry, on_signal):
                        thread.daemon = True
                        thread.start()
                elif number == Signals.SIGINT and now > began + self.repeat_seconds:
                    self._unless_cancelled(self.on_second_interrupt)
        if expiry is not None:
            expiry.cancel()
        os.close(reading)
        os.close(writing)

    def _unless_cancelled(self, action: Callable[[], None]) -> None:
        with self._lock:
            if not self._cancelled:
                action()


def heeded_signals() -> tuple[Signals, ...]:
    """`STOP_SIGNALS`, without SIGHUP where it is ignored: under ``nohup``, and in ranks."""
    is_ignored = signal.getsignal(Signals.SIGHUP) is signal.SIG_IGN
    return tuple(n for n in STOP_SIGNALS if n != Signals.SIGHUP or not is_ignored)


def exit_code(number: Signals | None) -> int:
    """The exit code after a stop signal, 0 for none and for SIGUSR1, by which a scheduler asks."""
    return 0 if number is None or number == Signals.SIGUSR1 else 128 + number


def ignore_stop_signals() -> None:
    """Ignore `STOP_SIGNALS` in this process and in all that it starts, unless they undo it."""
    signal.set_wakeup_fd(-1)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def limit_spinning() -> None:
    """Let OpenMP threads spin for some ten microseconds; call it before torch is imported.

    By default they spin for milliseconds after each operation. Against any other busy thread on the
    same cores, that makes an update up to fifty times slower. Sleeping at once makes small
    operations wait for the kernel instead, for half as long again. Values that the user set stay.
    """
    if "GOMP_SPINCOUNT" not in os.environ and "OMP_WAIT_POLICY" not in os.environ:
        os.environ["GOMP_SPINCOUNT"] = "10000"


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends, or now if it has ended already.

    Without the `parent`'s process id, it is the one by which multiprocessing started this process.
    """
    known = multiprocessing.parent_process()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != (known.pid if parent is None and known else parent):
        os.kill(os.getpid(), signal.SIGKILL)


def has_ended(pid: int) -> bool:
    """Whether a process does not run any more; its parent may have yet to notice."""
    try:
        return psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return True


def end_session(session: int, grace: float) -> None:
    """Wait until no process of a session runs; kill those that do after `grace` seconds."""
    deadline = time.monotonic() + grace
    while (members := _session_members(session)) and time.monotonic() < deadline + 5.0:
        for member in members if time.monotonic() >= deadline else ():
            with suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        time.sleep(0.05)


def _session_members(session: int) -> list[int]:
    """Running processes of a session."""
    members = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError):
            if os.getsid(pid) == session:
                members.append(pid)
    return [pid for pid in members if not has_ended(pid)]
