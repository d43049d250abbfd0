"""What a benchmark found: figures, their file, and how they compare with those of another run.

Imports nothing heavy, so that a mistake in a command is told at once.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from simtrain.errors import ConfigError
from simtrain.sim import EngineName

LAYERS = {
    "physics": "bare physics",
    "env_step": "env step",
    "rollout": "rollout",
    "update": "update",
    "training": "end to end",
}
"""What is measured, and what a person calls it."""

_FORMAT = "simtrain-benchmark-1"
_UNIT = "environment steps a second, over all ranks"


@dataclass(frozen=True)
class Case:
    """What the layers are measured on."""

    task: str
    engine: EngineName
    device: str
    """Where the networks are: ``cpu`` or ``cuda``."""
    ranks: int
    num_envs: int
    """Environments of each rank."""

    def __str__(self) -> str:
        ranks = f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"
        return f"{self.task}, {self.engine}, {self.device}, {ranks}, {self.num_envs} environments"


@dataclass(frozen=True)
class Figure:
    """How fast one layer is, in environment steps a second over all ranks."""

    case: Case
    layer: str
    """Which: one of `LAYERS`."""
    steps_per_second: float
    """In the median of all repetitions."""
    lowest: float
    """In the slowest repetition."""
    highest: float
    """In the fastest repetition."""
    of_physics: float
    """`steps_per_second` as a fraction of bare physics."""

    @property
    def spread(self) -> float:
        """Half of what repetitions differ by, as a fraction of the median."""
        return (self.highest - self.lowest) / 2.0 / self.steps_per_second


@dataclass(frozen=True)
class Results:
    """All figures of a benchmark, and where they come from."""

    figures: tuple[Figure, ...]
    about: dict[str, Any]
    """The machine, versions and settings, as plain data."""

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
        return (
            f"{LAYERS[self.now.layer]} of {self.now.case}: "
            f"{self.now.steps_per_second:,.0f} env steps/s, {self.ratio:.3f} of the "
            f"{self.before.steps_per_second:,.0f} before"
        )


def figures_of(
    case: Case, steps: int, seconds: Mapping[str, Sequence[float]]
) -> tuple[Figure, ...]:
    """The figures of a case.

    Args:
        case: what was measured.
        steps: environment steps of a block, over all ranks.
        seconds: layer -> seconds of each repetition's block.
    """
    medians = {layer: steps / statistics.median(seconds[layer]) for layer in LAYERS}
    return tuple(
        Figure(
            case,
            layer,
            steps_per_second=median,
            lowest=steps / max(seconds[layer]),
            highest=steps / min(seconds[layer]),
            of_physics=median / medians["physics"],
        )
        for layer, median in medians.items()
    )


def scaling(results: Results, figure: Figure) -> float | None:
    """How fast each of several ranks is as a fraction of one rank alone, if that was measured."""
    case = figure.case
    for other in results.figures:
        alone = Case(case.task, case.engine, case.device, 1, case.num_envs)
        if other.case == alone and other.layer == figure.layer:
            return figure.steps_per_second / case.ranks / other.steps_per_second
    return None


def compare(now: Results, before: Results) -> list[Change]:
    """The figures that both have, in the order of `now`."""
    old = {(figure.case, figure.layer): figure for figure in before.figures}
    return [
        Change(old[figure.case, figure.layer], figure)
        for figure in now.figures
        if (figure.case, figure.layer) in old
    ]


def fallen(changes: Iterable[Change], tolerance: float) -> list[Change]:
    """Those that fell by more than the fraction `tolerance`."""
    return [change for change in changes if change.ratio < 1.0 - tolerance]


def as_json(results: Results) -> str:
    """The text of a file that `read_results` reads."""
    figures = [
        {
            **asdict(figure.case),
            "layer": figure.layer,
            "steps_per_second": round(figure.steps_per_second, 1),
            "lowest": round(figure.lowest, 1),
            "highest": round(figure.highest, 1),
            "of_physics": round(figure.of_physics, 4),
        }
        for figure in results.figures
    ]
    content = {"format": _FORMAT, "unit": _UNIT, **results.about, "figures": figures}
    return json.dumps(content, indent=2) + "\n"


def read_results(path: Path) -> Results:
    """What `as_json` wrote.

    Raises:
        ConfigError: the file cannot be read, or is of another kind.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--compare {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"--compare {path} is not JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise ConfigError(f"--compare {path} was not written by this version's `benchmark`")
    about = {
        name: value for name, value in content.items() if name not in ("format", "unit", "figures")
    }
    try:
        return Results(tuple(_figure(row) for row in content["figures"]), about)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"--compare {path} is damaged: {error!r}") from error


def _figure(row: dict[str, Any]) -> Figure:
    case = Case(
        str(row["task"]),
        row["engine"],
        str(row["device"]),
        int(row["ranks"]),
        int(row["num_envs"]),
    )
    numbers = {
        name: float(row[name]) for name in ("steps_per_second", "lowest", "highest", "of_physics")
    }
    if row["layer"] not in LAYERS or not all(number > 0.0 for number in numbers.values()):
        raise ValueError(row)
    return Figure(case, row["layer"], **numbers)
