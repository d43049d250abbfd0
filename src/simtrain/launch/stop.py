"""Signals that ask a run to stop: finish the iteration, save, and exit."""

from __future__ import annotations

import signal
from types import FrameType


class StopSignals:
    """Notes SIGINT and SIGTERM while it is entered; a second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        """The first signal received, or None."""
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.received is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
