"""Learning curves of runs as a picture: for every task a grid of panels of equal size.

For runs with the same settings, stacked areas show the parts of the reward, of the time and of the
ends of episodes. Groups of runs with different settings are compared: each part has a panel, in
which every group is a line. Means over episodes are pale until all environments have finished an
episode. A few outliers, such as an early batch, do not set the scale of a panel.
"""

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from simtrain.plot.curves import COUNTS, EVALUATED, Group, aggregate, number, usual_range
from simtrain.plot.panels import FAINT, OTHERS, STYLE, band, counts_on_x, legend_beside, limit_y
from simtrain.run import metric_tags
from simtrain.run.logged import REST, Axis, last

_PART_COLORS = (
    "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C6BB1", "#B8A300",
)  # fmt: skip
# Inches: the picture, its rows, the panels in them, and the title with a line of its legend.
_WIDTH, _ROW, _PANEL, _TITLE, _LINE = 13.0, 3.2, (2.4, 2.3), 1.0, 0.22
_COLUMNS = tuple(0.8 + 3.2 * i for i in range(4))  # left edges of panels
_NOT_ALONE = (EVALUATED, "Eval/mean_episode_length", "Eval/iteration")
_COMPARED = {
    metric_tags.STEP_REWARD: "Reward per step",
    metric_tags.RETURN: "Return",
    metric_tags.LENGTH: "Episode length (steps)",
    metric_tags.SPEED: "Env steps per second",
}
_LEARNING = {
    "Policy/mean_std": "Action noise (std)",
    "Loss/kl": "KL divergence",
    "Loss/learning_rate": "Learning rate",
}
_REWARDS, _ENDS, _TIMES = metric_tags.REWARDS, "Episode_Termination/", "Perf/"
_KINDS = {_REWARDS: "reward/s", _ENDS: "of episodes", _TIMES: "s/iteration", REST: "s/iteration"}
"""Start of a tag -> the unit of its panel."""
Draw = Callable[[Axes], None]


def evaluated_tags(groups: Sequence[Group]) -> list[str]:
    """The tags of evaluations that have their own panels: failures and the task's metrics."""
    tags = dict.fromkeys(tag for group in groups for tag in group.tags("Eval/"))
    return [tag for tag in tags if tag not in _NOT_ALONE]


def draw_runs(tasks: dict[str, list[Group]], axis: Axis) -> Figure:
    """All `tasks`, one below the other."""
    with STYLE():
        panels = [_panels(groups, axis) for groups in tasks.values()]
        titles = [_TITLE + _LINE * _legend_size(groups)[1] for groups in tasks.values()]
        rows = sum(math.ceil(len(draws) / len(_COLUMNS)) for draws in panels)
        height = sum(titles) + _ROW * rows
        figure = Figure(figsize=(_WIDTH, height))
        top = 0.0  # inches from the upper edge
        for (task, groups), draws, title in zip(tasks.items(), panels, titles, strict=True):
            _draw_title(figure, top, task, groups)
            top += title
            longest = max(float(run.columns[axis][-1]) for group in groups for run in group.runs)
            for start in range(0, len(draws), len(_COLUMNS)):
                for left, draw in zip(_COLUMNS, draws[start:], strict=False):
                    if draw is not None:
                        x, y = _place(figure, left, top + _PANEL[1])
                        ax = figure.add_axes((x, y, _PANEL[0] / _WIDTH, _PANEL[1] / height))
                        _draw_panel(ax, draw, axis, longest)
                top += _ROW
    return figure


def _panels(groups: list[Group], axis: Axis) -> list[Draw | None]:
    """The function that draws each panel of a task; None for the place of a legend."""
    everyone = Group("", tuple(run for group in groups for run in group.runs))
    rewards, ends = _by_size(everyone, _REWARDS, axis), everyone.tags(_ENDS)
    times = metric_tags.phase_tags(_by_size(everyone, _TIMES, axis))
    spent = [t for t in (*times, REST) if any(np.any(r.columns.get(t, 0)) for r in everyone.runs)]
    evaluated, learning = evaluated_tags(groups), list(filter(everyone.tags, _LEARNING))

    def curves(tags: Sequence[str]) -> list[Draw | None]:
        return [partial(_draw_curves, groups=groups, tag=tag, axis=axis) for tag in tags]

    if len(groups) > 1:
        tags = [*_COMPARED, *evaluated, *rewards, *ends, *learning]
        whole_rows = -len(tags) % len(_COLUMNS) + len(_COLUMNS)
        return curves([*tags, *spent[:whole_rows]])
    stack = partial(_draw_stack, group=groups[0], axis=axis)
    return [
        *curves(list(_COMPARED)),
        *(partial(stack, title="Reward terms (per second)", tags=rewards), None),
        *(partial(stack, title="Seconds of an iteration", tags=spent), None),
        partial(stack, title="How episodes ended", tags=ends),
        *curves([*evaluated, *learning]),
    ]


