"""A benchmark's figures as a picture, with matplotlib, which is imported with this module.

A row for each task on an engine and device: throughput of every layer over environments, its
fraction of bare physics, and, where several numbers of ranks were measured, weak scaling.
"""

import io
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import NullFormatter

from simtrain.benchmark.figures import LAYERS, Case, Results, scaling
from simtrain.plot.curves import COLORS, number
from simtrain.plot.plots import STYLE

_PANEL_WIDTH, _ROW_HEIGHT, _HEADER = 5.2, 3.9, 0.9
_BELOW: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14)}
_STYLES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dash-dot"}


def draw(results: Results) -> bytes:
    """The picture as a PNG file."""
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for case in results.by_case():
        groups.setdefault((case.task, case.engine, case.device), []).append(case)
    columns = 3 if any(case.ranks > 1 for case in results.by_case()) else 2
    height = _ROW_HEIGHT * len(groups) + _HEADER
    with STYLE():
        sheet = Sheet(figsize=(_PANEL_WIDTH * columns, height), layout="constrained")
        panels = sheet.subplots(len(groups), columns, squeeze=False)
        about = ", ".join(str(v) for v in results.about.get("machine", {}).values())
        sheet.suptitle(f"Environment steps per second\n{about}", fontsize=12)
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
        file = io.BytesIO()
        sheet.savefig(file, format="png", dpi=100)
    return file.getvalue()


def _throughput(ax: Axes, results: Results, cases: list[Case]) -> None:
    """Lines over environments, with the range of the repetitions; a style for each rank number."""
    found = results.by_case()
    for style, ranks in zip(cycle(_STYLES), _ranks(cases), strict=False):
        some = _of_ranks(cases, ranks)
        for (layer, label), color in zip(LAYERS.items(), COLORS, strict=False):
            figures = [found[case][layer] for case in some]
            speeds = [(f.steps_per_second, f.lowest, f.highest) for f in figures]
            median, lowest, highest = np.transpose(speeds)
            ranges = (median - lowest, highest - median)
            look: Any = {"color": color, "linestyle": style, "marker": "o", "markersize": 4}
            look["label"] = label if ranks == _ranks(cases)[0] else None
            sizes, yerr = [case.num_envs for case in some], np.clip(ranges, 0.0, None)
            ax.errorbar(sizes, median, yerr=yerr, capsize=3, **look)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    sizes = sorted({case.num_envs for case in cases})
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("environments of each rank")
    for set_formatter in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
        set_formatter(lambda y, _: number(y) if f"{y:e}"[0] in "125" else "")
    ax.legend(**_BELOW, ncols=5, columnspacing=1.0)


def _fractions(ax: Axes, results: Results, cases: list[Case]) -> None:
    """Bars of every other layer as a fraction of bare physics, for the fewest ranks."""
    ranks = _ranks(cases)[0]
    some = _of_ranks(cases, ranks)
    layers = list(zip(LAYERS.items(), COLORS, strict=False))[1:]
    width, highest = 0.8 / len(layers), 1.0
    for i, ((layer, label), color) in enumerate(layers):
        values = [results.by_case()[case][layer].of_physics for case in some]
        places = np.arange(len(some)) + (i - (len(layers) - 1) / 2) * width
        bars = ax.bar(places, values, width * 0.92, color=color, label=label)
        ax.bar_label(bars, [f"{value:.2f}" for value in values], fontsize=8, padding=1)
        highest = max(highest, *values)
    ax.axhline(1.0, color=COLORS[0], linewidth=1.2)
    ax.set_xticks(range(len(some)), [f"{case.num_envs:,}" for case in some])
    ax.set_xlabel("environments of each rank")
    ax.set_ylim(0.0, 1.1 * highest)
    ax.legend(**_BELOW, ncols=4, columnspacing=1.0)
    ax.set_title(f"Fraction of bare physics, {ranks} rank{'s' if ranks > 1 else ''}")


def _weak_scaling(ax: Axes, results: Results, cases: list[Case]) -> None:
    """End to end, each rank against one alone, over ranks; a line for each number of envs."""
    found = results.by_case()
    for num_envs, color in zip(sorted({c.num_envs for c in cases}), cycle(COLORS), strict=False):
        some = sorted((c for c in cases if c.num_envs == num_envs), key=lambda c: c.ranks)
        points = [(case.ranks, scaling(results, found[case]["training"])) for case in some]
        known = [(ranks, value) for ranks, value in points if value is not None]
        if known:
            ax.plot(*zip(*known, strict=True), "o-", color=color, label=f"{num_envs:,}")
    ax.axhline(1.0, color="#666666", linewidth=1.0, linestyle=":")
    ax.set_xticks(_ranks(cases))
    ax.set_xlabel("ranks")
    ax.set_ylim(bottom=0.0)
    ax.set_title("Weak scaling, end to end")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(**_BELOW, title="environments of each rank", ncols=4)


def _ranks(cases: list[Case]) -> list[int]:
    return sorted({case.ranks for case in cases})


def _of_ranks(cases: list[Case], ranks: int) -> list[Case]:
    return sorted((c for c in cases if c.ranks == ranks), key=lambda c: c.num_envs)
