"""Learning curves as numbers: means over runs that differ by their seed, differences of groups."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from simtrain.run.logged import Axis, Run

EVALUATED = "Eval/mean_return"
COUNTS = ("iteration", "env_steps", "wall_s")
NONE = "\N{EN DASH}"
MAX_POINTS = 200  # that a curve has at most; more are averaged
_MAX_SETTINGS = 4
# After Okabe and Ito (2008): told apart by color-blind people too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


def color(i: int) -> str:
    """The color of the i-th curve."""
    return COLORS[i % len(COLORS)]


@dataclass(frozen=True)
class Group:
    """Runs of one task with the same settings; their seeds may differ."""

    label: str  # how it differs from the other groups of its task
    runs: tuple[Run, ...]
    color: str = COLORS[0]
    settings: dict[str, str] = field(default_factory=dict)
    """Short name -> value of the settings in which the groups differ, if there are few."""

    def tags(self, prefix: str) -> list[str]:
        """All tags of its runs that begin with `prefix`, in the order of logging."""
        tags = dict.fromkeys(tag for run in self.runs for tag in run.columns)
        return [tag for tag in tags if tag.startswith(prefix)]


@dataclass(frozen=True)
class Curve:
    """A tag over several runs; arrays of equal length, ``x`` ascending."""

    x: np.ndarray
    mean: np.ndarray  # over the runs that have come so far; 0 where none has logged it
    low: np.ndarray
    high: np.ndarray
    count: np.ndarray  # of these runs, on average over the points that one of these stands for


def group_runs(runs: Sequence[Run]) -> dict[str, list[Group]]:
    """Runs by task and, within it, by settings; in the order given."""
    tasks: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        key = json.dumps(run.settings, sort_keys=True, default=str)
        tasks.setdefault(run.config["task"], {}).setdefault(key, []).append(run)
    return {task: _labelled(list(groups.values())) for task, groups in tasks.items()}


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Settings that differ between `runs`: flag -> the value of each, None if it has none."""
    flags = dict.fromkeys(flag for run in runs for flag in run.settings)
    table = {flag: [run.settings.get(flag) for run in runs] for flag in flags}
    return {flag: values for flag, values in table.items() if any(v != values[0] for v in values)}


def aggregate(runs: Sequence[Run], tags: Iterable[str], axis: Axis) -> dict[str, Curve]:
    """Tag -> its mean over `runs` and its range; empty if no run has any of the tags.

    All curves have the points of all runs and tags. A run is interpolated up to its last point.
    """
    series = {tag: [run.series(tag, axis) for run in runs] for tag in tags}
    points = [x for of_runs in series.values() for x, _ in of_runs]
    x = np.unique(np.concatenate([np.empty(0), *points]))
    if not len(x):
        return {}
    starts = np.arange(0, len(x), math.ceil(len(x) / MAX_POINTS))
    curves = {}
    for tag, of_runs in series.items():
        known = [np.interp(x, *s, math.nan, math.nan) for s in of_runs if len(s[0])]
        values = np.ma.masked_invalid(known or [np.full(len(x), math.nan)])
        parts = (x, values.mean(0), values.min(0), values.max(0), values.count(0))
        sums = np.add.reduceat([np.ma.filled(part, 0.0) for part in parts], starts, axis=1)
        curves[tag] = Curve(*(sums / np.diff(starts, append=len(x))))
    return curves


def usual_range(low: np.ndarray, high: np.ndarray) -> tuple[float, float]:
    """The range of a curve between `low` and `high` without a few outliers.

    One point in a hundred, and at least one, may be an outlier at either end. It counts as a normal
    point if it is the last one, or if its distance is no larger than the range of the others.
    Infinities without numbers.
    """
    known = np.isfinite(low) & np.isfinite(high)
    if not known.any():
        return math.inf, -math.inf
    low, high = low[known], high[known]
    out = math.ceil(len(low) / 100)
    if len(low) <= 4 * out:
        return float(low.min()), float(high.max())
    bottom, top = min(np.sort(low)[out], low[-1]), max(np.sort(high)[-1 - out], high[-1])
    margin = top - bottom or math.inf
    return float(max(low.min(), bottom - margin)), float(min(high.max(), top + margin))


def number(value: float, digits: int = 3) -> str:
    """A number in few characters: 1.5M, 120k, 0.0123; below 0.001, with one digit less."""
    text = f"{value:.{digits if value == 0.0 or abs(value) >= 0.001 else digits - 1}g}"
    for size, letter in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        if abs(value) >= 0.9995 * size:
            text = f"{value / size:.{digits}g}{letter}"
    return text.replace("e-0", "e-").replace("-", "\N{MINUS SIGN}")


def _labelled(groups: list[list[Run]]) -> list[Group]:
    """Groups of runs of one task, named by a few settings that differ, or by the runs."""
    first = [runs[0] for runs in groups]
    given = [{str(run.config.get("run_name") or "") for run in runs} for runs in groups]
    is_named = {*map(len, given)} == {1} and len(set().union(*given) - {""}) == len(groups)
    changed = differences(first)
    labelled = []
    for i, runs in enumerate(groups):
        settings = {}
        if len(changed) <= _MAX_SETTINGS:
            values = (_shown(of_groups[i]) for of_groups in changed.values())
            settings = dict(zip(_short_names(changed), values, strict=True))
        label = ", ".join(f"{name} {value}" for name, value in settings.items())
        if is_named and len(groups) > 1:
            label = f"{first[i].config['run_name']}{label and f': {label}'}"
        label = label or first[i].name
        if len(runs) > 1:
            label = f"{label} ({len(runs)} runs)" if len(groups) > 1 else f"{len(runs)} runs"
        labelled.append(Group(label, tuple(runs), color(i), settings))
    return labelled


def _short_names(flags: Iterable[str]) -> list[str]:
    """The last part of each flag, or as many parts as distinguish it from the others."""
    split = [flag.split(".") for flag in flags]
    names = []
    for parts in split:
        size = 2 if parts[0] == "env" and len(parts) > 3 else 1  # whose weight?
        while size < len(parts) and sum(parts[-size:] == other[-size:] for other in split) > 1:
            size += 1
        names.append(".".join(parts[-size:]))
    return names


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_shown, value))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if is_number else NONE if value is None else str(value)
