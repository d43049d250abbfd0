"""Timers for the phases of an iteration: each begins where the one before ends.

On a GPU a phase begins when the device gets there: CUDA events mark the places, nothing waits for
them, and they are read once an iteration. On the CPU it is the calling thread's clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch

Interval = tuple[str, float]
"""A phase and how long it lasted, in seconds."""


class PhaseTimer:
    """Records nothing and costs nothing, for where no times are wanted."""

    _paused = False

    def begin(self, phase: str) -> None:
        """From here on it is `phase`, until the next one begins."""

    def take(self, then: str) -> list[Interval]:
        """All intervals since this was last called, in order; from here on it is `then`.

        Waits for a GPU. What came before the first call is forgotten.
        """
        return []

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it no phase begins: code may be captured, or tried, without being timed."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before


NO_TIMER = PhaseTimer()


class CpuTimer(PhaseTimer):
    """Times the calling thread."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._phases: list[str] = []
        self._starts: list[float] = []
        self._clock = clock

    def begin(self, phase: str) -> None:
        """See `PhaseTimer.begin`."""
        if self._paused:
            return
        self._phases.append(phase)
        self._starts.append(self._clock())

    def take(self, then: str) -> list[Interval]:
        """See `PhaseTimer.take`."""
        self.begin(then)
        found = _intervals(self._phases, [b - a for a, b in pairwise(self._starts)])
        self._phases, self._starts = [then], self._starts[-1:]
        return found


class CudaTimer(PhaseTimer):
    """Times what PyTorch's current stream does, by events that are used again and again."""

    def __init__(self) -> None:
        self._phases: list[str] = []
        self._events: list[torch.cuda.Event] = []

    def begin(self, phase: str) -> None:
        """See `PhaseTimer.begin`."""
        if self._paused:
            return
        number = len(self._phases)
        if number == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))
        self._events[number].record()
        self._phases.append(phase)

    def take(self, then: str) -> list[Interval]:
        """See `PhaseTimer.take`."""
        self.begin(then)
        last = len(self._phases) - 1
        self._events[last].synchronize()
        events = self._events[: last + 1]
        found = _intervals(self._phases, [a.elapsed_time(b) / 1e3 for a, b in pairwise(events)])
        self._phases = [then]
        self._events[0], self._events[last] = self._events[last], self._events[0]
        return found


def make_timer(device: torch.device) -> PhaseTimer:
    """A timer for `device`."""
    return CudaTimer() if device.type == "cuda" else CpuTimer()


def _intervals(phases: Sequence[str], seconds: Sequence[float]) -> list[Interval]:
    """What each phase but the last, which has only begun, took."""
    return list(zip(phases[:-1], seconds, strict=True))
