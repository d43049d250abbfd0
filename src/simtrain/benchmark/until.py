"""How soon a task is learned: trainings of several seeds, their file, table and comparison.

Costs are counted up to the first policy whose evaluation fulfils the condition; the time is that of
training alone. A training that ended without it counts as infinitely long, so that medians over
seeds are right as long as half of them succeed.
"""

from __future__ import annotations

import gc
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from mujoco import MjModel
from rich.table import Table

from simtrain.benchmark.figures import checked, fraction, new_table, read_content
from simtrain.config.train import TrainConfig
from simtrain.config.tree import differences, resolved
from simtrain.errors import ConfigError, flag
from simtrain.files import as_json, damage_as_config_error
from simtrain.launch.plan import Job
from simtrain.limits import Count, Positive
from simtrain.run.directory import read_config_file
from simtrain.run.directory import shown as shown_path
from simtrain.run.logged import NothingLoggedError, Run, members_of, read_lineage, read_run
from simtrain.run.metric_tags import TAG, phase_tags
from simtrain.run.metrics import METRICS
from simtrain.training.features.conditions import StopCondition, stop_condition
from simtrain.training.features.evolution import hyper_parameters
from simtrain.training.job import run_job
from simtrain.training.resumption import can_resume, open_run

COSTS = {"env_steps": "env steps", "seconds": "training time"}
"""The measured costs of a training, and their names in tables and pictures."""
_FORMAT = "simtrain-until-1"
_DATE = len("YYYY-MM-DD_HH-MM-SS_")  # before the name that a run was given
_ALSO = ("init_from", "teacher", "cpu_workers", "eval_interval", "eval_episodes")
"""Settings that decide the results of a benchmark, besides those of a training."""


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
    """Entries of `about` that must be the same for a fair comparison."""
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
        medians = {what: self.median(what) for what in COSTS}  # null where they are infinite
        content |= {"reached": self.reached, "median": medians}
        return as_json(content, indent=2) + "\n"

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
        """A row for each seed, then medians and ranges over all, and their ratios to `before`."""
        names = dict.fromkeys(name for name, _ in self.comparisons)
        columns = ["seed", "reached", "iterations", *COSTS.values(), *names]
        table = new_table(f"{self.task} until {self.condition}", columns)
        for seed in self.seeds:
            last = seed.end
            cells = [str(seed.seed), "yes" if seed.reached else "no", f"{last.iteration:,}"]
            # Without success, the cost of the whole training.
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
    """The results in a file of `as_json`; ConfigError if unreadable, or of another kind."""
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


def train_seeds(
    configs: Sequence[TrainConfig], job: Job, model: MjModel, iterations: int
) -> tuple[SeedResult, ...] | int:
    """Train what is not trained yet, one after the other, as `job` on the task's `model`.

    Returns the results, or the exit code of a training that ended before it was done. What it does
    goes to standard output.

    Raises:
        ConfigError: there is a run of a seed with other settings.
    """
    condition = stop_condition(configs[0])
    assert condition is not None
    runs = [find_run(config) for config in configs]
    seeds: list[SeedResult] = []
    for i, (config, run) in enumerate(zip(configs, runs, strict=True)):
        title = f"seed {config.seed} ({i + 1} of {len(configs)})"
        result, is_over = (None, False) if run is None else read_seed(run, condition, iterations)
        if result is not None and is_over:
            commit = f", at commit {result.commit}" if result.commit else ""
            print(f"{title}: trained before, in {result.run}{commit}")
        else:
            goes_on = run is not None and can_resume(run)
            print(f"{title}: {'going on' if goes_on else 'training'}")
            saved = open_run(run) if run is not None and goes_on else None
            run, code = run_job(config, replace(job, seed=config.seed), model, saved)
            gc.collect()  # its environments are gone before the next ones are made
            result, is_over = read_seed(run, condition, iterations)
            if code or not is_over:
                print("stopped; the same command goes on")
                return code
        if result is None:
            raise ConfigError(f"{title}: there is no evaluation within {iterations} iterations")
        seeds.append(result)
    return tuple(seeds)


