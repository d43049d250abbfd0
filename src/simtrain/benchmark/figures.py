"""The figures of a benchmark: their file, their tables, and how they compare with earlier ones.

Imports nothing heavy, so that a mistake in a command is reported at once.
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.table import Table

from simtrain.errors import ConfigError
from simtrain.files import damage_as_config_error, read_file
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

    def by_case(self) -> dict[Case, dict[str, Figure]]:
        """Case -> layer -> figure, in the order of measuring."""
        cases: dict[Case, dict[str, Figure]] = {}
        for figure in self.figures:
            cases.setdefault(figure.case, {})[figure.layer] = figure
        return cases


@dataclass(frozen=True)
class Change:
    """A figure now and before."""

    before: Figure
    now: Figure

    @property
    def ratio(self) -> float:
        """How many times as fast it is now."""
        return self.now.steps_per_second / self.before.steps_per_second

    def __str__(self) -> str:
        before, now = self.before.steps_per_second, self.now.steps_per_second
        title = f"{LAYERS[self.now.layer]} of {self.now.case}"
        return f"{title}: {now:,.0f} env steps/s, {self.ratio:.3f} of the {before:,.0f} before"


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


def compare(now: Results, before: Results) -> list[Change]:
    """The figures that both have, in the order of `now`."""
    cases = before.by_case()
    pairs = [(cases.get(figure.case, {}).get(figure.layer), figure) for figure in now.figures]
    return [Change(old, figure) for old, figure in pairs if old is not None]


def fallen(changes: Iterable[Change], tolerance: float) -> list[Change]:
    """The changes by which a figure fell by more than the fraction `tolerance`."""
    return [change for change in changes if change.ratio < 1.0 - tolerance]


def as_json(results: Results) -> str:
    """The text of a file that `read_results` reads."""
    figures = []
    for figure in results.figures:
        numbers = {name: round(getattr(figure, name), digits) for name, digits in _NUMBERS.items()}
        figures.append({**asdict(figure.case), "layer": figure.layer, **numbers})
    content = {"format": _FORMAT, "unit": _UNIT, **results.about, "figures": figures}
    return json.dumps(content, indent=2) + "\n"


def read_results(path: Path) -> Results:
    """What `as_json` wrote; ConfigError if the file cannot be read, or is of another kind."""
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


def tables(results: Results, changes: Sequence[Change], tolerance: float) -> list[Table]:
    """A table for each task, engine, device and number of ranks; marks what `fallen` finds."""
    ratios = {change.now: change.ratio for change in changes}
    lost = {change.now for change in fallen(changes, tolerance)}
    found: dict[str, Table] = {}
    for case, figures in results.by_case().items():
        ranks = "1 rank" if case.ranks == 1 else f"{case.ranks} ranks"
        title = f"{case.task}, {case.engine} engine, {case.device}, {ranks}"
        if title not in found:
            columns = ["env steps/s", "spread", "of physics"]
            columns += ["scaling"] * (case.ranks > 1) + ["now/before"] * bool(ratios)
            style: Any = {"box": None, "title_justify": "left", "pad_edge": False}
            found[title] = Table(title=title, padding=(0, 2, 0, 0), **style)
            found[title].add_column("environments", justify="right")
            found[title].add_column("layer")
            for column in columns:
                found[title].add_column(column, justify="right")
        for layer, figure in figures.items():
            cells = [f"{case.num_envs:,}" if layer == "physics" else "", LAYERS[layer]]
            cells += [f"{figure.steps_per_second:,.0f}", f"± {100.0 * figure.spread:.1f} %"]
            cells.append(f"{figure.of_physics:.3f}")
            if case.ranks > 1:
                cells.append(_fraction(scaling(results, figure)))
            if ratios:
                ratio = _fraction(ratios.get(figure))
                cells.append(f"[bold red]{ratio}[/]" if figure in lost else ratio)
            found[title].add_row(*cells, end_section=layer == "training")
    return list(found.values())


def _fraction(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _figure(row: dict[str, Any]) -> Figure:
    case = Case(**{name: kind(row[name]) for name, kind in _CASE.items()})
    numbers = {name: float(row[name]) for name in _NUMBERS}
    if row["layer"] not in LAYERS or not all(0.0 < number < 1e30 for number in numbers.values()):
        raise ValueError(row)
    return Figure(case, row["layer"], **numbers)