def _draw_panel(ax: Axes, draw: Draw, axis: Axis, longest: float) -> None:
    draw(ax)
    if not ax.has_data():
        place: Any = {"transform": ax.transAxes, "ha": "center", "va": "center"}
        ax.text(0.5, 0.5, "no whole episode yet", color=FAINT, **place)
    _label_x(ax, axis, longest)


def _legend_size(groups: Sequence[Group]) -> tuple[int, int]:
    """Columns and rows of the legend of groups; no rows for one group."""
    width = 0.75 + 0.085 * max(len(group.label) for group in groups)
    columns = max(1, min(len(groups), int((_WIDTH - 0.5) / width)))
    return columns, math.ceil(len(groups) / columns) if len(groups) > 1 else 0


def _place(figure: Figure, x: float, y: float) -> tuple[float, float]:
    """A position in a figure, in inches from its left and upper edges."""
    return x / _WIDTH, 1.0 - y / figure.get_figheight()


def _draw_title(figure: Figure, top: float, task: str, groups: list[Group]) -> None:
    """The task, its runs, and the meaning of the colors of groups."""
    runs = [run for group in groups for run in group.runs]
    if len(runs) == 1:
        done, steps, seconds = (float(runs[0].columns[column][-1]) for column in COUNTS)
        text = f"{runs[0].name}   ·   {done:,.0f} iterations, {number(steps)} environment steps "
        text += f"in {timedelta(seconds=round(seconds))}"
    else:
        seeds = sorted({str(run.config.get("seed")) for run in runs})
        text = f"{len(runs)} runs, seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}"
        if len(groups) < len(runs):
            text += " (line: mean, pale where not all runs came so far; shade: range)"
    figure.text(*_place(figure, 0.3, top + 0.32), task, fontsize=15, fontweight="bold")
    figure.text(*_place(figure, 0.3, top + 0.5), text, color=FAINT, fontsize=10.5, va="center")
    if len(groups) > 1:
        lines = [Line2D([], [], color=group.color, label=group.label) for group in groups]
        corner = _place(figure, 0.25, top + 0.6)
        place: Any = {"loc": "upper left", "bbox_to_anchor": corner, "borderaxespad": 0.0}
        figure.legend(handles=lines, ncols=_legend_size(groups)[0], fontsize=10, **place)


def _draw_curves(ax: Axes, groups: list[Group], tag: str, axis: Axis) -> None:
    """A metric of all groups; for returns in training, also those of evaluations."""
    titles = _COMPARED | _LEARNING
    ax.set_title(titles.get(tag) or ("Eval " if tag.startswith("Eval/") else "") + _short(tag, 20))
    if kind := next((kind for kind in _KINDS if tag.startswith(kind) and tag not in titles), None):
        ax.set_title(_KINDS[kind], loc="right", color=FAINT, fontsize=8.5, fontweight="normal")
    _format_y(ax, tag)
    ranges = [_draw_curve(ax, group, tag, axis) for group in groups]
    if any(ranges) and len(groups) == 1:  # the last value; of throughput, which jumps, the median
        of = np.median if tag == metric_tags.SPEED else last
        values = [run.summary(tag, of) for run in groups[0].runs]
        if known := [value for value in values if value is not None]:
            text = number(sum(known) / len(known))
            ax.set_title(text, loc="right", color=groups[0].color)
    returns = groups if tag == metric_tags.RETURN else []
    evaluated = [_draw_curve(ax, group, EVALUATED, axis) for group in returns]
    if any(evaluated):
        color = groups[0].color if len(groups) == 1 else FAINT
        kinds: dict[str, Any] = {"training": "-", "evaluation": "--"}
        lines = [Line2D([], [], color=color, linestyle=s, label=n) for n, s in kinds.items()]
        ax.legend(handles=lines, loc="best")
    limit_y(ax, [limits for limits in (*ranges, *evaluated) if limits])
    if tag in (metric_tags.LENGTH, metric_tags.SPEED) or kind in (_TIMES, REST):
        ax.set_ylim(bottom=0.0)
    elif kind == _ENDS:
        ax.set_ylim(-0.02, 1.02)


def _draw_curve(ax: Axes, group: Group, tag: str, axis: Axis) -> tuple[float, float] | None:
    """Draw the mean of a group and its range; the range of y, or None if there is nothing."""
    curve = aggregate(group.runs, [tag], axis).get(tag)
    if curve is None:
        return None
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
    few = "marker" in style  # and each of many episodes
    return (curve.low.min(), curve.high.max()) if few else usual_range(curve.low, curve.high)


