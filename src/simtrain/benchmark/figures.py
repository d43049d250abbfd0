"""The figures of a benchmark: their file, their tables, and how they compare with earlier ones.

Imports nothing heavy, so that a mistake in a command is reported at once.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from rich.table import Column, Table
from rich.text import Text

from simtrain.errors import ConfigError
from simtrain.files import damage_as_config_error, read_file
from simtrain.limits import Positive, check
from simtrain.run.directory import versions
from simtrain.sim import EngineName

Layer = Literal["physics", "env_step", "rollout", "update", "training"]
LAYERS: dict[Layer, str] = {
    "physics": "bare physics",
    "env_step": "env step",
    "rollout": "rollout",
    "update": "update",
    "training": "end to end",
}
"""The measured layers, and their names in tables and pictures."""
_FORMAT = "simtrain-benchmark-2"
_UNIT = "environment steps a second, over all ranks"
PartT = TypeVar("PartT")


@dataclass(frozen=True)
class Case:
    """A case that is measured; networks are on `device`, ``cpu`` or ``cuda``.

    Each rank has `num_envs` environments and `threads` threads.
    """

    task: str
    engine: EngineName
    device: str
    ranks: int
    num_envs: int
    threads: int

    @property
    def workers(self) -> str:
        """Ranks and threads, in words."""
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        return f"{ranks} of {self.threads} thread{'s' if self.threads > 1 else ''}"

    def __str__(self) -> str:
        where = f"{self.task}, {self.engine}, {self.device}"
        return f"{where}, {self.workers}, {self.num_envs} environments"


@dataclass(frozen=True)
class Figure(Case):
    """How fast one of `LAYERS` is, in environment steps a second, and as a fraction of physics."""

    layer: Layer
    steps_per_second: Positive  # the median of all repetitions
    lowest: Positive
    highest: Positive
    of_physics: Positive

    @property
    def case(self) -> Case:
        """The case that was measured."""
        return Case(*(getattr(self, field.name) for field in fields(Case)))

    @property
    def spread(self) -> float:
        """Half the range of the repetitions, as a fraction of the median."""
        return (self.highest - self.lowest) / 2.0 / self.steps_per_second


@dataclass(frozen=True)
class Results:
    """All figures of a benchmark, and the machine, versions and settings, as plain data."""

    figures: tuple[Figure, ...]
    about: dict[str, Any]

    SETTINGS: ClassVar = ("machine", "repetitions", "cuda_graphs", "tf32")
    """Entries of `about` that must be the same for a fair comparison."""
    UNCHANGED: ClassVar = "no figure fell"

    def as_json(self) -> str:
        """The text of a file that `read_results` reads."""
        figures = [asdict(figure) for figure in self.figures]
        content = {"format": _FORMAT, "unit": _UNIT, **self.about, "figures": figures}
        return json.dumps(content, indent=2) + "\n"

    def speed(self, case: Case, layer: Layer) -> float:
        """Environment steps a second, the median; NaN if that was not measured."""
        speeds = {(f.case, f.layer): f.steps_per_second for f in self.figures}
        return speeds.get((case, layer), math.nan)

    def scaling(self, figure: Figure) -> float:
        """How fast each of several ranks is as a fraction of one rank alone; NaN if unknown."""
        alone = self.speed(replace(figure.case, ranks=1), figure.layer)
        return figure.steps_per_second / figure.ranks / alone

    def by_threads(self, figure: Figure) -> dict[int, float]:
        """The speed of the figure's layer by threads, fewest first, all else the same."""
        cases = {replace(figure.case, threads=n) for n in {f.threads for f in self.figures}}
        speeds = {case.threads: self.speed(case, figure.layer) for case in cases}
        return {n: speed for n, speed in sorted(speeds.items()) if not math.isnan(speed)}

    def serial_part(self, figure: Figure) -> float:
        """Microseconds of an env step that more threads make no shorter; NaN for one number.

        Amdahl's law: serial part + parallel part / threads, by least squares over all numbers.
        """
        speeds = self.by_threads(figure)
        if len(speeds) < 2:
            return math.nan
        times = [1e6 / speed for speed in speeds.values()]
        return statistics.linear_regression([1.0 / n for n in speeds], times).intercept

    def slower(self, before: Results, tolerance: float) -> list[str]:
        """Lines about the figures that fell by more than the fraction `tolerance`."""
        pairs = [(figure, before.speed(figure.case, figure.layer)) for figure in self.figures]
        return [
            f"{LAYERS[figure.layer]} of {figure.case}: {figure.steps_per_second:,.0f} env steps/s, "
            f"{figure.steps_per_second / old:.3f} of the {old:,.0f} before"
            for figure, old in pairs
            if figure.steps_per_second < (1.0 - tolerance) * old
        ]

    def tables(self, before: Results | None, tolerance: float) -> list[Table]:
        """A table for each task, engine, device, ranks and threads; marks figures that fell."""
        tables: dict[str, Table] = {}
        for figure in self.figures:
            title = f"{figure.task}, {figure.engine} engine, {figure.device}, {figure.workers}"
            cells: dict[str, str | Text] = {
                "environments": f"{figure.num_envs:,}" if figure.layer == "physics" else "",
                "layer": LAYERS[figure.layer],
                "env steps/s": f"{figure.steps_per_second:,.0f}",
                "spread": f"± {100.0 * figure.spread:.1f} %" if figure.spread else "",
                "of physics": f"{figure.of_physics:.3f}",
            }
            if figure.ranks > 1:
                cells["scaling"] = fraction(self.scaling(figure))
            if figure.threads > min(speeds := self.by_threads(figure)):
                cells["speed-up"] = fraction(figure.steps_per_second / speeds[min(speeds)])
                cells["serial µs"] = f"{self.serial_part(figure):.1f}"
            if before is not None:
                ratio = figure.steps_per_second / before.speed(figure.case, figure.layer)
                has_fallen = ratio < 1.0 - tolerance
                cells["now/before"] = Text(fraction(ratio), "bold red" if has_fallen else "")
            table = tables.setdefault(title, new_table(title, cells))
            table.add_row(*cells.values(), end_section=figure.layer == "training")
        return list(tables.values())


