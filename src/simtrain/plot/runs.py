"""Learning curves of runs as a picture.

For every task a row that compares its groups of runs (reward per step, return, episode length,
throughput), and for every group a row with what it consists of: reward terms, ends of episodes,
phases of an iteration. Means over episodes are pale until all environments have finished one.
"""

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from simtrain.config.metric_tags import (
    FINISHED_ENVS,
    LENGTH,
    RETURN,
    SPEED,
    STEP_REWARD,
    of_episodes,
    phase_tags,
)
from simtrain.plot.curves import EVALUATED, Curve, Group, aggregate, number
from simtrain.plot.panels import FAINT, OTHERS, STYLE, band, legend_beside, numbers_on
from simtrain.run.logged import REST, Axis, Run, last

_PART_COLORS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6BB1", "#B8A300",
)  # fmt: skip
# Inches: sizes of the figure, and left edges and widths of the panels of a row. Legends of the rows
# of groups stand to the right of their panels.
_WIDTH, _PANEL = 13.0, 2.5
_TITLE, _HEADER, _GAP, _LINE = 0.75, 0.35, 0.9, 0.22
_COMPARISON_ROW = tuple((0.65 + 3.15 * i, 2.4) for i in range(4))
_GROUP_ROW = ((0.65, 2.6), (6.25, 1.55), (10.0, 1.35))
_NOT_ALONE = (EVALUATED, "Eval/mean_episode_length", "Eval/iteration")
_COMPARED = {
    "Reward per step": STEP_REWARD,
    "Return": RETURN,
    "Episode length (steps)": LENGTH,
    "Env steps per second": SPEED,
}
Text = Callable[[float], str]


def evaluated_tags(groups: Sequence[Group]) -> list[str]:
    """The tags of evaluations that have panels of their own: failures and the task's metrics."""
    tags = dict.fromkeys(tag for group in groups for tag in group.tags("Eval/"))
    return [tag for tag in tags if tag not in _NOT_ALONE]


def draw_runs(tasks: dict[str, list[Group]], axis: Axis) -> Figure:
    """All `tasks` one below the other."""
    height = 0.0
    for groups in tasks.values():
        headers = len(groups) if len(groups) > 1 else 0
        rows = 1 + math.ceil(len(evaluated_tags(groups)) / len(_COMPARISON_ROW)) + len(groups)
        height += _TITLE + _HEADER * headers + (_PANEL + _GAP) * rows
        height += _LINE * _legend_size(groups)[1]
    with STYLE():
        sheet = _Sheet(Figure(figsize=(_WIDTH, height)), height)
        for task, groups in tasks.items():
            _draw_task(sheet, task, groups, axis)
    return sheet.figure


class _Sheet:
    """A figure that is filled from top to bottom, in inches."""

    def __init__(self, figure: Figure, height: float) -> None:
        self.figure = figure
        self._height = self._y = height

    def add_line(self, height: float, text: str, **style: Any) -> None:
        """A line of text, `height` high."""
        self._y -= height
        self.figure.text(0.3 / _WIDTH, (self._y + 0.08) / self._height, text, **style)

    def add_legend(self, groups: Sequence[Group]) -> None:
        """What the colors of groups stand for."""
        columns, rows = _legend_size(groups)
        handles = [Line2D([], [], color=group.color, label=group.label) for group in groups]
        where: Any = {
            "loc": "upper left",
            "bbox_to_anchor": (0.25 / _WIDTH, self._y / self._height),
        }
        self.figure.legend(handles=handles, ncols=columns, borderaxespad=0.0, fontsize=10, **where)
        self._y -= _LINE * rows

    def add_row(self, places: Sequence[tuple[float, float]]) -> list[Axes]:
        """Panels side by side, at these left edges and widths."""
        self._y -= _PANEL + 0.3  # their titles
        bottom, height = self._y / self._height, _PANEL / self._height
        self._y -= _GAP - 0.3
        boxes = [(x / _WIDTH, bottom, width / _WIDTH, height) for x, width in places]
        return [self.figure.add_axes(box) for box in boxes]


