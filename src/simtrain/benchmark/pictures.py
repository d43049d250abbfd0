"""Pictures of benchmarks: how fast each layer is, and how soon a task is learned."""

import math
import re
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet

from simtrain.benchmark.figures import LAYERS, Case, Results, scaling
from simtrain.benchmark.until import COSTS, UntilResults, shown
from simtrain.plot.curves import COLORS
from simtrain.plot.panels import (
    FAINT,
    HEIGHT,
    STYLE,
    bars,
    color,
    counts_on_x,
    legend_below,
    numbers_on,
    sheet,
    sizes_on_x,
)

_STYLES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dash-dot"}
_ENVS = "environments of each rank"


def draw_layers(results: Results) -> Sheet:
    """A row for each task on an engine and device: throughput of every layer over environments,
    its fraction of bare physics, and, where several numbers of ranks were measured, weak scaling.
    """
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for case in results.by_case():
        groups.setdefault((case.task, case.engine, case.device), []).append(case)
    columns = 3 if any(case.ranks > 1 for case in results.by_case()) else 2
    with STYLE():
        title = f"Environment steps per second\n{_machine(results)}"
        figure = sheet(title, columns, [HEIGHT] * len(groups))
        panels = figure.subplots(len(groups), columns, squeeze=False)
        for row, ((task, engine, device), cases) in zip(panels, groups.items(), strict=True):
            _throughput(row[0], results, cases)
            row[0].set_title(f"{task}, {engine} on {device}")
            if len(ranks := _ranks(cases)) > 1:
                styles = zip(_STYLES.values(), ranks, strict=False)
                text = ", ".join(f"{style} {count}" for style, count in styles)
                row[0].set_title(f"ranks: {text}", loc="right", fontsize=8.5, fontweight="normal")
            _fractions(row[1], results, cases)
            if columns == 3:
                _weak_scaling(row[2], results, cases)
    return figure


def draw_until(results: UntilResults) -> Sheet:
    """Panels with each metric over env steps, then what it took until the condition held."""
    comparisons = re.split(" and | or ", results.condition)
    count = len(comparisons) + len(COSTS)
    rows = math.ceil(count / 3)
    columns = math.ceil(count / rows)
    with STYLE():
        title = f"{results.task} until {results.condition}\n{_machine(results)}"
        figure = sheet(title, columns, [HEIGHT] * rows)
        panels = [figure.add_subplot(rows, columns, i + 1) for i in range(count)]
        for ax, comparison in zip(panels, comparisons, strict=False):
            name, value = comparison.replace(">", "<").replace("=", "").split("<")
            _metric(ax, results, name, float(value))
        for ax, what in zip(panels[len(comparisons) :], COSTS, strict=True):
            _costs(ax, results, what)
    return figure


def _machine(results: Results | UntilResults) -> str:
    return ", ".join(map(str, results.about.get("machine", {}).values()))


def _throughput(ax: Axes, results: Results, cases: list[Case]) -> None:
    """Lines over environments, with the range of the repetitions; a style for each rank number."""
    figures = results.by_case()
    for style, ranks in zip(cycle(_STYLES), _ranks(cases), strict=False):
        measured = _of_ranks(cases, ranks)
        for i, (layer, label) in enumerate(LAYERS.items()):
            speeds = [figures[case][layer] for case in measured]
            median = np.array([figure.steps_per_second for figure in speeds])
            ranges = median - [f.lowest for f in speeds], [f.highest for f in speeds] - median
            look: Any = {"color": color(i), "linestyle": style, "marker": "o", "markersize": 4}
            look["label"] = label if ranks == _ranks(cases)[0] else None
            sizes, yerr = [case.num_envs for case in measured], np.clip(ranges, 0.0, None)
            ax.errorbar(sizes, median, yerr=yerr, capsize=3, **look)
    sizes_on_x(ax, sorted({case.num_envs for case in cases}), _ENVS)
    ax.set_yscale("log")
    numbers_on(ax, "y")
    legend_below(ax, 5)


