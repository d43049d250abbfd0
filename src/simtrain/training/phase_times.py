"""From the intervals of a rank's stopwatch to the seconds of each phase of an iteration."""

from __future__ import annotations

from collections.abc import Sequence

from simtrain.env.phase_timer import Interval
from simtrain.launch.rank import Rank
from simtrain.metric_tags import PHASES


def phase_seconds(intervals: Sequence[Interval], rank: Rank) -> dict[str, float]:
    """Seconds of every phase on this rank, which add up to all intervals; all ranks call it.

    Time in a collective is the collective's own and that of waiting for ranks that come later. The
    rank that comes last waits for nobody, so its time is the collective's own. An empty sequence,
    of a stopwatch that is off, gives an empty mapping.
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