def _draw_task(sheet: _Sheet, task: str, groups: list[Group], axis: Axis) -> None:
    runs = [run for group in groups for run in group.runs]
    sheet.add_line(0.4, task, fontsize=15, fontweight="bold")
    text = _subtitle(runs, len(groups))
    sheet.add_line(_TITLE - 0.4, text, color=FAINT, fontsize=10.5, va="center")
    if len(groups) > 1:
        sheet.add_legend(groups)
    panels = sheet.add_row(_COMPARISON_ROW)
    _draw_comparison(panels, groups, axis)
    metrics = evaluated_tags(groups)
    for i in range(0, len(metrics), len(_COMPARISON_ROW)):
        tags = metrics[i : i + len(_COMPARISON_ROW)]
        row = sheet.add_row(_COMPARISON_ROW[: len(tags)])
        for ax, tag in zip(row, tags, strict=True):
            _draw_panel(ax, f"Eval {_short(tag, 16)}", groups, tag, axis)
        panels += row
    for group in groups:
        if len(groups) > 1:
            style = {"color": group.color, "fontsize": 12, "fontweight": "bold"}
            sheet.add_line(_HEADER, group.label, **style)
        row = sheet.add_row(_GROUP_ROW)
        _draw_group(row, group, Group("", tuple(runs)), axis)
        panels += row
    for ax in panels:
        if not ax.has_data():
            where: Any = {"transform": ax.transAxes, "ha": "center", "va": "center"}
            ax.text(0.5, 0.5, "no whole episode yet", color=FAINT, **where)
        _label_x(ax, axis, max(float(run.columns[axis][-1]) for run in runs))


def _draw_comparison(row: Sequence[Axes], groups: list[Group], axis: Axis) -> None:
    """Reward per step, return, episode length and throughput of all groups."""
    for ax, (title, tag) in zip(row, _COMPARED.items(), strict=True):
        _draw_panel(ax, title, groups, tag, axis)
    evaluated = [_draw_curve(row[1], group, EVALUATED, axis) for group in groups]
    if any(evaluated):
        kinds: dict[str, Any] = {"training": "-", "evaluation": "--"}
        color = groups[0].color if len(groups) == 1 else FAINT
        lines = [Line2D([], [], color=color, linestyle=s, label=n) for n, s in kinds.items()]
        row[1].legend(handles=lines, loc="best")
    for ax in row[2:]:
        ax.set_ylim(bottom=0.0)


def _draw_panel(ax: Axes, title: str, groups: list[Group], tag: str, axis: Axis) -> None:
    """A metric of all groups."""
    ax.set_title(title)
    numbers_on(ax, "y")
    drawn = [_draw_curve(ax, group, tag, axis) for group in groups]
    if any(drawn) and len(groups) == 1:  # the last value; of throughput, which jumps, the median
        of = np.median if tag == SPEED else last
        values = [run.summary(tag, of) for run in groups[0].runs]
        if known := [value for value in values if value is not None]:
            text = number(sum(known) / len(known))
            ax.set_title(text, loc="right", color=groups[0].color)


def _legend_size(groups: Sequence[Group]) -> tuple[int, int]:
    """Columns and rows of the legend of groups; none for one group."""
    if len(groups) == 1:
        return 0, 0
    width = 0.75 + 0.085 * max(len(group.label) for group in groups)
    columns = max(1, min(len(groups), int((_WIDTH - 0.5) / width)))
    return columns, math.ceil(len(groups) / columns)


def _draw_curve(ax: Axes, group: Group, tag: str, axis: Axis) -> bool:
    """The mean of a group and its range; whether there was anything to draw."""
    curve = aggregate(group.runs, [tag], axis).get(tag)
    if curve is None:
        return False
    dashed = tag == EVALUATED
    style: Any = {"color": group.color, "linestyle": "--" if dashed else "-"}
    if len(curve.x) == 1 or (tag.startswith("Eval/") and len(curve.x) < 40):
        style |= {"marker": "o", "markersize": 4, "clip_on": False}  # whole at the edge, too
    complete = curve.count == curve.count.max()
    if of_episodes(tag):
        complete &= _all_finished(group, axis, curve.x)
    if not complete.all():  # a mean over fewer runs or episodes must not look like one over all
        ax.plot(curve.x, curve.mean, **{**style, "alpha": 0.35})
    ax.plot(curve.x, np.where(complete, curve.mean, np.nan), **style)
    if len(group.runs) > 1:
        band(ax, curve.x, curve.low, curve.high, group.color)
    return True


def _all_finished(group: Group, axis: Axis, x: np.ndarray) -> np.ndarray:
    """At which `x` all environments of all runs have finished an episode, if that was logged."""
    share = aggregate(group.runs, [FINISHED_ENVS], axis).get(FINISHED_ENVS)
    return np.full(len(x), True) if share is None else np.interp(x, share.x, share.low) >= 1.0


