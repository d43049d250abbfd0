"""The picture of a population: fitness, hyper-parameters, and the family tree of the winner."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from simtrain.errors import ConfigError
from simtrain.plot.plots import STYLE
from simtrain.run.directory import LINEAGE, read_config_file

_COLUMNS, _WIDTH, _TALL, _SMALL = 3, 15.0, 3.6, 2.3  # the last three in inches
_FAINT = "#999999"
Exchange = dict[str, Any]


def read_lineage(run: Path) -> list[Exchange]:
    """The exchanges of a population's run, in order; ConfigError if the file is damaged."""
    path = run / LINEAGE
    try:
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read, or is damaged: {error}") from error


def ancestors(exchanges: Sequence[Exchange], member: int) -> list[int]:
    """Which member carried, before each exchange, what `member` became after the last."""
    places: list[int] = []
    for exchange in reversed(exchanges):
        member = exchange["members"][member]["parent"]
        places.append(member)
    return places[::-1]


def draw_run(run: Path) -> bytes:
    """The picture of a population's run as a PNG file; ConfigError if its files are damaged."""
    fitness = read_config_file(run)["config"].get("population_fitness", "").partition(":")[0]
    where = run.resolve()
    return draw_population(read_lineage(run), f"{where.parent.name}/{where.name}", fitness)


def draw_population(exchanges: Sequence[Exchange], title: str, fitness: str) -> bytes:
    """The picture as a PNG file; `fitness` is what members were selected by."""
    names = list(exchanges[0]["members"][0]["values"])
    rows = math.ceil(len(names) / _COLUMNS)
    height = 2 * _TALL + rows * _SMALL + 1.0
    file = io.BytesIO()
    with STYLE():
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        figure.suptitle(title)
        ratios = [_TALL, _TALL, *([_SMALL] * rows)]
        grid = figure.add_gridspec(2 + rows, _COLUMNS, height_ratios=ratios)
        winner = max(exchanges[-1]["members"], key=lambda each: _number(each["score"]))["member"]
        places = ancestors(exchanges, winner)
        _draw_fitness(figure.add_subplot(grid[0, :]), exchanges, fitness, places)
        _draw_tree(figure.add_subplot(grid[1, :]), exchanges, places)
        for i, name in enumerate(names):
            ax = figure.add_subplot(grid[2 + i // _COLUMNS, i % _COLUMNS])
            _draw_values(ax, exchanges, name, places)
        figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _draw_fitness(
    ax: Axes, exchanges: Sequence[Exchange], fitness: str, places: Sequence[int]
) -> None:
    x = [exchange["iteration"] for exchange in exchanges]
    for member in range(len(exchanges[0]["members"])):
        facts = [exchange["members"][member] for exchange in exchanges]
        y, low, high = ([_number(f[key]) for f in facts] for key in ("value", "low", "high"))
        (line,) = ax.plot(x, y, label=f"member {member}")
        ax.fill_between(x, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    best = [_number(e["members"][i]["value"]) for e, i in zip(exchanges, places, strict=True)]
    ax.plot(x, best, color="black", linewidth=1.0, linestyle=":", label="the winner's line")
    ax.set_ylabel(fitness)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    _label_x(ax)


def _draw_tree(ax: Axes, exchanges: Sequence[Exchange], places: Sequence[int]) -> None:
    """Every member a line; where one was replaced, a line from its parent; the winner's in bold."""
    before = 0
    for i, exchange in enumerate(exchanges):
        x = exchange["iteration"]
        for one in exchange["members"]:
            member, parent = one["member"], one["parent"]
            is_winners = places[i] == member
            style: dict[str, Any] = {"color": f"C{member}", "linewidth": 3.0 if is_winners else 0.8}
            ax.plot([before, x], [member, member], **style)
            if parent != member:
                taken = i + 1 < len(places) and places[i + 1] == member and places[i] == parent
                width = 3.0 if taken else 0.8
                ax.plot([x, x], [parent, member], color=f"C{parent}", linewidth=width)
            if one["mutation"] != "none":
                ax.plot([x], [member], marker="o", markersize=4, color=_FAINT)
        before = x
    ax.set_yticks(range(len(exchanges[0]["members"])))
    ax.set_ylabel("member (dots: mutations)")
    ax.invert_yaxis()
    _label_x(ax)


def _draw_values(ax: Axes, exchanges: Sequence[Exchange], name: str, places: Sequence[int]) -> None:
    edges = [0, *(exchange["iteration"] for exchange in exchanges)]
    for member in range(len(exchanges[0]["members"])):
        y = [exchange["members"][member]["values"][name] for exchange in exchanges]
        ax.stairs(y, edges, baseline=None, color=f"C{member}", linewidth=1.0)
    best = [e["members"][i]["values"][name] for e, i in zip(exchanges, places, strict=True)]
    ax.stairs(best, edges, baseline=None, color="black", linewidth=1.0, linestyle=":")
    values = [one["values"][name] for exchange in exchanges for one in exchange["members"]]
    if min(values) > 0.0 and max(values) > 5.0 * min(values):
        ax.set_yscale("log")
    ax.set_title(name, fontsize="medium")
    _label_x(ax)


def _label_x(ax: Axes) -> None:
    ax.set_xlabel("iterations")
    ax.set_xlim(left=0)
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def _number(value: float | None) -> float:
    return math.nan if value is None else value
