"""Pictures of benchmarks: how fast each layer is, and how soon a task is learned."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import NullFormatter

from simtrain.benchmark.figures import LAYERS, Figure, Results
from simtrain.benchmark.until import COSTS, UntilResults, shown
from simtrain.plot.curves import COLORS, color
from simtrain.plot.panels import FAINT, counts_on_x, legend_below, numbers_on, sheet

_HEIGHT = 3.7  # of a panel, in inches
_STYLES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "dash-dot"}
_ENVS = "environments of each rank"


def draw_layers(results: Results) -> Sheet:
    """A row for each task on an engine and device: throughput of every layer over environments,
    its fraction of bare physics, and, where several numbers of ranks or threads were measured, weak
    scaling and the speed-up by threads. The other panels are of the most threads.
    """
    rows: dict[tuple[str, str, str], list[Figure]] = {}
    for figure in sorted(results.figures, key=lambda figure: (figure.ranks, figure.num_envs)):
        rows.setdefault((figure.task, figure.engine, figure.device), []).append(figure)
    has_ranks = any(figure.ranks > 1 for figure in results.figures)
    most = max(figure.threads for figure in results.figures)
    has_threads = any(figure.threads < most for figure in results.figures)
    columns = 2 + has_ranks + has_threads
    title = f"Environment steps per second\n{_machine(results)}"
    with sheet(title, columns, [_HEIGHT] * len(rows)) as picture:
        panels = picture.subplots(len(rows), columns, squeeze=False)
        for row, ((task, engine, device), figures) in zip(panels, rows.items(), strict=True):
            row[0].set_title(f"{task}, {engine} on {device}")
            of_most = [figure for figure in figures if figure.threads == most]
            _draw_throughput(row[0], of_most)
            _draw_fractions(row[1], of_most)
            if has_ranks:
                _draw_scaling(row[2], of_most, results)
            if has_threads:
                _draw_speed_up(row[-1], of_most, results)
    return picture


def draw_until(results: UntilResults) -> Sheet:
    """Panels with each metric over env steps, then the costs until the condition held."""
    metrics = results.comparisons
    count = len(metrics) + len(COSTS)
    rows = math.ceil(count / 3)
    title = f"{results.task} until {results.condition}\n{_machine(results)}"
    columns = math.ceil(count / rows)
    with sheet(title, columns, [_HEIGHT] * rows) as picture:
        panels = [picture.add_subplot(rows, columns, i + 1) for i in range(count)]
        for ax, (name, value) in zip(panels, metrics, strict=False):
            _draw_metric(ax, results, name, value)
        for ax, what in zip(panels[len(metrics) :], COSTS, strict=True):
            _draw_costs(ax, results, what)
    return picture


def _machine(results: Results | UntilResults) -> str:
    return ", ".join(map(str, results.about.get("machine", {}).values()))


def _draw_throughput(ax: Axes, figures: Sequence[Figure]) -> None:
    """Lines over environments, with the range of the repetitions; a style for each rank number."""
    all_ranks = sorted({figure.ranks for figure in figures})
    for style, ranks in zip(cycle(_STYLES), all_ranks, strict=False):
        for i, (layer, label) in enumerate(LAYERS.items()):
            line = [f for f in figures if (f.ranks, f.layer) == (ranks, layer)]
            low, median, high = np.array(
                [(f.lowest, f.steps_per_second, f.highest) for f in line]
            ).T
            look: Any = {"color": color(i), "linestyle": style, "marker": "o", "markersize": 4}
            look |= {"label": label if ranks == all_ranks[0] else None, "capsize": 3}
            ax.errorbar([f.num_envs for f in line], median, (median - low, high - median), **look)
    if len(all_ranks) > 1:
        text = ", ".join(map("{} {}".format, _STYLES.values(), all_ranks))
        ax.set_title(f"ranks: {text}", loc="right", fontsize=8.5, fontweight="normal")
    sizes = sorted({figure.num_envs for figure in figures})
    ax.set_xscale("log", base=2)
    ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(_ENVS)
    ax.set_yscale("log")
    numbers_on(ax, "y")
    legend_below(ax, 5)


def _draw_fractions(ax: Axes, figures: Sequence[Figure]) -> None:
    """Bars of every other layer as a fraction of bare physics, for the fewest ranks."""
    ranks = figures[0].ranks
    _, *layers = LAYERS
    width = 0.8 / len(layers)
    for i, layer in enumerate(layers):
        heights = [f.of_physics for f in figures if (f.ranks, f.layer) == (ranks, layer)]
        x = np.arange(len(heights)) + (i - (len(layers) - 1) / 2) * width
        bars = ax.bar(x, heights, 0.92 * width, color=color(i + 1), label=LAYERS[layer])
        ax.bar_label(bars, [f"{height:.2f}" for height in heights], fontsize=8, padding=1)
    sizes = dict.fromkeys(f"{figure.num_envs:,}" for figure in figures if figure.ranks == ranks)
    ax.set_xticks(range(len(sizes)), sizes)
    ax.axhline(1.0, color=COLORS[0], linewidth=1.2)
    ax.set_xlabel(_ENVS)
    ax.set_ylim(0.0, 1.1 * max(figure.of_physics for figure in figures if figure.ranks == ranks))
    legend_below(ax, 4)
    ax.set_title(f"Fraction of bare physics, {ranks} rank{'s' if ranks > 1 else ''}")


def _draw_scaling(ax: Axes, figures: Sequence[Figure], results: Results) -> None:
    """End to end, each rank against one alone, over ranks; a line for each number of envs."""
    for i, num_envs in enumerate(sorted({figure.num_envs for figure in figures})):
        line = [f for f in figures if (f.num_envs, f.layer) == (num_envs, "training")]
        values = [results.scaling(figure) for figure in line]
        if not all(map(math.isnan, values)):
            ax.plot([f.ranks for f in line], values, "o-", color=color(i), label=f"{num_envs:,}")
    ax.axhline(1.0, color=FAINT, linewidth=1.0, linestyle=":")
    ax.set_xticks(sorted({figure.ranks for figure in figures}))
    ax.set_xlabel("ranks")
    ax.set_ylim(bottom=0.0)
    ax.set_title("Weak scaling, end to end")
    legend_below(ax, 4, _ENVS)


def _draw_speed_up(ax: Axes, figures: Sequence[Figure], results: Results) -> None:
    """Each layer against the fewest threads, over threads; for the fewest ranks, the most envs."""
    most, ranks = max(figure.num_envs for figure in figures), figures[0].ranks
    for i, (layer, label) in enumerate(LAYERS.items()):
        (figure,) = (f for f in figures if (f.layer, f.num_envs, f.ranks) == (layer, most, ranks))
        speeds = results.by_threads(figure)
        fewest, *_ = threads = list(speeds)
        values = [speed / speeds[fewest] for speed in speeds.values()]
        ax.plot(threads, values, "o-", color=color(i), label=label)
    ax.plot(threads, [n / fewest for n in threads], color=FAINT, linewidth=1.0, linestyle=":")
    ax.set_xticks(threads)
    ax.set_xlabel("threads of each rank")
    ax.set_ylim(bottom=0.0)
    ax.set_title(f"Speed-up by threads, {most:,} environments")
    legend_below(ax, 3)


def _draw_metric(ax: Axes, results: UntilResults, name: str, value: float) -> None:
    """A metric of every seed over env steps, and the value that it is compared with."""
    for i, seed in enumerate(results.seeds):
        points = [(e.env_steps, e.values.get(name, math.nan)) for e in seed.evaluations]
        ax.plot(*zip(*points, strict=True), ".-", color=color(i), label=f"seed {seed.seed}")
    ax.axhline(value, color="black", linewidth=1.0, linestyle="--", label="condition")
    ax.set_title(name)
    counts_on_x(ax, "environment steps")
    numbers_on(ax, "y")
    if len(results.seeds) <= len(COLORS):
        ax.legend()


def _draw_costs(ax: Axes, results: UntilResults, what: str) -> None:
    """A bar for each seed, hatched if it never got there, and the median with the range."""
    unit = 60.0 if what == "seconds" else 1.0
    for i, seed in enumerate(results.seeds):
        look: Any = {"color": color(i)} if seed.reached else {"fill": False, "hatch": "//"}
        ax.bar(i, getattr(seed.end, what) / unit, width=0.6, edgecolor=color(i), **look)
    costs, median = results.costs(what), results.median(what)
    if math.isfinite(max(costs)):
        place: Any = {"color": "black", "alpha": 0.08, "linewidth": 0, "zorder": 0}
        ax.axhspan(min(costs) / unit, max(costs) / unit, **place)
    if math.isfinite(median):
        ax.axhline(median / unit, color="black", linewidth=1.0)
    ax.set_title(f"{COSTS[what]}, median {shown(what, median)}")
    ax.set_xticks(range(len(results.seeds)), [str(seed.seed) for seed in results.seeds])
    ax.set_xlabel("seed" if math.isfinite(max(costs)) else "seed (hatched: not reached)")
    ax.set_ylabel("minutes" if what == "seconds" else "environment steps")
    numbers_on(ax, "y")