def _draw_group(row: Sequence[Axes], group: Group, everyone: Group, axis: Axis) -> None:
    """What a group consists of; in the order of `everyone`, for one color in all groups."""
    logged = set(group.tags("Perf/"))
    times = phase_tags([tag for tag in _by_size(everyone, "Perf/", axis) if tag in logged])
    columns = [run.columns for run in group.runs]
    spent = [t for t in (*times, REST) if any(np.any(c.get(t, 0.0)) for c in columns)]
    rewards = aggregate(group.runs, _by_size(everyone, "Episode_Reward/", axis), axis)
    _draw_stack(row[0], "Reward terms (per second)", rewards, number)
    ends = aggregate(group.runs, everyone.tags("Episode_Termination/"), axis)
    _draw_stack(row[1], "How episodes ended", ends, lambda y: f"{100 * y:.0f} %")
    phases = aggregate(group.runs, spent, axis)
    _draw_stack(row[2], "Seconds of an iteration", phases, lambda y: number(round(y, 4)), mean=True)
    shortest = min(float(c[axis][-1]) for c in columns)
    for ax, stack in zip(row, (rewards, ends, phases), strict=True):
        if not stack:
            continue
        x = next(iter(stack.values())).x
        pale = x > shortest  # where runs are missing
        if stack is not phases:
            pale |= ~_all_finished(group, axis, x)
        style: Any = {"color": "white", "alpha": 0.65, "linewidth": 0}
        ax.fill_between(x, 0.0, 1.0, where=pale, transform=ax.get_xaxis_transform(), **style)
    if ends:
        row[1].set_ylim(0.0, 1.0)
    row[2].set_ylim(bottom=0.0)


def _draw_stack(
    ax: Axes, title: str, curves: dict[str, Curve], text: Text, mean: bool = False
) -> None:
    """Areas above and below zero, and their sum."""
    ax.set_title(title)
    ax.yaxis.set_major_formatter(lambda y, _: text(y))
    if not curves:
        return
    x = next(iter(curves.values())).x
    parts = {tag: curve.mean for tag, curve in curves.items()}
    if len(smallest := list(parts)[len(_PART_COLORS) :]):
        parts[f"{len(smallest)} others"] = np.sum([parts.pop(tag) for tag in smallest], axis=0)
    if len(x) == 1:  # an area needs a width
        x = np.array([0.0, x[0]])
        parts = {name: np.repeat(values, 2) for name, values in parts.items()}
    characters = 22 if ax.get_position().width > 0.18 else 14
    top, bottom = np.zeros_like(x), np.zeros_like(x)
    for (name, values), color in zip(parts.items(), (*_PART_COLORS, OTHERS), strict=False):
        value = float(values.mean() if mean else values[-1])
        label: str | None = f"{_short(name, characters)}  {text(value)}"
        for edge, part in ((top, values.clip(min=0.0)), (bottom, values.clip(max=0.0))):
            if part.any():
                style: Any = {"color": color, "alpha": 0.85, "linewidth": 0, "label": label}
                ax.fill_between(x, edge, edge + part, **style)
                edge += part
                label = None
    if bottom.any():
        total = top + bottom
        ax.plot(x, total, color="black", linewidth=1.4, label=f"sum  {text(float(total[-1]))}")
    legend_beside(ax)


def _by_size(group: Group, prefix: str, axis: Axis) -> list[str]:
    """Tags by the mean of their size, the largest first."""
    curves = aggregate(group.runs, group.tags(prefix), axis)
    return sorted(curves, key=lambda tag: -float(np.abs(curves[tag].mean).mean()))


def _label_x(ax: Axes, axis: Axis, longest: float) -> None:
    ax.set_xlim(0.0, longest)
    ax.xaxis.set_major_locator(MaxNLocator(5 if ax.get_position().width > 0.18 else 3))
    if axis == "env_steps":
        ax.set_xlabel("environment steps")
        numbers_on(ax, "x")
        return
    units = (("s", 1.0, 180.0), ("min", 60.0, 3 * 3600.0), ("h", 3600.0, math.inf))
    unit, seconds = next((unit, size) for unit, size, most in units if longest <= most)
    ax.set_xlabel(f"wall time ({unit})")
    ticks = MaxNLocator(5).tick_values(0.0, longest / seconds)
    ax.set_xticks([tick * seconds for tick in ticks if tick * seconds <= longest])
    ax.xaxis.set_major_formatter(lambda x, _: f"{x / seconds:g}")


def _subtitle(runs: list[Run], groups: int) -> str:
    if len(runs) > 1:
        seeds = sorted({str(run.config.get("seed")) for run in runs})
        text = f"{len(runs)} runs, seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
        if groups < len(runs):
            text += " (line: mean, pale where not all runs came so far; shade: range)"
        return text
    columns = ("iteration", "env_steps", "wall_s")
    done, steps, seconds = (float(runs[0].columns[column][-1]) for column in columns)
    text = f"{runs[0].name}   ·   {done:,.0f} iterations, {number(steps)} environment steps "
    return text + f"in {timedelta(seconds=round(seconds))}"


def _short(tag: str, characters: int) -> str:
    """A tag's own name, cut to so many characters."""
    name = tag.rsplit("/", 1)[-1].removesuffix("_time" if tag.startswith("Perf/") else "")
    return name if len(name) <= characters else f"{name[: characters - 1]}…"
