"""The figures of a benchmark: their file, their tables, and how they compare with earlier ones.

Imports nothing heavy, so that a mistake in a command is reported at once.
"""

from __future__ import annotations

import json
import os
import statistics
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from simtrain.errors import ConfigError
from simtrain.files import damage_as_config_error, read_file
from simtrain.run.directory import versions
from simtrain.sim import EngineName

LAYERS = {"physics": "bare physics", "env_step": "env step", "rollout": "rollout"}
LAYERS |= {"update": "update", "training": "end to end"}
"""What is measured, and its name in tables and pictures."""
_FORMAT = "simtrain-benchmark-1"
_UNIT = "environment steps a second, over all ranks"
_NUMBERS = {"steps_per_second": 1, "lowest": 1, "highest": 1, "of_physics": 4}
"""The numbers of a figure in a file, and their digits behind the point."""
_CASE: dict[str, Any] = {"task": str, "engine": str, "device": str, "ranks": int, "num_envs": int}


@dataclass(frozen=True)
class Case:
    """What is measured; networks are on `device`, ``cpu`` or ``cuda``, `num_envs` on each rank."""

    task: str
    engine: EngineName
    device: str
    ranks: int
    num_envs: int

    def __str__(self) -> str:
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        return f"{self.task}, {self.engine}, {self.device}, {ranks}, {self.num_envs} environments"


@dataclass(frozen=True)
class Figure:
    """How fast one of `LAYERS` is, in environment steps a second, and as a fraction of physics."""

    case: Case
    layer: str
    steps_per_second: float  # the median of all repetitions
    lowest: float
    highest: float
    of_physics: float

    @property
    def spread(self) -> float:
        """Half of what repetitions differ by, as a fraction of the median."""
        return (self.highest - self.lowest) / 2.0 / self.steps_per_second


@dataclass(frozen=True)
class Results:
    """All figures of a benchmark, and the machine, versions and settings, as plain data."""

    figures: tuple[Figure, ...]
    about: dict[str, Any]

    SETTINGS: ClassVar = ("machine", "repetitions", "cuda_graphs")
    """What must be the same for a fair comparison."""
    UNCHANGED: ClassVar = "no figure fell"

    def by_case(self) -> dict[Case, dict[str, Figure]]:
        """Case -> layer -> figure, in the order of measuring."""
        cases: dict[Case, dict[str, Figure]] = {}
        for figure in self.figures:
            cases.setdefault(figure.case, {})[figure.layer] = figure
        return cases

    def as_json(self) -> str:
        """The text of a file that `read_results` reads."""
        figures = []
        for figure in self.figures:
            numbers = {n: round(getattr(figure, n), digits) for n, digits in _NUMBERS.items()}
            figures.append({**asdict(figure.case), "layer": figure.layer, **numbers})
        content = {"format": _FORMAT, "unit": _UNIT, **self.about, "figures": figures}
        return json.dumps(content, indent=2) + "\n"

    def compared(self, before: Results | None) -> list[tuple[Figure, Figure]]:
        """The figures that were measured `before`, too, and what they were then."""
        cases = {} if before is None else before.by_case()
        pairs = [(figure, cases.get(figure.case, {}).get(figure.layer)) for figure in self.figures]
        return [(figure, old) for figure, old in pairs if old is not None]

    def slower(self, before: Results, tolerance: float) -> list[str]:
        """Lines about the figures that fell by more than the fraction `tolerance`."""
        lines = []
        for figure, old in self.compared(before):
            now, then = figure.steps_per_second, old.steps_per_second
            if now < (1.0 - tolerance) * then:
                title = f"{LAYERS[figure.layer]} of {figure.case}"
                speeds = f"{now:,.0f} env steps/s, {now / then:.3f} of the {then:,.0f} before"
                lines.append(f"{title}: {speeds}")
        return lines

    def tables(self, before: Results | None, tolerance: float) -> list[Table]:
        """A table for each task, engine, device and number of ranks; marks what fell."""
        compared = self.compared(before)
        ratios = {f: f.steps_per_second / old.steps_per_second for f, old in compared}
        tables: dict[str, Table] = {}
        for case, figures in self.by_case().items():
            ranks = "1 rank" if case.ranks == 1 else f"{case.ranks} ranks"
            title = f"{case.task}, {case.engine} engine, {case.device}, {ranks}"
            columns = ["environments", "layer", "env steps/s", "spread", "of physics"]
            columns += ["scaling"] * (case.ranks > 1) + ["now/before"] * bool(ratios)
            table = tables.setdefault(title, new_table(title, columns))
            for layer, figure in figures.items():
                cells = [f"{case.num_envs:,}" if layer == "physics" else "", LAYERS[layer]]
                cells += [f"{figure.steps_per_second:,.0f}", f"± {100.0 * figure.spread:.1f} %"]
                cells.append(f"{figure.of_physics:.3f}")
                if case.ranks > 1:
                    cells.append(_fraction(scaling(self, figure)))
                if ratios:
                    ratio = ratios.get(figure)
                    has_fallen = ratio is not None and ratio < 1.0 - tolerance
                    cells.append(f"[bold red]{ratio:.3f}[/]" if has_fallen else _fraction(ratio))
                table.add_row(*cells, end_section=layer == "training")
        return list(tables.values())


