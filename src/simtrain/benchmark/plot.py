"""A benchmark's figures as a picture, with matplotlib, which is imported with this module.

A row for each task on an engine and device: throughput of every layer over environments, its
fraction of bare physics, and, where several numbers of ranks were measured, weak scaling.
"""

from __future__ import annotations

import io
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import FuncFormatter, NullFormatter

from simtrain.benchmark.figures import LAYERS, Case, Results, scaling
from simtrain.run.curves import COLORS, number
from simtrain.run.plots import STYLE

_PANEL_WIDTH, _ROW_HEIGHT, _HEADER = 5.2, 3.9, 0.9
_STYLES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dash-dot"}


def draw(results: Results) -> bytes:
    """The picture as a PNG file."""
    groups: dict[tuple[str, str, str], list[Case]] = {}
    for case in results.by_case():
        groups.setdefault((case.task, case.engine, case.device), []).append(case)
    most = max(case.ranks for case in results.by_case())
    columns = 3 if most > 1 else 2
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
                told = zip(_STYLES.values(), ranks, strict=False)
                text = ", ".join(f"{style} {count}" for style, count in told)
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
        some = sorted((c for c in cases if c.ranks == ranks), key=lambda c: c.num_envs)
        for i, (layer, label) in enumerate(LAYERS.items()):
            figures = [found[case][layer] for case in some]
            middle = np.array([figure.steps_per_second for figure in figures])
            low = middle - np.array([figure.lowest for figure in figures])
            high = np.array([figure.highest for figure in figures]) - middle
            ax.errorbar(
                [case.num_envs for case in some],
                middle,
                yerr=np.stack((low, high)).clip(min=0.0),
                color=COLORS[i],
                linestyle=style,
                marker="o",
                markersize=4,
                capsize=3,
                label=label if ranks == _ranks(cases)[0] else None,
            )
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    _label_environments(ax, cases)
    for axis_format in (ax.yaxis.set_major_formatter, ax.yaxis.set_minor_formatter):
        axis_format(FuncFormatter(lambda y, _: number(y) if f"{y:e}"[0] in "125" else ""))
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=5, columnspacing=1.0)


def _fractions(ax: Axes, results: Results, cases: list[Case]) -> None:
    """Bars of every other layer as a fraction of bare physics, for the fewest ranks."""
    found = results.by_case()
    ranks = _ranks(cases)[0]
    some = sorted((c for c in cases if c.ranks == ranks), key=lambda c: c.num_envs)
    layers = [layer for layer in LAYERS if layer != "physics"]
    width = 0.8 / len(layers)
    for i, layer in enumerate(layers):
        values = [found[case][layer].of_physics for case in some]
        places = np.arange(len(some)) + (i - (len(layers) - 1) / 2) * width
        color = COLORS[list(LAYERS).index(layer)]
        bars = ax.bar(places, values, width * 0.92, color=color, label=LAYERS[layer])
        ax.bar_label(bars, [f"{value:.2f}" for value in values], fontsize=8, padding=1)
    ax.axhline(1.0, color=COLORS[0], linewidth=1.2)
    ax.set_xticks(range(len(some)), [f"{case.num_envs:,}" for case in some])
    ax.set_xlabel("environments of each rank")
    ax.set_ylim(
        0.0, 1.1 * max(1.0, *(found[c][layer].of_physics for c in some for layer in layers))
    )
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, columnspacing=1.0)
    ax.set_title(f"Fraction of bare physics, {ranks} rank{'s' if ranks > 1 else ''}")


def _weak_scaling(ax: Axes, results: Results, cases: list[Case]) -> None:
    """End to end, each rank against one alone, over ranks; a line for each number of envs."""
    found = results.by_case()
    for i, num_envs in enumerate(sorted({case.num_envs for case in cases})):
        some = sorted((c for c in cases if c.num_envs == num_envs), key=lambda c: c.ranks)
        points = [(case.ranks, scaling(results, found[case]["training"])) for case in some]
        known = [(ranks, value) for ranks, value in points if value is not None]
        if known:
            ax.plot(*zip(*known, strict=True), "o-", color=COLORS[i], label=f"{num_envs:,}")
    ax.axhline(1.0, color="#666666", linewidth=1.0, linestyle=":")
    ax.set_xticks(_ranks(cases))
    ax.set_xlabel("ranks")
    ax.set_ylim(bottom=0.0)
    ax.set_title("Weak scaling, end to end")
    if ax.get_legend_handles_labels()[0]:
        ax.legend(
            title="environments of each rank",
            loc="upper center",
            bbox_to_anchor=(0.5, -0.14),
            ncols=4,
        )


def _ranks(cases: list[Case]) -> list[int]:
    return sorted({case.ranks for case in cases})


def _label_environments(ax: Axes, cases: list[Case]) -> None:
    sizes = sorted({case.num_envs for case in cases})
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("environments of each rank")
