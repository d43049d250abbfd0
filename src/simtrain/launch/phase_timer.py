"""Timers for the phases of an iteration: each begins where the one before ends.

On a GPU a phase begins when the device gets there: CUDA events mark the places, nothing waits for
them, and they are read once an iteration. On the CPU it is the calling thread's clock.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

Interval = tuple[str, float]  # a phase and how long it lasted, in seconds


class PhaseTimer:
    """Base class of timers; by itself, it records nothing and costs nothing."""

    _paused = False

    def begin(self, phase: str) -> None:
        """From here on it is `phase`, until the next one begins."""

    def take(self, then: str) -> list[Interval]:
        """Wait for a GPU; all intervals since the last call, in order. From now on it is `then`."""
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

    def __init__(self, clock: Callable[[], Any] = time.perf_counter) -> None:
        self._clock = clock
        self._starts: list[tuple[str, Any]] = []

    def begin(self, phase: str) -> None:
        """See `PhaseTimer.begin`."""
        if not self._paused:
            self._starts.append((phase, self._clock()))

    def take(self, then: str) -> list[Interval]:
        """See `PhaseTimer.take`."""
        self.begin(then)
        starts, self._starts = self._starts, self._starts[-1:]
        return self._intervals(starts)

    def _intervals(self, starts: Sequence[tuple[str, Any]]) -> list[Interval]:
        return [(phase, end - start) for (phase, start), (_, end) in pairwise(starts)]


class CudaTimer(CpuTimer):
    """Times what PyTorch's current stream does, by events that are used again and again."""

    def __init__(self) -> None:
        super().__init__(self._recorded_event)
        self._unused: list[torch.cuda.Event] = []

    def _recorded_event(self) -> torch.cuda.Event:
        event = self._unused.pop() if self._unused else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _intervals(self, starts: Sequence[tuple[str, Any]]) -> list[Interval]:
        starts[-1][1].synchronize()
        self._unused += [event for _, event in starts[:-1]]
        return [(phase, a.elapsed_time(b) / 1e3) for (phase, a), (_, b) in pairwise(starts)]


def make_timer(device: torch.device) -> PhaseTimer:
    """A timer for `device`."""
    return CudaTimer() if device.type == "cuda" else CpuTimer()
