"""Signals that ask a run to stop: finish the iteration, save, and exit, within some seconds.

Threads act on signals. Python's own handlers run between two bytecodes of the main thread, which
may be stuck: in a collective that another rank never enters, or in a simulation.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from signal import Signals
from types import FrameType

STOP_SIGNALS = (Signals.SIGINT, Signals.SIGTERM, Signals.SIGHUP, Signals.SIGUSR1)
"""Ctrl-C, the end of a job, the end of a terminal, and what SLURM can send some time before."""
_END = b"\0"


@dataclass
class StopSignals:
    """Catches `heeded_signals` while it is entered, which only the main thread can do.

    The first one is given to `on_signal` at once, and to `on_expiry` if this is still entered
    `seconds` later; when SIGINT follows it, `on_second_interrupt` is called. They are called from
    other threads. While one of the last two runs, `__exit__` waits: they may end the process. With
    `raises`, the second SIGINT raises KeyboardInterrupt in the main thread besides.
    """

    seconds: float
    _: KW_ONLY
    on_signal: Callable[[Signals], None] = lambda number: None
    on_expiry: Callable[[Signals], None] = lambda number: None
    on_second_interrupt: Callable[[], None] = lambda: None
    # So long SIGINT after the first signal is taken for the same one: a signal to a whole process
    # group comes a second time from a parent that passes it on, as uv does.
    repeat_seconds: float = 0.5
    raises: bool = False
    received: Signals | None = field(default=None, init=False)  # the first one

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
        """Act as if this process had received a signal, which another one has."""
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
        """Act on signals, which a pipe brings, until `__exit__`."""
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
                    telling = threading.Thread(target=self.on_signal, args=(number,))
                    for thread in (expiry, telling):
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


def ignore_stop_signals() -> None:
    """Ignore `STOP_SIGNALS` in this process and, until they say otherwise, in all it starts."""
    signal.set_wakeup_fd(-1)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