def find_run(config: TrainConfig) -> Path | None:
    """The newest run with the configuration's name; ConfigError if its settings are others."""
    folders = (config.log_root / config.task).glob("*")
    runs = [f for f in folders if f.name[_DATE:] == config.run_name and (f / METRICS).exists()]
    if not runs:
        return None
    run = max(runs)
    with damage_as_config_error(f"{run}/config.yaml is not the configuration of a run"):
        before = read_config_file(run)["config"]
        # A run names the engine that it took.
        either = "auto" in (before["engine"], config.engine)
        now = replace(config, engine=before["engine"] if either else config.engine)
        changed = differences(before, resolved(now))
        for name in _ALSO:
            if before.get(name) != (value := resolved(now)[name]):
                changed[flag(name)] = f"{before.get(name)!r} in the run, {value!r} now"
    for parameter in hyper_parameters(config) if config.population else ():
        changed.pop(f"--{parameter.flag}", None)  # members have values of their own
    for name, what in changed.items():
        fix = "remove it, or give the new trainings another --run-name"
        raise ConfigError(
            f"{shown_path(run)} was trained with other settings ({name}: {what:.200}); {fix}"
        )
    return run


def read_seed(
    run: Path, condition: StopCondition, iterations: int
) -> tuple[SeedResult | None, bool]:
    """A training's evaluations within so many `iterations`, None if there is none yet; and whether
    it is over, because one fulfils the condition or no iterations are left."""
    try:
        runs = [read_run(path) for path in members_of(run) or [run]]
        with damage_as_config_error(f"{run} is damaged"):
            all_evaluations = _of_population(run, runs) if members_of(run) else _of_training(*runs)
    except NothingLoggedError:
        return None, False
    evaluations = [one for one in all_evaluations if one.iteration <= iterations]
    holds = [condition.holds(one.values) for one in evaluations]
    is_over = any(holds) or runs[0].columns["iteration"][-1] >= iterations
    if not evaluations:
        return None, is_over
    tags = {comparison.name: comparison.tag for comparison in condition.comparisons}
    with damage_as_config_error(f"{run} is damaged"):
        compared = tuple(
            checked(replace(e, values={n: e.values[t] for n, t in tags.items() if t in e.values}))
            for e in evaluations
        )
    reached_at = holds.index(True) if any(holds) else None
    seed = int(runs[0].config["seed"])
    return SeedResult(seed, str(shown_path(run)), runs[0].commit, reached_at, compared), is_over


def _of_training(run: Run) -> list[Evaluated]:
    """The evaluations of a run; their time is of all phases but evaluation, up to the policy."""
    columns = run.columns
    phases = [tag for tag in phase_tags(list(columns)) if tag != f"{TAG}evaluation"]
    seconds = np.cumsum(sum((columns[t] for t in phases), start=0.0 * columns["iteration"]))
    of_policy = columns.get("Eval/iteration", np.empty(0))
    evaluations = []
    for row in np.flatnonzero(np.isfinite(of_policy)).tolist():
        # An evaluation beside training is of an older policy than that of its line.
        at = int(np.searchsorted(columns["iteration"], of_policy[row]))
        counts = int(of_policy[row]), int(columns["env_steps"][at]), float(seconds[at])
        evaluations.append(Evaluated(*counts, _values(run, row)))
    return evaluations


def _of_population(run: Path, members: Sequence[Run]) -> list[Evaluated]:
    """The evaluation of the best member in each exchange."""
    evaluations = []
    for exchange in read_lineage(run):
        scores = [-math.inf if m["score"] is None else m["score"] for m in exchange["members"]]
        best = members[int(np.argmax(scores))]
        row = int(np.searchsorted(best.columns["iteration"], exchange["iteration"]))
        counts = exchange["iteration"], exchange["env_steps"], exchange["wall_s"]
        evaluations.append(Evaluated(*counts, _values(best, row)))
    return evaluations


def _values(run: Run, row: int) -> dict[str, float]:
    """The metrics of an iteration."""
    values = {tag: float(column[row]) for tag, column in run.columns.items()}
    return {tag: value for tag, value in values.items() if math.isfinite(value)}
