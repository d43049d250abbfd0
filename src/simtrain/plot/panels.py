"""The look of simtrain's pictures, and the parts that all of them are made of.

Imports matplotlib: modules that do not always draw import this one only when they do.
"""

import io
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

# ruff: noqa: E402 - matplotlib complains of a cache that it cannot write, which nobody here can mend
logging.getLogger("matplotlib").setLevel(logging.ERROR)

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter

from simtrain.plot.curves import COLORS, number

STYLE = partial(matplotlib.style.context, Path(__file__).with_suffix(".mplstyle"), after_reset=True)
"""How simtrain's pictures look, and not what the user's own matplotlibrc asks for."""
FAINT, OTHERS = "#666666", "#B3B3B3"
WIDTH, HEIGHT = 4.6, 3.7  # of a panel, in inches


def as_file(figure: Figure, kind: Literal["png", "svg"] = "png") -> bytes:
    """A figure as a PNG or SVG file."""
    file = io.BytesIO()
    with STYLE():
        figure.savefig(file, format=kind, dpi=100)
    return file.getvalue()


def sheet(title: str, columns: int, heights: Sequence[float]) -> Figure:
    """An empty figure with a title, for a grid of so many columns and of rows of these heights."""
    size = WIDTH * columns, sum(heights) + 0.35 * (1 + title.count("\n"))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize=12)
    return figure


def color(i: int) -> str:
    """The color of the i-th of several things."""
    return COLORS[i % len(COLORS)]


def band(ax: Axes, x: Any, low: Any, high: Any, color: str) -> None:
    """The range around a curve."""
    ax.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)


def bars(
    ax: Axes, groups: Sequence[str], series: Mapping[str, Sequence[float]], colors: Sequence[str]
) -> None:
    """Bars with their values on them, side by side for each of `groups`, a color a series."""
    width = 0.8 / len(series)
    for i, (label, values) in enumerate(series.items()):
        places = np.arange(len(groups)) + (i - (len(series) - 1) / 2) * width
        drawn = ax.bar(places, values, 0.92 * width, color=colors[i], label=label)
        ax.bar_label(drawn, [f"{value:.2f}" for value in values], fontsize=8, padding=1)
    ax.set_xticks(range(len(groups)), groups)


def legend_below(ax: Axes, columns: int, title: str | None = None) -> None:
    """A legend under a panel; none if nothing has a label."""
    if ax.get_legend_handles_labels()[0]:
        place: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
        ax.legend(**place, ncols=columns, columnspacing=1.0, title=title)


def legend_beside(ax: Axes) -> None:
    """A legend to the right of a panel; none if nothing has a label."""
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), borderaxespad=0.0)


def numbers_on(ax: Axes, *axes: Literal["x", "y"]) -> None:
    """Write the numbers of these axes as `number` does; on a logarithmic one only 1, 2 and 5."""
    for name in axes:
        axis = getattr(ax, f"{name}axis")
        axis.set_major_formatter(lambda value, _: number(value))
        if axis.get_scale() == "log":
            axis.set_minor_formatter(lambda v, _: number(v) if f"{v:e}"[0] in "25" else "")


def sizes_on_x(ax: Axes, sizes: Sequence[int], label: str) -> None:
    """Let x be logarithmic, with these sizes on it."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(label)


def counts_on_x(ax: Axes, label: str, ticks: int = 5) -> None:
    """Let x begin at zero and count something."""
    ax.set_xlabel(label)
    ax.set_xlim(left=0.0)
    ax.xaxis.set_major_locator(MaxNLocator(ticks, integer=True))
    numbers_on(ax, "x")
