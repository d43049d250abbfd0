"""The trainings of `benchmark --until`: processes of `train`, and the runs that they leave."""

import math
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import Signals
from typing import Self

import numpy as np

from simtrain.benchmark.until import Evaluated, SeedResult
from simtrain.config.metric_tags import TAG, phase_tags
from simtrain.config.train import TrainConfig
from simtrain.config.tree import differences, new_settings, resolved
from simtrain.errors import ConfigError, flag
from simtrain.files import damage_as_config_error
from simtrain.launch.processes import StopSignals
from simtrain.plot.curves import NothingLoggedError, Run, members_of, read_run
from simtrain.plot.population import read_lineage
from simtrain.run.directory import read_config_file, shown
from simtrain.run.metrics_files import METRICS
from simtrain.training.features.conditions import StopCondition
from simtrain.training.population.hyper_parameters import hyper_parameters

_DATE = len("YYYY-MM-DD_HH-MM-SS_")  # before the name that a run was given
_ALSO = ("init_from", "teacher", "cpu_workers", "eval_interval", "eval_episodes")
"""Settings that decide the results of a benchmark, besides those of a training."""
_PROGRAM = """\
import sys
from simtrain.launch.processes import die_with_parent
die_with_parent(int(sys.argv.pop(1)))
from simtrain.cli.start import train
train()
"""


def find_run(config: TrainConfig) -> Path | None:
    """The newest run with the configuration's name; ConfigError if its settings are others."""
    folders = (config.log_root / config.task).glob("*")
    found = [f for f in folders if f.name[_DATE:] == config.run_name and (f / METRICS).exists()]
    if not found:
        return None
    run = max(found)
    now = resolved(config)
    with damage_as_config_error(f"{run}/config.yaml is not the configuration of a run"):
        its = read_config_file(run)["config"]
        if "auto" in (its["engine"], config.engine):  # a resumed run names the one that it took
            now["engine"] = its["engine"]
        changed = differences(its, now, list(new_settings(config, its)))
        for name in _ALSO:
            if its.get(name) != now[name]:
                changed[flag(name)] = f"{its.get(name)!r} in the run, {now[name]!r} now"
    for each in hyper_parameters(config) if config.population else ():
        changed.pop(f"--{each.flag}", None)  # members have values of their own
    if changed:
        name, what = next(iter(changed.items()))
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
    folders = members_of(run)
    try:
        found = read_run(folders[0] if folders else run)
        with damage_as_config_error(f"{run} is damaged"):
            everything = _of_population(run, folders) if folders else _of_training(found)
    except NothingLoggedError:
        return None, False
    within = [one for one in everything if one.iteration <= iterations]
    if not within:
        return None, False
    evaluations: list[Evaluated] = []
    places: list[int] = []
    for i, one in enumerate(within):
        places += [i] * condition.holds(one.values)
        compared = {c.name: c.tag for c in condition.comparisons}
        values = {name: one.values[tag] for name, tag in compared.items() if tag in one.values}
        evaluations.append(replace(one, values=values))
    is_over = bool(places) or everything[-1].iteration >= iterations
    place, where = places[0] if places else None, str(shown(run))
    seed = int(found.config["seed"])
    return SeedResult(seed, where, found.commit, place, tuple(evaluations)), is_over


def _of_training(run: Run) -> list[Evaluated]:
    """Its evaluations; their time is that of all phases but evaluation, up to the policy."""
    columns = run.columns
    phases = [tag for tag in phase_tags(list(columns)) if tag != f"{TAG}evaluation"]
    seconds = np.cumsum(sum((columns[t] for t in phases), start=0.0 * columns["iteration"]))
    of_policy = columns.get("Eval/iteration", np.empty(0))
    found = []
    for row in np.flatnonzero(np.isfinite(of_policy)).tolist():
        # An evaluation beside training is of an older policy than that of its line.
        at = int(np.searchsorted(columns["iteration"], of_policy[row]))
        steps = int(columns["env_steps"][at])
        found.append(Evaluated(int(of_policy[row]), steps, float(seconds[at]), _values(run, row)))
    return found


def _of_population(run: Path, folders: Sequence[Path]) -> list[Evaluated]:
    """The evaluation of the best member in each exchange."""
    members, found = [read_run(folder) for folder in folders], []
    for exchange in read_lineage(run):
        best = max(exchange["members"], key=lambda each: _or_lowest(each["score"]))
        member = members[best["member"]]
        row = int(np.searchsorted(member.columns["iteration"], exchange["iteration"]))
        counts = exchange["iteration"], exchange["env_steps"], exchange["wall_s"]
        found.append(Evaluated(*counts, _values(member, row)))
    return found


def _values(run: Run, row: int) -> dict[str, float]:
    found = {tag: float(values[row]) for tag, values in run.columns.items()}
    return {tag: value for tag, value in found.items() if math.isfinite(value)}


def _or_lowest(score: float | None) -> float:
    return -math.inf if score is None else score


class TrainingProcess:
    """Runs the `train` command, one at a time, and passes on to it what asks this one to stop."""

    def __init__(self, seconds: float) -> None:
        """Prepare; `seconds` is how long a training may take to stop."""
        self.stop = StopSignals(
            seconds,
            on_signal=self._pass_on,
            on_expiry=lambda number: self._pass_on(signal.SIGKILL),
            on_second_interrupt=lambda: self._pass_on(signal.SIGINT),
        )
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.stop.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop.__exit__(*exception)

    def __call__(self, arguments: Sequence[str]) -> int:
        """Train; the exit code. What it prints goes to standard error."""
        # In a session of its own, or it would get a terminal's Ctrl-C twice, and not save.
        words = [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid()), *arguments]
        self._process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=2, start_new_session=True
        )
        if self.stop.received is not None:
            self._pass_on(self.stop.received)
        return self._process.wait()

    def _pass_on(self, number: Signals) -> None:
        with suppress(ProcessLookupError):
            if self._process is not None:
                self._process.send_signal(number)
