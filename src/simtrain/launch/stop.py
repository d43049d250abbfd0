"""Signals that ask a run to stop: finish the iteration, save, and exit, within some seconds.

What a signal brings happens in a thread. Python's own handlers run between two bytecodes of the
main thread, which may be stuck: in a collective that another rank never enters, or in a simulation.
"""

from __future__ import annotations

import math
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from signal import Signals
from types import FrameType

STOP_SIGNALS = (Signals.SIGINT, Signals.SIGTERM, Signals.SIGUSR1)
"""Ctrl-C, the end of a job, and what SLURM can send some time before that."""

_REPEATED_SECONDS = 0.5
"""A signal to a whole process group comes a second time from a parent that passes it on, as uv."""
_LONGEST_WAIT = 3600.0
"""What `select` may be asked to wait for at once, s; a user may grant a run more than it takes."""
_END = b"\0"


class StopSignals:
    """Notes the first of `STOP_SIGNALS` while it is entered, which only the main thread can do."""

    def __init__(
        self,
        seconds: float,
        *,
        on_signal: Callable[[Signals], None] = lambda number: None,
        on_expiry: Callable[[Signals], None] = lambda number: None,
        on_second_interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        """The functions are called from other threads than the main thread.

        Args:
            seconds: how long a run may go on after the first signal.
            on_signal: called at once with the first signal.
            on_expiry: called with the first signal if this is still entered `seconds` later.
            on_second_interrupt: called when SIGINT follows the first signal.

        While one of the last two runs, nobody leaves: they may end the process.
        """
        self.received: Signals | None = None
        """The first signal received, or None."""
        self._seconds = seconds
        self._on_signal = on_signal
        self._on_expiry = on_expiry
        self._on_second_interrupt = on_second_interrupt
        self._previous: dict[Signals, object] = {}
        self._pipe: int | None = None
        self._acting = threading.Lock()
        self._done = False

    def __enter__(self) -> StopSignals:
        reading, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        threading.Thread(target=self._watch, args=(reading, self._pipe), daemon=True).start()
        # Written to as soon as a signal comes, whatever the main thread does.
        self._wakeup = signal.set_wakeup_fd(self._pipe, warn_on_full_buffer=False)
        for number in STOP_SIGNALS:
            self._previous[number] = signal.signal(number, _leave_it_to_the_thread)
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel_deadline()
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._write(_END)

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.received is not None

    def cancel_deadline(self) -> None:
        """Call neither `on_expiry` nor `on_second_interrupt` from now on: the run has done it."""
        with self._acting:
            self._done = True

    def note(self, number: Signals) -> None:
        """Act as if this process had received a signal, which another one has."""
        self.received = self.received or number
        self._write(bytes([number]))

    def _write(self, message: bytes) -> None:
        if self._pipe is not None:
            os.write(self._pipe, message)

    def _watch(self, reading: int, writing: int) -> None:
        """Act on signals, which a pipe brings, until this is left."""
        began: float | None = None
        expiry = math.inf
        expire: Callable[[], None] = lambda: None  # noqa: E731 - until there is a first signal
        while True:
            left = max(0.0, expiry - time.monotonic())
            ready, _, _ = select.select([reading], [], [], min(left, _LONGEST_WAIT))
            if not ready:
                if time.monotonic() >= expiry:
                    expiry = math.inf
                    self._unless_done(expire)
                continue
            numbers = os.read(reading, 64)
            if _END in numbers:
                os.close(reading)
                os.close(writing)
                return
            for number in STOP_SIGNALS:
                if number not in numbers:
                    continue
                now = time.monotonic()
                if began is None:
                    self.received = self.received or number
                    began, expiry = now, now + self._seconds
                    expire = partial(self._on_expiry, number)
                    # It may wait for a terminal or a network, which must not hold up the rest.
                    threading.Thread(target=self._on_signal, args=(number,), daemon=True).start()
                elif number == Signals.SIGINT and now > began + _REPEATED_SECONDS:
                    self._unless_done(self._on_second_interrupt)

    def _unless_done(self, action: Callable[[], None]) -> None:
        with self._acting:
            if not self._done:
                action()


def _leave_it_to_the_thread(number: int, frame: FrameType | None) -> None:
    pass


def ignore_stop_signals() -> None:
    """Ignore `STOP_SIGNALS` in this process and, until they say otherwise, in all it starts."""
    signal.set_wakeup_fd(-1)
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Let `STOP_SIGNALS` wait in the calling thread, and in the processes that it forks."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