def figures_of(case: Case, steps: int, seconds: dict[str, list[float]]) -> tuple[Figure, ...]:
    """The figures of a case, from the seconds of `steps` environment steps in each repetition."""
    physics = steps / statistics.median(seconds["physics"])
    figures = []
    for layer in LAYERS:
        times = seconds[layer]
        median, lowest, highest = (steps / of(times) for of in (statistics.median, max, min))
        figures.append(Figure(case, layer, median, lowest, highest, median / physics))
    return tuple(figures)


def scaling(results: Results, figure: Figure) -> float | None:
    """How fast each of several ranks is as a fraction of one rank alone, if that was measured."""
    alone = results.by_case().get(replace(figure.case, ranks=1), {}).get(figure.layer)
    if alone is None:
        return None
    return figure.steps_per_second / figure.case.ranks / alone.steps_per_second


def read_results(path: Path) -> Results:
    """Read what `Results.as_json` gave; ConfigError if it is damaged, or of another kind."""
    content = read_content(path, _FORMAT, "`benchmark`")
    with damage_as_config_error(f"--compare {path} is damaged"):
        figures = tuple(_figure(row) for row in content.pop("figures"))
    content.pop("unit", None)
    return Results(figures, content)


def read_content(path: Path, kind: str, writer: str, flag: str = "--compare") -> dict[str, Any]:
    """The JSON of a file whose ``format``, which is left out, is `kind`; ConfigError if not."""
    data = read_file(path, flag)
    with damage_as_config_error(f"{flag} {path} is not JSON"):
        content = json.loads(data.decode())
    if not isinstance(content, dict) or content.pop("format", None) != kind:
        raise ConfigError(f"{flag} {path} was not written by this version's {writer}")
    return content


def about_machine(device_name: str, threads: int) -> dict[str, Any]:
    """When and on which machine a benchmark was made, with which versions."""
    cores, on_rank = len(os.sched_getaffinity(0)), f"{threads} thread{'s' if threads > 1 else ''}"
    machine = {"device": device_name, "cores": f"{cores} cores", "threads": f"{on_rank} a rank"}
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"date": date, "machine": machine, "versions": versions()}


def differences(
    before: dict[str, Any], now: dict[str, Any], settings: tuple[str, ...]
) -> list[str]:
    """How the machine, the settings and the versions of an earlier benchmark were others."""
    lines = [
        f"has another {name}: {before.get(name)}, now {now[name]}"
        for name in settings
        if before.get(name) != now[name]
    ]
    old = before.get("versions", {})
    return lines + [
        f"was measured with {package} {old[package]}, now {version}"
        for package, version in now["versions"].items()
        if old.get(package, version) != version
    ]


def new_table(title: str, columns: list[str]) -> Table:
    """An empty table; all columns but ``layer`` have numbers."""
    style: Any = {"box": None, "title_justify": "left", "pad_edge": False}
    table = Table(title=title, padding=(0, 2, 0, 0), **style)
    for column in columns:
        table.add_column(column, justify="left" if column == "layer" else "right")
    return table


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _figure(row: dict[str, Any]) -> Figure:
    case = Case(**{name: kind(row[name]) for name, kind in _CASE.items()})
    numbers = {name: float(row[name]) for name in _NUMBERS}
    if row["layer"] not in LAYERS or not all(0.0 < number < 1e30 for number in numbers.values()):
        raise ValueError(row)
    return Figure(case, row["layer"], **numbers)