def figures_of(case: Case, steps: int, seconds: dict[str, list[float]]) -> tuple[Figure, ...]:
    """The figures of a case, from the seconds of `steps` environment steps in each repetition."""
    physics = statistics.median(seconds["physics"])
    figures = []
    for layer in LAYERS:
        times = seconds[layer]
        median, *ends = (round(steps / of(times), 1) for of in (statistics.median, max, min))
        of_physics = round(physics / statistics.median(times), 4)
        values: dict[str, Any] = {**vars(case), "layer": layer, "of_physics": of_physics}
        figures.append(Figure(**values, steps_per_second=median, lowest=ends[0], highest=ends[1]))
    return tuple(figures)


def read_results(path: Path) -> Results:
    """The results in a file of `Results.as_json`; ConfigError if damaged, or of another kind."""
    content = read_content(path, _FORMAT, "`benchmark`")
    with damage_as_config_error(f"--compare {path} is damaged"):
        figures = tuple(checked(Figure(**row)) for row in content.pop("figures"))
    content.pop("unit", None)
    return Results(figures, content)


def read_content(path: Path, kind: str, writer: str, flag: str = "--compare") -> dict[str, Any]:
    """The JSON of a file whose ``format``, which is left out, is `kind`; ConfigError if not."""
    data = read_file(path, flag)
    with damage_as_config_error(f"{flag} {path} is not JSON"):
        content = json.loads(data.decode())
    if not isinstance(content, dict) or content.pop("format", None) != kind:
        raise ConfigError(f"{flag} {path} was not written by this version's {writer}")
    if not isinstance(content.get("versions", {}), dict):
        raise ConfigError(f"{flag} {path} is damaged: its versions are {content['versions']!r:.60}")
    return content


def checked(part: PartT) -> PartT:
    """A dataclass made of a file's values; ValueError for a value that is not allowed."""
    try:
        check(part)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return part


def about_machine(device_name: str, *threads: int) -> dict[str, Any]:
    """When and on which machine a benchmark was made, with which versions."""
    cores, numbers = len(os.sched_getaffinity(0)), ", ".join(map(str, threads))
    on_rank = f"{numbers} thread{'s' if threads != (1,) else ''} a rank"
    machine = {"device": device_name, "cores": f"{cores} cores", "threads": on_rank}
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"date": date, "machine": machine, "versions": versions()}


def differences(
    before: dict[str, Any], now: dict[str, Any], settings: tuple[str, ...]
) -> list[str]:
    """Lines about differences of machine, settings and versions from an earlier benchmark."""
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


def new_table(title: str, columns: Iterable[str]) -> Table:
    """An empty table; all columns but ``layer`` have numbers."""
    headers = [Column(name, justify="left" if name == "layer" else "right") for name in columns]
    style: Any = {"box": None, "title_justify": "left", "pad_edge": False, "padding": (0, 2, 0, 0)}
    return Table(*headers, title=title, **style)


def fraction(value: float) -> str:
    """A fraction for a table; a hyphen for NaN."""
    return "-" if math.isnan(value) else f"{value:.3f}"
