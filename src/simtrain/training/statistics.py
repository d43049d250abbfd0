"""From sums on each rank to the numbers of an iteration, over all ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from simtrain.config.metric_tags import PHASES
from simtrain.launch.phase_timer import Interval
from simtrain.launch.rank import Rank

MIN_EPISODES = 100
"""Episodes that mean returns are taken over, at least, once so many have finished (as rsl_rl)."""

Sums = dict[str, tuple[float, float]]
"""Name -> sum and count."""


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
        if not self._window:
            return None
        count, returns, lengths = (sum(column) for column in zip(*self._window, strict=True))
        return returns / count, lengths / count

    def state(self) -> list[list[float]]:
        """The latest episodes, as plain data."""
        return [list(entry) for entry in self._window]

    def set_state(self, state: list[list[float]]) -> None:
        """Continue from what `state` returned; TypeError or ValueError if it is none."""
        window = [tuple(map(float, entry)) for entry in state]
        self._window = deque((count, returns, lengths) for count, returns, lengths in window)
        if any(count <= 0.0 for count, _, _ in window):
            raise ValueError("the statistics of episodes count none")


@dataclass(frozen=True)
class Report:
    """The numbers of an iteration, of one rank or of all."""

    sums: Sums
    """Ranks may have different ones: a curriculum that has begun on one of them only, say."""
    maxima: dict[str, float]
    is_stopped: bool
    """Whether the user or the system asked to stop."""
    is_outdated: bool
    """Whether graphs of rollouts must be made anew."""
    warnings: tuple[str, ...]

    def of_all(self, rank: Rank) -> Report:
        """Sums, maxima and warnings over all ranks, which call it together."""
        reports: list[Report] = rank.all_gather_object(self)
        names = sorted({name for report in reports for name in report.sums})
        pairs = [[report.sums.get(name, (0.0, 0.0)) for name in names] for report in reports]
        totals = torch.tensor(pairs, dtype=torch.float64).sum(dim=0).tolist()
        warnings = self.warnings
        if rank.world_size > 1:
            rows = enumerate(report.warnings for report in reports)
            warnings = tuple(f"rank {i}: {text}" for i, texts in rows for text in texts)
        return Report(
            {n: (total, count) for n, (total, count) in zip(names, totals, strict=True) if count},
            {name: max(report.maxima[name] for report in reports) for name in self.maxima},
            any(report.is_stopped for report in reports),
            any(report.is_outdated for report in reports),
            warnings,
        )


def phase_seconds(intervals: Sequence[Interval], rank: Rank) -> dict[str, float]:
    """Seconds of every phase on this rank, which add up to all intervals; all ranks call it.

    Time in a collective is the collective's own and that of waiting for ranks that come later. The
    rank that comes last waits for nobody, so its time is the collective's own. No intervals, of a
    timer that is off, give an empty mapping.
    """
    if not intervals:
        return {}
    seconds = dict.fromkeys(PHASES, 0.0)
    for phase, duration in intervals:
        seconds[phase] += duration
    if rank.world_size > 1:
        collectives = [duration for phase, duration in intervals if phase == "all_reduce"]
        own = float(rank.all_gather(collectives).amin(dim=0).sum())
        seconds["waiting"] = seconds["all_reduce"] - own
        seconds["all_reduce"] = own
    return seconds
