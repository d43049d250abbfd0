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
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from simtrain.config import metric_tags
from simtrain.plot.curves import COUNTS, EVALUATED, Curve, Group, aggregate, number
from simtrain.plot.panels import FAINT, OTHERS, STYLE, band, counts_on_x, legend_beside, numbers_on
from simtrain.run.logged import REST, Axis, last

_PART_COLORS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6BB1", "#B8A300",
)  # fmt: skip
# Inches: sizes of rows, and left edges and widths of their panels. Legends of the rows of groups
# stand to the right of their panels.
_WIDTH, _ROW, _PANEL, _HEADER, _LINE = 13.0, 3.4, 2.5, 0.35, 0.22
_FOUR = tuple((0.65 + 3.15 * i, 2.4) for i in range(4))
_OF_GROUP = ((0.65, 2.6), (6.25, 1.55), (10.0, 1.35))
_NOT_ALONE = (EVALUATED, "Eval/mean_episode_length", "Eval/iteration")
_COMPARED = {
    metric_tags.STEP_REWARD: "Reward per step",
    metric_tags.RETURN: "Return",
    metric_tags.LENGTH: "Episode length (steps)",
    metric_tags.SPEED: "Env steps per second",
}
Text = Callable[[float], str]


def evaluated_tags(groups: Sequence[Group]) -> list[str]:
    """The tags of evaluations that have panels of their own: failures and the task's metrics."""
    tags = dict.fromkeys(tag for group in groups for tag in group.tags("Eval/"))
    return [tag for tag in tags if tag not in _NOT_ALONE]


def draw_runs(tasks: dict[str, list[Group]], axis: Axis) -> Figure:
    """All `tasks` one below the other."""
    rows: list[tuple[float, str, list[Group], Group | list[str]]] = []
    for task, groups in tasks.items():
        _, lines = _legend_size(groups)
        rows.append((0.75 + _LINE * lines, task, groups, []))
        tags = [*_COMPARED, *evaluated_tags(groups)]
        fours = (tags[i : i + len(_FOUR)] for i in range(0, len(tags), len(_FOUR)))
        rows += [(_ROW, task, groups, four) for four in fours]
        header = _HEADER if len(groups) > 1 else 0.0
        rows += [(_ROW + header, task, groups, group) for group in groups]
    heights = [height for height, *_ in rows]
    with STYLE():
        figure = Figure(figsize=(_WIDTH, sum(heights)))
        parts = figure.subfigures(len(rows), height_ratios=heights, squeeze=False)
        for part, (_, task, groups, content) in zip(parts.flat, rows, strict=True):
            everyone = Group("", tuple(run for group in groups for run in group.runs))
            if isinstance(content, Group):
                _draw_group(part, content, everyone, axis)
            elif content:
                _draw_comparison(part, content, groups, axis)
            else:
                _draw_title(part, task, groups, everyone)
            longest = max(float(run.columns[axis][-1]) for run in everyone.runs)
            for ax in part.axes:
                if not ax.has_data():
                    place: Any = {"transform": ax.transAxes, "ha": "center", "va": "center"}
                    ax.text(0.5, 0.5, "no whole episode yet", color=FAINT, **place)
                _label_x(ax, axis, longest)
    return figure


def _legend_size(groups: Sequence[Group]) -> tuple[int, int]:
    """Columns and rows of the legend of groups; no rows for one group."""
    width = 0.75 + 0.085 * max(len(group.label) for group in groups)
    columns = max(1, min(len(groups), int((_WIDTH - 0.5) / width)))
    return columns, math.ceil(len(groups) / columns) if len(groups) > 1 else 0


def _place(part: SubFigure, x: float, y: float) -> tuple[float, float]:
    """A place in part of a figure, so many inches from its left and its upper edge."""
    return x / _WIDTH, 1.0 - y * part.dpi / part.bbox.height


def _panels(part: SubFigure, places: Sequence[tuple[float, float]]) -> list[Axes]:
    """Empty panels side by side at the bottom, at these left edges and widths, in inches."""
    height = part.bbox.height / part.dpi
    boxes = [(x / _WIDTH, 0.6 / height, width / _WIDTH, _PANEL / height) for x, width in places]
    return [part.add_axes(box) for box in boxes]


def _draw_title(part: SubFigure, task: str, groups: list[Group], everyone: Group) -> None:
    """The task, what runs there are, and what the colors of groups stand for."""
    runs = everyone.runs
    if len(runs) == 1:
        done, steps, seconds = (float(runs[0].columns[column][-1]) for column in COUNTS)
        text = f"{runs[0].name}   ·   {done:,.0f} iterations, {number(steps)} environment steps "
        text += f"in {timedelta(seconds=round(seconds))}"
    else:
        seeds = sorted({str(run.config.get("seed")) for run in runs})
        text = f"{len(runs)} runs, seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
        if len(groups) < len(runs):
            text += " (line: mean, pale where not all runs came so far; shade: range)"
    part.text(*_place(part, 0.3, 0.32), task, fontsize=15, fontweight="bold")
    part.text(*_place(part, 0.3, 0.67), text, color=FAINT, fontsize=10.5, va="center")
    if len(groups) > 1:
        lines = [Line2D([], [], color=group.color, label=group.label) for group in groups]
        place: Any = {"loc": "upper left", "bbox_to_anchor": _place(part, 0.25, 0.75)}
        columns, _ = _legend_size(groups)
        part.legend(handles=lines, ncols=columns, borderaxespad=0.0, fontsize=10, **place)


