"""How soon a task is learned as a picture, with matplotlib, which is imported with this module."""

import io
import re
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simtrain.benchmark.until import COSTS, UntilResults, shown
from simtrain.plot.curves import COLORS, number
from simtrain.plot.plots import STYLE

_PANEL_WIDTH, _HEIGHT = 4.6, 4.2


def draw(results: UntilResults) -> bytes:
    """Panels with each metric over env steps, then what it took until all held, as a PNG file."""
    comparisons = re.split(" and | or ", results.condition)
    columns = len(comparisons) + len(COSTS)
    with STYLE():
        sheet = Figure(figsize=(_PANEL_WIDTH * columns, _HEIGHT), layout="constrained")
        panels = sheet.subplots(1, columns, squeeze=False)[0]
        about = ", ".join(str(v) for v in results.about.get("machine", {}).values())
        sheet.suptitle(f"{results.task} until {results.condition}\n{about}", fontsize=12)
        for ax, comparison in zip(panels, comparisons, strict=False):
            name, value = comparison.replace(">", "<").replace("=", "").split("<")
            _curves(ax, results, name, float(value))
        for ax, what in zip(panels[len(comparisons) :], COSTS, strict=True):
            _costs(ax, results, what)
        file = io.BytesIO()
        sheet.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _curves(ax: Axes, results: UntilResults, name: str, value: float) -> None:
    """A metric of every seed over env steps, and the value that it is compared with."""
    for i, seed in enumerate(results.seeds):
        points = [(e.env_steps, e.values.get(name, np.nan)) for e in seed.evaluations]
        ax.plot(*zip(*points, strict=True), ".-", color=_color(i), label=f"seed {seed.seed}")
    ax.axhline(value, color="black", linewidth=1.0, linestyle="--")
    ax.set_title(name)
    ax.set_xlabel("environment steps")
    ax.set_xlim(left=0.0)
    ax.xaxis.set_major_formatter(lambda x, _: number(x))
    if len(results.seeds) <= len(COLORS):
        ax.legend()


def _costs(ax: Axes, results: UntilResults, what: str) -> None:
    """A bar for each seed, hatched if it never got there, and the median with the range."""
    unit = 60.0 if what == "seconds" else 1.0
    for i, seed in enumerate(results.seeds):
        look: Any = {"color": _color(i)} if seed.reached else {"fill": False, "hatch": "//"}
        ax.bar(i, getattr(seed.end, what) / unit, edgecolor=_color(i), **look)
    costs, median = results.costs(what), results.median(what)
    if results.reached == len(costs):
        ax.axhspan(min(costs) / unit, max(costs) / unit, color="black", alpha=0.08, linewidth=0)
    if np.isfinite(median):
        ax.axhline(median / unit, color="black", linewidth=1.0)
    ax.set_title(f"{COSTS[what]}, median {shown(what, median)}")
    ax.set_xticks(range(len(results.seeds)), [str(seed.seed) for seed in results.seeds])
    ax.set_xlabel("seed (hatched: not reached)")
    ax.set_ylabel("minutes" if what == "seconds" else "environment steps")
    ax.yaxis.set_major_formatter(lambda y, _: number(y))


def _color(i: int) -> str:
    return COLORS[i % len(COLORS)]
