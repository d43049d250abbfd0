"""The picture of a population: fitness, hyper-parameters, and the family tree of the winner."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simtrain.files import damage_as_config_error
from simtrain.plot.curves import color, usual_range
from simtrain.plot.panels import FAINT, band, counts_on_x, legend_beside, limit_y, numbers_on, sheet
from simtrain.run.directory import read_config_file
from simtrain.run.logged import read_lineage

_COLUMNS, _TALL, _SMALL = 3, 3.6, 2.3  # the last two in inches
Exchange = dict[str, Any]


def ancestors(exchanges: Sequence[Exchange], member: int) -> list[int]:
    """The lineage of `member`: its ancestor before each exchange, the first one first."""
    places: list[int] = []
    for exchange in reversed(exchanges):
        member = exchange["members"][member]["parent"]
        places.append(member)
    return places[::-1]


def draw_population(run: Path) -> Figure:
    """The picture of a population's run, which has an exchange; ConfigError if it is damaged."""
    with damage_as_config_error(f"the population {run} is damaged"):
        fitness = read_config_file(run)["config"].get("population_fitness", "").partition(":")[0]
        exchanges, path = read_lineage(run), run.resolve()
        last = exchanges[-1]
        names = list(exchanges[0]["members"][0]["values"])
        scores = [-math.inf if m["score"] is None else m["score"] for m in last["members"]]
        line = ancestors(exchanges, int(np.argmax(scores)))
        heights = [_TALL, _TALL, *([_SMALL] * math.ceil(len(names) / _COLUMNS))]
        with sheet(f"{path.parent.name}/{path.name}", _COLUMNS, heights) as figure:
            grid = figure.add_gridspec(len(heights), _COLUMNS, height_ratios=heights)
            _draw_fitness(figure.add_subplot(grid[0, :]), exchanges, fitness, line)
            _draw_tree(figure.add_subplot(grid[1, :]), exchanges, line)
            for i, name in enumerate(names, start=2 * _COLUMNS):
                _draw_values(figure.add_subplot(grid[i]), exchanges, name, line)
            for ax in figure.axes:
                counts_on_x(ax, "iterations", last["iteration"])
    return figure


def _draw_fitness(ax: Axes, exchanges: list[Exchange], fitness: str, line: list[int]) -> None:
    """The fitness of every member with its confidence interval, and of the winner's ancestors."""
    x = [exchange["iteration"] for exchange in exchanges]
    # (value, low and high; exchanges; members)
    values = np.array(
        [[[m[key] for m in e["members"]] for e in exchanges] for key in ("value", "low", "high")],
        dtype=float,
    )
    for i, (y, low, high) in enumerate(np.moveaxis(values, 2, 0)):
        ax.plot(x, y, ".-", color=color(i), label=f"member {i}")
        band(ax, x, low, high, color(i))
    best = values[0, range(len(x)), line]
    ax.plot(x, best, color="black", linewidth=1.0, linestyle=":", label="the winner's line")
    ax.set_title(f"Fitness: {fitness}")
    limit_y(ax, [usual_range(low, high) for _, low, high in np.moveaxis(values, 2, 0)])
    numbers_on(ax, "y")
    legend_beside(ax)


def _draw_tree(ax: Axes, exchanges: list[Exchange], line: list[int]) -> None:
    """A line for every member, and one from its parent if it was replaced; the winner's in bold."""
    before = 0
    for i, exchange in enumerate(exchanges):
        x = exchange["iteration"]
        for member in exchange["members"]:
            y, parent = member["member"], member["parent"]
            ax.plot([before, x], [y, y], color=color(y), linewidth=3.0 if line[i] == y else 0.8)
            if parent != y:
                width = 3.0 if line[i : i + 2] == [parent, y] else 0.8
                ax.plot([x, x], [parent, y], color=color(parent), linewidth=width)
            if member["mutation"] != "none":
                ax.plot([x], [y], marker="o", markersize=4, color=FAINT)
        before = x
    ax.set_title("Family tree (bold: of the winner; dots: mutations)")
    ax.set_yticks(range(len(exchanges[0]["members"])))
    ax.set_ylabel("member")
    ax.invert_yaxis()


def _draw_values(ax: Axes, exchanges: list[Exchange], name: str, line: list[int]) -> None:
    """A hyper-parameter of every member, between exchanges, and of the winner's ancestors."""
    edges = [0, *(exchange["iteration"] for exchange in exchanges)]
    values = np.array([[m["values"][name] for m in e["members"]] for e in exchanges])
    for i, y in enumerate(values.T):
        ax.stairs(y, edges, baseline=None, color=color(i), linewidth=1.0)
    best = values[range(len(line)), line]
    ax.stairs(best, edges, baseline=None, color="black", linewidth=1.0, linestyle=":")
    if values.min() > 0.0 and values.max() > 5.0 * values.min():
        ax.set_yscale("log")
    ax.set_title(name, fontsize="medium")
    numbers_on(ax, "y")
