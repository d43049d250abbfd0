"""Where the time of an iteration went, as a table for a person."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from simtrain.metric_tags import GROUPS


def phase_table(seconds: Mapping[str, float]) -> Table:
    """A row for each phase that took any time, and for each group of phases.

    Args:
        seconds: phase -> seconds of an iteration; their sum is the iteration.
    """
    whole = sum(seconds.values())
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("where the time went")
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    for name, group in GROUPS.items():
        parts = {label: seconds.get(phase, 0.0) for phase, label in group.items()}
        total = sum(parts.values())
        if total <= 0.0:
            continue
        table.add_row(name, *_numbers(total, whole), style="bold")
        for label, part in parts.items():
            if part > 0.0:
                table.add_row(f"  {label}", *_numbers(part, whole))
    table.add_row("iteration", *_numbers(whole, whole), style="bold")
    return table


def _numbers(part: float, whole: float) -> tuple[str, str]:
    return f"{1e3 * part:,.2f}", f"{100.0 * part / whole:.1f} %"