def _fractions(ax: Axes, results: Results, cases: list[Case]) -> None:
    """Bars of every other layer as a fraction of bare physics, for the fewest ranks."""
    ranks = _ranks(cases)[0]
    figures = [results.by_case()[case] for case in _of_ranks(cases, ranks)]
    layers = {n: [f[layer].of_physics for f in figures] for layer, n in list(LAYERS.items())[1:]}
    bars(ax, [f"{case.num_envs:,}" for case in _of_ranks(cases, ranks)], layers, COLORS[1:])
    ax.axhline(1.0, color=COLORS[0], linewidth=1.2)
    ax.set_xlabel(_ENVS)
    ax.set_ylim(0.0, 1.1 * max(1.0, *np.ravel(list(layers.values()))))
    legend_below(ax, 4)
    ax.set_title(f"Fraction of bare physics, {ranks} rank{'s' if ranks > 1 else ''}")


def _weak_scaling(ax: Axes, results: Results, cases: list[Case]) -> None:
    """End to end, each rank against one alone, over ranks; a line for each number of envs."""
    figures = results.by_case()
    for i, num_envs in enumerate(sorted({case.num_envs for case in cases})):
        measured = sorted((c for c in cases if c.num_envs == num_envs), key=lambda c: c.ranks)
        points = [(case.ranks, scaling(results, figures[case]["training"])) for case in measured]
        known = [(ranks, value) for ranks, value in points if value is not None]
        if known:
            ax.plot(*zip(*known, strict=True), "o-", color=color(i), label=f"{num_envs:,}")
    ax.axhline(1.0, color=FAINT, linewidth=1.0, linestyle=":")
    ax.set_xticks(_ranks(cases))
    ax.set_xlabel("ranks")
    ax.set_ylim(bottom=0.0)
    ax.set_title("Weak scaling, end to end")
    legend_below(ax, 4, _ENVS)


def _ranks(cases: list[Case]) -> list[int]:
    return sorted({case.ranks for case in cases})


def _of_ranks(cases: list[Case], ranks: int) -> list[Case]:
    return sorted((c for c in cases if c.ranks == ranks), key=lambda c: c.num_envs)


def _metric(ax: Axes, results: UntilResults, name: str, value: float) -> None:
    """A metric of every seed over env steps, and the value that it is compared with."""
    for i, seed in enumerate(results.seeds):
        points = [(e.env_steps, e.values.get(name, math.nan)) for e in seed.evaluations]
        ax.plot(*zip(*points, strict=True), ".-", color=color(i), label=f"seed {seed.seed}")
    ax.axhline(value, color="black", linewidth=1.0, linestyle="--")
    ax.set_title(name)
    counts_on_x(ax, "environment steps")
    numbers_on(ax, "y")
    if len(results.seeds) <= len(COLORS):
        ax.legend()


def _costs(ax: Axes, results: UntilResults, what: str) -> None:
    """A bar for each seed, hatched if it never got there, and the median with the range."""
    unit = 60.0 if what == "seconds" else 1.0
    for i, seed in enumerate(results.seeds):
        look: Any = {"color": color(i)} if seed.reached else {"fill": False, "hatch": "//"}
        ax.bar(i, getattr(seed.end, what) / unit, width=0.6, edgecolor=color(i), **look)
    costs, median = results.costs(what), results.median(what)
    if results.reached == len(costs):
        place: Any = {"color": "black", "alpha": 0.08, "linewidth": 0, "zorder": 0}
        ax.axhspan(min(costs) / unit, max(costs) / unit, **place)
    if math.isfinite(median):
        ax.axhline(median / unit, color="black", linewidth=1.0)
    ax.set_title(f"{COSTS[what]}, median {shown(what, median)}")
    ax.set_xticks(range(len(results.seeds)), [str(seed.seed) for seed in results.seeds])
    ax.set_xlabel("seed" if results.reached == len(costs) else "seed (hatched: not reached)")
    ax.set_ylabel("minutes" if what == "seconds" else "environment steps")
    numbers_on(ax, "y")
