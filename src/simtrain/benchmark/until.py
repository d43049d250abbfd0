"""How soon a task is learned: trainings of several seeds, their file, table and comparison.

What a training costs is counted up to the first policy whose evaluation fulfils the condition; the
time is that of training alone. A training that ended without it counts as infinitely long, so that
medians over seeds are right as long as half of them succeed. Imports nothing heavy.
"""

from __future__ import annotations

import json
import math
import re
import statistics
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from rich.table import Table

from simtrain.benchmark.figures import checked, fraction, new_table, read_content
from simtrain.files import damage_as_config_error
from simtrain.limits import Count, Positive

COSTS = {"env_steps": "env steps", "seconds": "training time"}
"""What is measured of a training, and its name in tables and pictures."""
_FORMAT = "simtrain-until-1"


@dataclass(frozen=True)
class Evaluated:
    """An evaluation in a training; of a population, that of its best member."""

    iteration: int
    env_steps: Count  # over all ranks and members
    seconds: Positive  # of training until then, without evaluations; a population needs them
    values: dict[str, float]  # by the names of the condition's metrics


@dataclass(frozen=True)
class SeedResult:
    """A training and its evaluations."""

    seed: int
    run: str  # its directory
    commit: str | None
    reached_at: int | None  # place of the first evaluation that fulfils the condition
    evaluations: tuple[Evaluated, ...]

    @property
    def reached(self) -> bool:
        """Whether the condition was fulfilled."""
        return self.reached_at is not None

    @property
    def end(self) -> Evaluated:
        """The evaluation that fulfils the condition, or the last one if none does."""
        return self.evaluations[-1 if self.reached_at is None else self.reached_at]

    def cost(self, what: str) -> float:
        """One of `COSTS` until the condition held; infinite if it never did."""
        return float(getattr(self.end, what)) if self.reached else math.inf


@dataclass(frozen=True)
class UntilResults:
    """All seeds of a task, and the machine, versions and settings, as plain data."""

    task: str
    condition: str
    members: int  # of each population; 1 for trainings by themselves
    seeds: tuple[SeedResult, ...]
    about: dict[str, Any]

    SETTINGS: ClassVar = ("machine", "ranks", "eval_interval", "eval_episodes")
    """What must be the same for a fair comparison."""
    UNCHANGED: ClassVar = "no median grew"

    def costs(self, what: str, best_of: int = 1) -> list[float]:
        """One of `COSTS` of every seed, or of every `best_of` seeds, which together train until the
        first of them is done; a last group that is not full is left out."""
        costs = [seed.cost(what) for seed in self.seeds]
        groups = zip(*[iter(costs)] * best_of, strict=False)
        return [best_of * min(group) for group in groups]

    def median(self, what: str, best_of: int = 1) -> float:
        """The median of `costs`; infinite if too few seeds succeed, NaN if there are too few."""
        costs = self.costs(what, best_of)
        return statistics.median(costs) if costs else math.nan

    @property
    def comparisons(self) -> list[tuple[str, float]]:
        """The metrics of the condition, and the value that each is compared with."""
        parts = re.findall(r"([^\s<>=]+)[<>]=?(\S+)", self.condition)
        return [(name, float(value)) for name, value in parts]

    @property
    def reached(self) -> int:
        """How many seeds fulfilled the condition."""
        return sum(seed.reached for seed in self.seeds)

    def as_json(self) -> str:
        """The text of a file that `read_until` reads."""
        content = {"format": _FORMAT, **self.about, **asdict(self)}
        del content["about"]
        medians = {what: self.median(what) for what in COSTS}
        known = {what: median if median < math.inf else None for what, median in medians.items()}
        content |= {"reached": self.reached, "median": known}
        return json.dumps(content, indent=2) + "\n"

    def ratios(self, before: UntilResults) -> dict[str, float]:
        """The medians of `COSTS`, each as a multiple of before.

        A population is compared with as many trainings by themselves, of which the best counts and
        all are paid for. NaN where neither was reached, or there are not so many.
        """
        best_of = max(1, before.members // self.members)
        best_of_before = max(1, self.members // before.members)
        return {
            what: self.median(what, best_of) / before.median(what, best_of_before)  # inf / inf: NaN
            for what in COSTS
        }

    def slower(self, before: UntilResults, tolerance: float) -> list[str]:
        """Lines about the medians that grew by more than the fraction `tolerance`."""
        return [
            f"{COSTS[what]} of {self.task}: {ratio:.3f} of before"
            for what, ratio in self.ratios(before).items()
            if ratio > 1.0 + tolerance
        ]

    def tables(self, before: UntilResults | None, tolerance: float) -> list[Table]:
        """A row for each seed, then medians and ranges over all, and what they are of before."""
        names = dict.fromkeys(name for name, _ in self.comparisons)
        columns = ["seed", "reached", "iterations", *COSTS.values(), *names]
        table = new_table(f"{self.task} until {self.condition}", columns)
        for seed in self.seeds:
            last = seed.end
            cells = [str(seed.seed), "yes" if seed.reached else "no", f"{last.iteration:,}"]
            # Where it was not reached, what was spent in vain.
            sign = "" if seed.reached else "> "
            cells += [sign + shown(what, getattr(last, what)) for what in COSTS]
            table.add_row(*cells, *(f"{last.values.get(name, math.nan):.4g}" for name in names))
        table.add_section()
        count = f"{self.reached} of {len(self.seeds)}"
        rows = (("median", statistics.median, count), ("lowest", min, ""), ("highest", max, ""))
        for name, of, reached in rows:
            table.add_row(name, reached, "", *(shown(what, of(self.costs(what))) for what in COSTS))
        if before is not None:
            table.add_row("now/before", "", "", *map(fraction, self.ratios(before).values()))
        return [table]


def read_until(path: Path, flag: str = "--compare") -> UntilResults:
    """What `as_json` gave; ConfigError if the file cannot be read, or is of another kind."""
    content = read_content(path, _FORMAT, "`benchmark --until`", flag)
    with damage_as_config_error(f"{flag} {path} is damaged"):
        seeds = read_seeds(content.pop("seeds"))
        del content["reached"], content["median"]
        task, condition, members = (content.pop(name) for name in ("task", "condition", "members"))
        return checked(UntilResults(task, condition, members, seeds, content))


def read_seeds(rows: list[dict[str, Any]]) -> tuple[SeedResult, ...]:
    """The trainings in a file; an error of any kind if they are damaged."""
    seeds = []
    for row in rows:
        evaluations = tuple(checked(Evaluated(**values)) for values in row.pop("evaluations"))
        seeds.append(checked(SeedResult(**row, evaluations=evaluations)))
    assert all(seed.end for seed in seeds)  # or an IndexError
    return tuple(seeds)


def shown(what: str, value: float) -> str:
    """One of `COSTS` for people."""
    if not math.isfinite(value):
        return "not reached"
    return f"{value:,.0f}" if what == "env_steps" else str(timedelta(seconds=round(value)))
