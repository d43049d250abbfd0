"""Learning curves as a picture, with matplotlib, which is imported with this module.

For every task a row that compares its groups of runs (return, episode length, throughput), and for
every group a row with what it consists of: reward terms, ends of episodes, phases of an iteration.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

# It complains there of a cache that it cannot write, which nobody here can mend.
logging.getLogger("matplotlib").setLevel(logging.ERROR)

import matplotlib as mpl  # noqa: E402
import numpy as np  # noqa: E402
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: E402

from simtrain.metric_tags import phase_tags  # noqa: E402
from simtrain.run.curves import (  # noqa: E402
    EVALUATED,
    LENGTH,
    REST,
    RETURN,
    SPEED,
    Axis,
    Group,
    Stack,
    aggregate,
    stack,
)

# After Okabe and Ito (2008): told apart by color-blind people too.
_LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
_PARTS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6BB1", "#B8A300")
_REMAINDER, _FAINT = "#B3B3B3", "#666666"

# Inches. Legends of the lower rows stand to the right of their panels.
_WIDTH, _PANEL = 15.0, 2.7
_TITLE, _HEADER, _GAP = 0.75, 0.35, 0.9
_COMPARED = ((0.7, 4.0), (5.75, 4.0), (10.8, 4.0))
_APART = ((0.7, 3.7), (7.35, 2.1), (11.45, 1.9))

_STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _FAINT,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.2,
    "text.parse_math": False,
}


def draw(tasks: dict[str, list[Group]], axis: Axis, kind: Literal["png", "svg"]) -> bytes:
    """A picture of all `tasks` one below the other, as a PNG or SVG file."""
    with styled():
        height = sum(_height(groups) for groups in tasks.values())
        sheet = _Sheet(Figure(figsize=(_WIDTH, height)), height)
        for task, groups in tasks.items():
            _draw_task(sheet, task, groups, axis)
        file = io.BytesIO()
        sheet.figure.savefig(file, format=kind, dpi=100)
    return file.getvalue()


@contextmanager
def styled() -> Iterator[None]:
    """How simtrain's pictures look, and not what the user's own matplotlibrc asks for."""
    with mpl.rc_context():
        mpl.rcdefaults()  # else it may be LaTeX
        mpl.rcParams.update(_STYLE)
        yield


class _Sheet:
    """A figure that is filled from top to bottom, in inches."""

    def __init__(self, figure: Figure, height: float) -> None:
        self.figure = figure
        self._height = height
        self._y = height

    def line(self, height: float, text: str, x: float = 0.3, **style: Any) -> None:
        """A line of text, `height` high."""
        self._y -= height
        self.figure.text(x / _WIDTH, (self._y + 0.08) / self._height, text, **style)

    def row(self, places: Sequence[tuple[float, float]]) -> list[Axes]:
        """Panels beside each other, at these left edges and widths."""
        self._y -= _PANEL + 0.3  # their titles
        row = [
            self.figure.add_axes(
                (x / _WIDTH, self._y / self._height, width / _WIDTH, _PANEL / self._height)
            )
            for x, width in places
        ]
        self._y -= _GAP - 0.3
        return row


def _height(groups: list[Group]) -> float:
    headers = _HEADER * len(groups) if len(groups) > 1 else 0.0
    return _TITLE + headers + (_PANEL + _GAP) * (1 + len(groups))


def _draw_task(sheet: _Sheet, task: str, groups: list[Group], axis: Axis) -> None:
    sheet.line(0.4, task, fontsize=15, fontweight="bold")
    sheet.line(_TITLE - 0.4, _subtitle(groups), color=_FAINT, fontsize=10.5, va="center")
    row = sheet.row(_COMPARED)
    _compare(row, groups, axis)
    rows = [row]
    everyone = Group("", tuple(run for group in groups for run in group.runs))
    for i, group in enumerate(groups):
        if len(groups) > 1:
            sheet.line(_HEADER, group.label, color=group_color(i), fontsize=12, fontweight="bold")
        rows.append(sheet.row(_APART))
        _take_apart(rows[-1], group, everyone, axis)
    longest = max(float(run.columns[axis][-1]) for run in everyone.runs)
    for ax in (ax for row in rows for ax in row):
        _label_x(ax, axis, longest)


def _compare(row: Sequence[Axes], groups: list[Group], axis: Axis) -> None:
    """Return, episode length and throughput of all groups."""
    titles = ("Return", "Episode length (control steps)", "Environment steps per second")
    for ax, title, tag in zip(row, titles, (RETURN, LENGTH, SPEED), strict=True):
        ax.set_title(title)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: number(y)))
        drawn = [_line(ax, g, tag, axis, group_color(i), g.label) for i, g in enumerate(groups)]
        if not any(drawn):
            _say(ax, "no episode has finished yet")
        elif len(groups) == 1:
            _tell(ax, groups[0], tag)
    judged = [
        _line(row[0], g, EVALUATED, axis, group_color(i), f"{g.label}, evaluated", dashed=True)
        for i, g in enumerate(groups)
    ]
    if len(groups) > 1 or any(judged):
        lines, labels = row[0].get_legend_handles_labels()
        if len(groups) == 1:
            labels = ["training", "evaluation"][-len(lines) :]
        row[0].legend(lines, labels, loc="best")
    for ax in row[1:]:
        ax.set_ylim(bottom=0.0)


def _line(
    ax: Axes, group: Group, tag: str, axis: Axis, color: str, label: str, *, dashed: bool = False
) -> bool:
    """The mean of a group and its range; whether there was anything to draw."""
    curve = aggregate(group.runs, tag, axis)
    if curve is None:
        return False
    style: Any = {"color": color, "linestyle": "--" if dashed else "-"}
    if len(curve.x) == 1 or (dashed and len(curve.x) < 40):
        style |= {"marker": "o", "markersize": 4, "clip_on": False}  # whole at the edge, too
    all_came = curve.count == curve.count.max()
    if not all_came.all():  # a mean over fewer runs must not look like one over all
        ax.plot(curve.x, curve.mean, **{**style, "alpha": 0.35})
    ax.plot(curve.x, np.where(all_came, curve.mean, np.nan), label=label, **style)
    if len(group.runs) > 1:
        ax.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.18, linewidth=0)
    return True


def _tell(ax: Axes, group: Group, tag: str) -> None:
    """The mean over runs of what they have reached; of throughput, which jumps, the median."""
    told = [run.median(tag) if tag == SPEED else run.last(tag) for run in group.runs]
    known = [value for value in told if value is not None]
    text = number(sum(known) / len(known))
    ax.set_title(f"median {text}" if tag == SPEED else text, loc="right", color=group_color(0))


def _take_apart(row: Sequence[Axes], group: Group, everyone: Group, axis: Axis) -> None:
    """Reward terms, ends of episodes and phases of an iteration of one group.

    Parts come in the order of `everyone`, so that they have one color in all groups.
    """
    rewards = stack(group.runs, _by_size(everyone, "Episode_Reward/", axis), axis)
    ends = stack(group.runs, everyone.tags("Episode_Termination/"), axis)
    own = set(group.tags("Perf/"))
    times = phase_tags([tag for tag in _by_size(everyone, "Perf/", axis) if tag in own])
    phases = stack(group.runs, [t for t in (*times, REST) if _has_any(group, t)], axis)
    _stacked(row[0], "Reward terms (per second)", rewards, number)
    _stacked(row[1], "How episodes ended", ends, lambda share: f"{100 * share:.0f} %")
    _stacked(row[2], "Seconds of an iteration", phases, number, tell_mean=True)
    if ends is not None:
        row[1].set_ylim(0.0, 1.0)
    row[2].set_ylim(bottom=0.0)


def _stacked(
    ax: Axes,
    title: str,
    whole: Stack | None,
    text: Callable[[float], str],
    *,
    tell_mean: bool = False,
) -> None:
    """Areas above zero for what adds and below for what takes away, and the sum as a line.

    The legend tells the last value of each part, or the mean.
    """
    ax.set_title(title)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: text(y)))
    if whole is None:
        _say(ax, "no episode has finished yet")
        return
    x, parts = whole.x, _largest(whole.parts)
    if len(x) == 1:  # an area needs a width
        x = np.array([0.0, x[0]])
        parts = {name: np.repeat(values, 2) for name, values in parts.items()}
    room = 22 if ax.get_position().width > 0.2 else 14
    top, bottom = np.zeros_like(x), np.zeros_like(x)
    for i, (name, values) in enumerate(parts.items()):
        color = _PARTS[i] if i < len(_PARTS) else _REMAINDER
        label: str | None = (
            f"{_short(name, room)}  {text(float(values.mean() if tell_mean else values[-1]))}"
        )
        for edge, part in ((top, values.clip(min=0.0)), (bottom, values.clip(max=0.0))):
            if part.any():
                ax.fill_between(
                    x, edge, edge + part, color=color, alpha=0.85, linewidth=0, label=label
                )
                edge += part
                label = None
    if whole.complete < x[-1]:  # pale, as the lines are
        ax.axvspan(whole.complete, x[-1], color="white", alpha=0.65, linewidth=0)
    if bottom.any():
        total = top + bottom
        ax.plot(x, total, color="black", linewidth=1.4, label=f"sum  {text(float(total[-1]))}")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), borderaxespad=0.0)


def _has_any(group: Group, tag: str) -> bool:
    return any(np.any(run.columns.get(tag, 0.0)) for run in group.runs)


def _by_size(group: Group, prefix: str, axis: Axis) -> list[str]:
    """Tags by the mean of their size, the largest first."""
    whole = stack(group.runs, group.tags(prefix), axis)
    parts = {} if whole is None else whole.parts
    return sorted(parts, key=lambda tag: -float(np.abs(parts[tag]).mean()))


def _largest(parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As many of the first parts as there are colors, and the others as one."""
    if len(parts) <= len(_PARTS):
        return parts
    names = list(parts)
    shown = {name: parts[name] for name in names[: len(_PARTS)]}
    others = [parts[name] for name in names[len(_PARTS) :]]
    return {**shown, f"{len(others)} others": np.sum(others, axis=0)}


