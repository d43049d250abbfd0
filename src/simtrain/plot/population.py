"""The picture of a population: fitness, hyper-parameters, and the family tree of the winner."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simtrain.plot.panels import FAINT, STYLE, band, color, counts_on_x, legend_beside, numbers_on
from simtrain.plot.panels import sheet as new_sheet
from simtrain.run.directory import read_config_file
from simtrain.run.logged import read_lineage

_COLUMNS, _TALL, _SMALL = 3, 3.6, 2.3  # the last two in inches
Exchange = dict[str, Any]


def ancestors(exchanges: Sequence[Exchange], member: int) -> list[int]:
    """Which member carried, before each exchange, what `member` became after the last."""
    places: list[int] = []
    for exchange in reversed(exchanges):
        member = exchange["members"][member]["parent"]
        places.append(member)
    return places[::-1]


def draw_population(run: Path) -> Figure:
    """The picture of a population's run; ConfigError if its files are damaged."""
    fitness = read_config_file(run)["config"].get("population_fitness", "").partition(":")[0]
    exchanges, where = read_lineage(run), run.resolve()
    names = list(exchanges[0]["members"][0]["values"])
    rows = math.ceil(len(names) / _COLUMNS)
    winner = max(exchanges[-1]["members"], key=lambda member: _number(member["score"]))["member"]
    places = ancestors(exchanges, winner)
    heights = [_TALL, _TALL, *([_SMALL] * rows)]
    with STYLE():
        sheet = new_sheet(f"{where.parent.name}/{where.name}", _COLUMNS, heights)
        grid = sheet.add_gridspec(2 + rows, _COLUMNS, height_ratios=heights)
        panels = [sheet.add_subplot(grid[0, :]), sheet.add_subplot(grid[1, :])]
        _draw_fitness(panels[0], exchanges, fitness, places)
        _draw_tree(panels[1], exchanges, places)
        for i, name in enumerate(names):
            panels.append(sheet.add_subplot(grid[2 + i // _COLUMNS, i % _COLUMNS]))
            _draw_values(panels[-1], exchanges, name, places)
        for ax in panels:
            counts_on_x(ax, "iterations")
            ax.set_xlim(0.0, exchanges[-1]["iteration"])
    return sheet


def _draw_fitness(
    ax: Axes, exchanges: Sequence[Exchange], fitness: str, places: Sequence[int]
) -> None:
    """The fitness of every member with its confidence interval, and of the winner's ancestors."""
    x = [exchange["iteration"] for exchange in exchanges]
    for i in range(len(exchanges[0]["members"])):
        members = [exchange["members"][i] for exchange in exchanges]
        y, low, high = ([_number(m[key]) for m in members] for key in ("value", "low", "high"))
        ax.plot(x, y, ".-", color=color(i), label=f"member {i}", clip_on=False)
        band(ax, x, low, high, color(i))
    best = [_number(e["members"][i]["value"]) for e, i in zip(exchanges, places, strict=True)]
    ax.plot(x, best, color="black", linewidth=1.0, linestyle=":", label="the winner's line")
    ax.set_title(f"Fitness: {fitness}")
    numbers_on(ax, "y")
    legend_beside(ax)


def _draw_tree(ax: Axes, exchanges: Sequence[Exchange], places: Sequence[int]) -> None:
    """Every member a line; where one was replaced, a line from its parent; the winner's in bold."""
    before = 0
    for i, exchange in enumerate(exchanges):
        x = exchange["iteration"]
        for one in exchange["members"]:
            member, parent = one["member"], one["parent"]
            width = 3.0 if places[i] == member else 0.8
            ax.plot([before, x], [member, member], color=color(member), linewidth=width)
            if parent != member:
                taken = i + 1 < len(places) and places[i + 1] == member and places[i] == parent
                width = 3.0 if taken else 0.8
                ax.plot([x, x], [parent, member], color=color(parent), linewidth=width)
            if one["mutation"] != "none":
                ax.plot([x], [member], marker="o", markersize=4, color=FAINT)
        before = x
    ax.set_title("Family tree (bold: of the winner; dots: mutations)")
    ax.set_yticks(range(len(exchanges[0]["members"])))
    ax.set_ylabel("member")
    ax.invert_yaxis()


def _draw_values(ax: Axes, exchanges: Sequence[Exchange], name: str, places: Sequence[int]) -> None:
    """A hyper-parameter of every member, between exchanges, and of the winner's ancestors."""
    edges = [0, *(exchange["iteration"] for exchange in exchanges)]
    for i in range(len(exchanges[0]["members"])):
        y = [exchange["members"][i]["values"][name] for exchange in exchanges]
        ax.stairs(y, edges, baseline=None, color=color(i), linewidth=1.0)
    best = [e["members"][i]["values"][name] for e, i in zip(exchanges, places, strict=True)]
    ax.stairs(best, edges, baseline=None, color="black", linewidth=1.0, linestyle=":")
    values = [one["values"][name] for exchange in exchanges for one in exchange["members"]]
    if min(values) > 0.0 and max(values) > 5.0 * min(values):
        ax.set_yscale("log")
    ax.set_title(name, fontsize="medium")
    numbers_on(ax, "y")


def _number(value: float | None) -> float:
    return math.nan if value is None else value
