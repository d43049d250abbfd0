"""The common style of simtrain's pictures, and their common parts.

Imports matplotlib: modules that do not always draw import this one only when they do.
"""

import io
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

# ruff: noqa: E402 - matplotlib complains of a cache that it cannot write, which nobody here can mend
logging.getLogger("matplotlib").setLevel(logging.ERROR)

import matplotlib.style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simtrain.plot.curves import number

STYLE = partial(matplotlib.style.context, Path(__file__).with_suffix(".mplstyle"), after_reset=True)
"""The style of simtrain's pictures, instead of the user's own matplotlibrc."""
FAINT, OTHERS = "#666666", "#B3B3B3"


def as_file(figure: Figure, kind: Literal["png", "svg"] = "png") -> bytes:
    """A figure as a PNG or SVG file."""
    file = io.BytesIO()
    with STYLE():
        figure.savefig(file, format=kind, dpi=100)
    return file.getvalue()


@contextmanager
def sheet(title: str, columns: int, heights: Sequence[float]) -> Iterator[Figure]:
    """An empty figure with a title, a grid of columns, and rows of these heights.

    All that is drawn in it has the `STYLE`.
    """
    size = 4.6 * columns, sum(heights) + 0.35 * (1 + title.count("\n"))  # inches
    with STYLE():
        figure = Figure(figsize=size, layout="constrained")
        figure.suptitle(title, fontsize=12)
        yield figure


def band(ax: Axes, x: Any, low: Any, high: Any, color: str) -> None:
    """The range around a curve."""
    ax.fill_between(x, low, high, color=color, alpha=0.18, linewidth=0)


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
    """Write the numbers of these axes as `number` does; on a logarithmic axis only 1, 2 and 5.

    They have four digits: steps of 0.0025 would be unequal with three.
    """
    for name in axes:
        axis = getattr(ax, f"{name}axis")
        axis.set_major_formatter(lambda value, _: number(value, 4))
        if axis.get_scale() == "log":
            axis.set_minor_formatter(lambda v, _: number(v) if f"{v:e}"[0] in "25" else "")


def counts_on_x(ax: Axes, label: str, most: float | None = None) -> None:
    """Make x a count from zero to `most`, or to the end of the curves."""
    ax.set_xlabel(label)
    ax.set_xlim(0.0, most)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    numbers_on(ax, "x")


def limit_y(ax: Axes, ranges: Sequence[tuple[float, float]]) -> None:
    """Limit y to these ranges; values outside are cut off."""
    low = min((low for low, _ in ranges), default=0.0)
    high = max((high for _, high in ranges), default=0.0)
    if low < high:
        # In a narrower range, the numbers at the ticks would be the same: they have three digits.
        span = max(high - low, 0.05 * max(-low, high))
        ax.set_ylim(0.5 * (low + high) - 0.55 * span, 0.5 * (low + high) + 0.55 * span)
