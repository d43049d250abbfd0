"""The trainings of `benchmark --until`: trained, resumed, and read from their runs."""

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from simtrain.benchmark.until import Evaluated, SeedResult
from simtrain.config.metric_tags import TAG, phase_tags
from simtrain.config.train import TrainConfig
from simtrain.config.tree import resolved
from simtrain.errors import ConfigError, flag
from simtrain.files import damage_as_config_error
from simtrain.run.directory import read_config_file, shown
from simtrain.run.logged import NothingLoggedError, Run, members_of, read_lineage, read_run
from simtrain.run.metrics import METRICS
from simtrain.training.features.conditions import StopCondition, stop_condition
from simtrain.training.population.hyper_parameters import hyper_parameters
from simtrain.training.resumption import can_resume, changed_settings

_DATE = len("YYYY-MM-DD_HH-MM-SS_")  # before the name that a run was given
_ALSO = ("init_from", "teacher", "cpu_workers", "eval_interval", "eval_episodes")
"""Settings that decide the results of a benchmark, besides those of a training."""
Train = Callable[[TrainConfig, Path | None], tuple[Path, int]]
"""Trains a configuration, or goes on with its run; the run directory and the exit code."""


def train_seeds(
    configs: Sequence[TrainConfig], iterations: int, train: Train, say: Callable[[str], None]
) -> tuple[SeedResult, ...] | int:
    """Train what is not trained yet, one after the other; the results, or the exit code of a
    training that ended before it was done.

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
            say(f"{title}: trained before, in {result.run}{commit}")
        else:
            run = run if run is not None and can_resume(run) else None
            say(f"{title}: {'training' if run is None else 'going on'}")
            run, code = train(config, run)
            gc.collect()  # its environments are gone before the next ones are made
            result, is_over = read_seed(run, condition, iterations)
            if code or not is_over:
                say("stopped; the same command goes on")
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
        # A resumed run names the engine that it took.
        either = "auto" in (before["engine"], config.engine)
        now = replace(config, engine=before["engine"] if either else config.engine)
        changed = changed_settings(before, now)
        for name in _ALSO:
            if before.get(name) != (value := resolved(now)[name]):
                changed[flag(name)] = f"{before.get(name)!r} in the run, {value!r} now"
    for parameter in hyper_parameters(config) if config.population else ():
        changed.pop(f"--{parameter.flag}", None)  # members have values of their own
    for name, what in changed.items():
        fix = "remove it, or give the new trainings another --run-name"
        raise ConfigError(
            f"{shown(run)} was trained with other settings ({name}: {what:.200}); {fix}"
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
    compared = tuple(
        replace(one, values={n: one.values[tag] for n, tag in tags.items() if tag in one.values})
        for one in evaluations
    )
    reached_at = holds.index(True) if any(holds) else None
    seed = int(runs[0].config["seed"])
    return SeedResult(seed, str(shown(run)), runs[0].commit, reached_at, compared), is_over


def _of_training(run: Run) -> list[Evaluated]:
    """Its evaluations; their time is that of all phases but evaluation, up to the policy."""
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