def _label_x(ax: Axes, axis: Axis, longest: float) -> None:
    ax.set_xlim(0.0, longest)
    ax.xaxis.set_major_locator(MaxNLocator(5 if ax.get_position().width > 0.2 else 3))
    if axis == "env_steps":
        ax.set_xlabel("environment steps")
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: number(x)))
        return
    unit, seconds = ("s", 1.0)
    if longest > 180.0:
        unit, seconds = ("min", 60.0) if longest <= 3 * 3600.0 else ("h", 3600.0)
    ax.set_xlabel(f"wall time ({unit})")
    ticks = MaxNLocator(5).tick_values(0.0, longest / seconds)
    ax.set_xticks([tick * seconds for tick in ticks if tick * seconds <= longest])
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x / seconds:g}"))


def _subtitle(groups: list[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    if len(runs) > 1:
        seeds = sorted({str(run.config.get("seed")) for run in runs})
        text = f"{len(runs)} runs, seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
        if len(groups) < len(runs):
            text += " (line: mean, pale where not all runs came so far; shade: range)"
        return text
    columns = runs[0].columns
    return (
        f"{runs[0].name}   ·   {columns['iteration'][-1]:,.0f} iterations, "
        f"{number(float(columns['env_steps'][-1]))} environment steps "
        f"in {timedelta(seconds=round(float(columns['wall_s'][-1])))}"
    )


def number(value: float) -> str:
    """A number in few characters: 1.5M, 120k, 0.0123."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}".replace("-", "\N{MINUS SIGN}")
    if value == 0.0 or not math.isfinite(value):
        return f"{value:g}"
    digits = f"{value:.3g}" if abs(value) >= 0.001 else f"{value:.0e}"
    return digits.replace("-", "\N{MINUS SIGN}")


def group_color(group: int) -> str:
    """The color of a task's group of that number."""
    return _LINES[group % len(_LINES)]


def _short(tag: str, room: int) -> str:
    """A tag's own name, cut to `room` characters."""
    name = tag.rsplit("/", 1)[-1]
    name = name.removesuffix("_time") if tag.startswith("Perf/") else name
    return name if len(name) <= room else f"{name[: room - 1]}…"


def _say(ax: Axes, text: str) -> None:
    ax.text(0.5, 0.5, text, transform=ax.transAxes, ha="center", va="center", color=_FAINT)