def _all_finished(group: Group, axis: Axis, x: np.ndarray) -> np.ndarray:
    """The `x` at which all environments of all runs have finished an episode, if logged."""
    tag = metric_tags.FINISHED_ENVS
    share = aggregate(group.runs, [tag], axis).get(tag)
    return np.full(len(x), True) if share is None else np.interp(x, share.x, share.low) >= 1.0


def _draw_stack(ax: Axes, group: Group, axis: Axis, title: str, tags: list[str]) -> None:
    """Areas above and below zero, and their sum."""
    ax.set_title(title)
    curves = aggregate(group.runs, tags, axis)
    if not curves:
        return
    text = _format_y(ax, tags[0])
    is_time, is_share = (tags[0].startswith(kind) for kind in (_TIMES, _ENDS))
    x = next(iter(curves.values())).x
    parts = {tag: curve.mean for tag, curve in curves.items()}
    if len(smallest := list(parts)[len(_PART_COLORS) :]):
        parts[f"{len(smallest)} others"] = np.sum([parts.pop(tag) for tag in smallest], axis=0)
    if len(x) == 1:  # an area needs a width
        x = np.array([0.0, x[0]])
        parts = {name: np.repeat(values, 2) for name, values in parts.items()}
    top, bottom = np.zeros_like(x), np.zeros_like(x)
    for (name, values), color in zip(parts.items(), (*_PART_COLORS, OTHERS), strict=False):
        value = float(values.mean() if is_time else values[-1])
        label: str | None = f"{_short(name, 34)}  {text(value)}"
        for edge, part in ((top, values.clip(min=0.0)), (bottom, values.clip(max=0.0))):
            if part.any():
                style: Any = {"color": color, "alpha": 0.85, "linewidth": 0, "label": label}
                ax.fill_between(x, edge, edge + part, **style)
                edge += part
                label = None
    if bottom.any():
        total = top + bottom
        ax.plot(x, total, color="black", linewidth=1.4, label=f"sum  {text(float(total[-1]))}")
    shortest = min(float(run.columns[axis][-1]) for run in group.runs)
    pale = x > shortest  # where runs are missing
    if not is_time:
        pale |= ~_all_finished(group, axis, x)
    shade: Any = {"color": "white", "alpha": 0.65, "linewidth": 0}
    shade |= {"where": pale, "transform": ax.get_xaxis_transform()}
    ax.fill_between(x, 0.0, 1.0, **shade)
    if is_share:
        ax.set_ylim(0.0, 1.0)
        ax.legend(loc="best", frameon=True, framealpha=0.8, edgecolor="none")
    else:
        limit_y(ax, [(0.0, 0.0), usual_range(bottom, top)])
        legend_beside(ax)
    if is_time:
        ax.set_ylim(bottom=0.0)


def _format_y(ax: Axes, tag: str) -> Callable[[float], str]:
    """Format the numbers on the y-axis like those of `tag`; the function that does it."""

    def text(value: float, digits: int = 3) -> str:
        if tag.startswith(_ENDS):
            return f"{100.0 * value:.0f} %"
        return number(round(value, 4) if tag.startswith((_TIMES, REST)) else value, digits)

    ax.yaxis.set_major_formatter(lambda value, _: text(value, 4))  # as in `numbers_on`
    return text


def _by_size(group: Group, prefix: str, axis: Axis) -> list[str]:
    """Tags by the mean of their absolute values, the largest first."""
    curves = aggregate(group.runs, group.tags(prefix), axis)
    return sorted(curves, key=lambda tag: -float(np.abs(curves[tag].mean).mean()))


def _label_x(ax: Axes, axis: Axis, longest: float) -> None:
    if axis == "env_steps":
        counts_on_x(ax, "environment steps", longest)
        return
    units = (("s", 1.0, 180.0), ("min", 60.0, 3 * 3600.0), ("h", 3600.0, math.inf))
    unit, seconds = next((unit, size) for unit, size, most in units if longest <= most)
    ax.set_xlabel(f"wall time ({unit})")
    ticks = np.array(MaxNLocator(5).tick_values(0.0, longest / seconds))
    ax.set_xticks(ticks * seconds, [f"{tick:g}" for tick in ticks])
    ax.set_xlim(0.0, longest)


def _short(tag: str, characters: int) -> str:
    """A tag's own name, cut to this number of characters."""
    name = tag.rsplit("/", 1)[-1].removesuffix("_time" if tag.startswith("Perf/") else "")
    return name if len(name) <= characters else f"{name[: characters - 1]}…"
