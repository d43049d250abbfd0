"""A benchmark's figures as tables for a person."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from simtrain.benchmark.figures import LAYERS, Case, Change, Results, scaling


def tables(results: Results, changes: Sequence[Change], tolerance: float) -> list[Table]:
    """A table for each task on an engine, device and number of ranks.

    Args:
        results: the figures.
        changes: figures that are compared with those of before.
        tolerance: by what fraction a figure may have fallen without being marked.
    """
    ratios = {(change.now.case, change.now.layer): change.ratio for change in changes}
    groups: dict[str, list[Case]] = {}
    for case in results.by_case():
        title = f"{case.task}, {case.engine} engine, {case.device}, {_ranks(case)}"
        groups.setdefault(title, []).append(case)
    return [_table(title, results, cases, ratios, tolerance) for title, cases in groups.items()]


def _table(
    title: str,
    results: Results,
    cases: Sequence[Case],
    ratios: dict[tuple[Case, str], float],
    tolerance: float,
) -> Table:
    several = cases[0].ranks > 1
    table = Table(box=None, title=title, title_justify="left", pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("environments", justify="right")
    table.add_column("layer")
    for name in ("env steps/s", "spread", "of physics"):
        table.add_column(name, justify="right")
    if several:
        table.add_column("scaling", justify="right")
    if ratios:
        table.add_column("now/before", justify="right")
    for case in cases:
        for layer, figure in results.by_case()[case].items():
            row = [
                f"{case.num_envs:,}" if layer == "physics" else "",
                LAYERS[layer],
                f"{figure.steps_per_second:,.0f}",
                f"± {100.0 * figure.spread:.1f} %",
                f"{figure.of_physics:.3f}",
            ]
            if several:
                efficiency = scaling(results, figure)
                row.append("-" if efficiency is None else f"{efficiency:.3f}")
            if ratios:
                ratio = ratios.get((case, layer))
                fell = ratio is not None and ratio < 1.0 - tolerance
                text = "-" if ratio is None else f"{ratio:.3f}"
                row.append(f"[bold red]{text}[/]" if fell else text)
            table.add_row(*row, end_section=layer == "training")
    return table


def _ranks(case: Case) -> str:
    return "1 rank" if case.ranks == 1 else f"{case.ranks} ranks"