def _draw_comparison(part: SubFigure, tags: list[str], groups: list[Group], axis: Axis) -> None:
    """Metrics of all groups, a panel each; beside returns in training those of evaluations."""
    for ax, tag in zip(_panels(part, _FOUR[: len(tags)]), tags, strict=True):
        ax.set_title(_COMPARED.get(tag) or f"Eval {_short(tag, 16)}")
        numbers_on(ax, "y")
        drawn = [_draw_curve(ax, group, tag, axis) for group in groups]
        if (
            any(drawn) and len(groups) == 1
        ):  # the last value; of throughput, which jumps, the median
            of = np.median if tag == metric_tags.SPEED else last
            values = [run.summary(tag, of) for run in groups[0].runs]
            if known := [value for value in values if value is not None]:
                text = number(sum(known) / len(known))
                ax.set_title(text, loc="right", color=groups[0].color)
        returns = groups if tag == metric_tags.RETURN else []
        if any([_draw_curve(ax, group, EVALUATED, axis) for group in returns]):  # noqa: C419 - all
            color = groups[0].color if len(groups) == 1 else FAINT
            kinds: dict[str, Any] = {"training": "-", "evaluation": "--"}
            lines = [Line2D([], [], color=color, linestyle=s, label=n) for n, s in kinds.items()]
            ax.legend(handles=lines, loc="best")
        if tag in (metric_tags.LENGTH, metric_tags.SPEED):
            ax.set_ylim(bottom=0.0)


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
    if metric_tags.of_episodes(tag):
        complete &= _all_finished(group, axis, curve.x)
    if not complete.all():  # a mean over fewer runs or episodes must not look like one over all
        ax.plot(curve.x, curve.mean, **{**style, "alpha": 0.35})
    ax.plot(curve.x, np.where(complete, curve.mean, np.nan), **style)
    if len(group.runs) > 1:
        band(ax, curve.x, curve.low, curve.high, group.color)
    return True


def _all_finished(group: Group, axis: Axis, x: np.ndarray) -> np.ndarray:
    """At which `x` all environments of all runs have finished an episode, if that was logged."""
    tag = metric_tags.FINISHED_ENVS
    share = aggregate(group.runs, [tag], axis).get(tag)
    return np.full(len(x), True) if share is None else np.interp(x, share.x, share.low) >= 1.0


def _draw_group(part: SubFigure, group: Group, everyone: Group, axis: Axis) -> None:
    """What a group consists of; in the order of `everyone`, for one color in all groups."""
    if len(group.runs) < len(everyone.runs):
        style: Any = {"color": group.color, "fontsize": 12, "fontweight": "bold"}
        part.text(*_place(part, 0.3, _HEADER - 0.08), group.label, **style)
    panels = _panels(part, _OF_GROUP)
    logged = set(group.tags("Perf/"))
    by_size = [tag for tag in _by_size(everyone, "Perf/", axis) if tag in logged]
    times = metric_tags.phase_tags(by_size)
    columns = [run.columns for run in group.runs]
    spent = [t for t in (*times, REST) if any(np.any(c.get(t, 0.0)) for c in columns)]
    shortest = min(float(c[axis][-1]) for c in columns)
    stacks: list[tuple[str, list[str], Text]] = [
        ("Reward terms (per second)", _by_size(everyone, "Episode_Reward/", axis), number),
        ("How episodes ended", everyone.tags("Episode_Termination/"), lambda y: f"{100 * y:.0f} %"),
        ("Seconds of an iteration", spent, lambda y: number(round(y, 4))),
    ]
    for ax, (title, tags, text) in zip(panels, stacks, strict=True):
        curves = aggregate(group.runs, tags, axis)
        _draw_stack(ax, title, curves, text, mean=tags is spent)
        for curve in list(curves.values())[:1]:
            pale = curve.x > shortest  # where runs are missing
            if tags is not spent:
                pale |= ~_all_finished(group, axis, curve.x)
            shade: Any = {"color": "white", "alpha": 0.65, "linewidth": 0}
            shade |= {"where": pale, "transform": ax.get_xaxis_transform()}
            ax.fill_between(curve.x, 0.0, 1.0, **shade)
    if panels[1].has_data():
        panels[1].set_ylim(0.0, 1.0)
    panels[2].set_ylim(bottom=0.0)


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
    if axis == "env_steps":
        most = 5 if ax.get_position().width > 0.18 else 3
        counts_on_x(ax, "environment steps", longest, most)
        return
    units = (("s", 1.0, 180.0), ("min", 60.0, 3 * 3600.0), ("h", 3600.0, math.inf))
    unit, seconds = next((unit, size) for unit, size, most in units if longest <= most)
    ax.set_xlabel(f"wall time ({unit})")
    ticks = np.array(MaxNLocator(5).tick_values(0.0, longest / seconds))
    ax.set_xticks(ticks * seconds, [f"{tick:g}" for tick in ticks])
    ax.set_xlim(0.0, longest)


def _short(tag: str, characters: int) -> str:
    """A tag's own name, cut to so many characters."""
    name = tag.rsplit("/", 1)[-1].removesuffix("_time" if tag.startswith("Perf/") else "")
    return name if len(name) <= characters else f"{name[: characters - 1]}…"
