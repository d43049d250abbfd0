"""From sums on each rank to the numbers of an iteration, over all ranks."""

from collections import deque
from collections.abc import Mapping, Sequence

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


class Reduction:
    """Sums with counts, and maxima, over all ranks.

    Ranks may have different names to report: a curriculum that has begun on one of them only, say.
    They agree on the names whenever one of them has a new one.
    """

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._names: list[str] = []

    def has_new_names(self, sums: Sums) -> bool:
        """Whether ranks must agree on names before they reduce `sums`."""
        return not sums.keys() <= set(self._names)

    def agree_on_names(self, sums: Sums) -> None:
        """Take the names of all ranks; all ranks call it together."""
        everyone = self._rank.all_gather_object(list(sums))
        self._names = sorted({name for names in everyone for name in names})

    def __call__(self, sums: Sums, maxima: Mapping[str, float]) -> tuple[Sums, dict[str, float]]:
        """Sums and counts over all ranks, and maxima; all ranks call it together.

        Args:
            sums: this rank's; names that others have may be missing.
            maxima: this rank's, of the same names on all ranks.
        """
        row = [number for name in self._names for number in sums.get(name, (0.0, 0.0))]
        rows = self._rank.all_gather([*row, *maxima.values()])
        totals = rows[:, : len(row)].sum(dim=0).reshape(-1, 2).tolist()
        largest = rows[:, len(row) :].amax(dim=0).tolist()
        return (
            {
                n: (total, count)
                for n, (total, count) in zip(self._names, totals, strict=True)
                if count
            },
            dict(zip(maxima, largest, strict=True)),
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
