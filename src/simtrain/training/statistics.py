"""From sums on the device to the numbers of an iteration."""

from __future__ import annotations

from collections import deque

MIN_EPISODES = 100
"""Episodes that mean returns are taken over, at least, once so many have finished (as rsl_rl)."""


class EpisodeStatistics:
    """Means over the latest episodes, from each iteration's sums and count."""

    def __init__(self) -> None:
        self._window: deque[tuple[float, float, float]] = deque()

    def add(self, count: float, returns: float, lengths: float) -> None:
        """Add an iteration: how many episodes finished, and the sums of returns and lengths."""
        if count > 0:
            self._window.append((count, returns, lengths))
        total = sum(entry[0] for entry in self._window)
        while self._window and total - self._window[0][0] >= MIN_EPISODES:
            total -= self._window.popleft()[0]

    def means(self) -> tuple[float, float] | None:
        """Mean return and length, or None before a first episode has finished."""
        count = sum(entry[0] for entry in self._window)
        if count == 0:
            return None
        return (
            sum(entry[1] for entry in self._window) / count,
            sum(entry[2] for entry in self._window) / count,
        )

    def state(self) -> list[list[float]]:
        """All that is remembered, as plain data."""
        return [list(entry) for entry in self._window]

    def set_state(self, state: list[list[float]]) -> None:
        """Continue from what `state` returned."""
        self._window = deque((count, returns, lengths) for count, returns, lengths in state)
