"""``uv run benchmark TASK --until CONDITION [flags]``: how soon a task is learned, over seeds."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain.cli.exits import DONE, FAILED
from simtrain.cli.output import table_console, write_file
from simtrain.cli.parse import parse_flags
from simtrain.cli.train import prepare_job
from simtrain.config.tasks import discover
from simtrain.errors import ConfigError
from simtrain.limits import check_bounds
from simtrain.run.directory import check_file, versions

if TYPE_CHECKING:
    from simtrain.benchmark.until import SeedResult, UntilResults
    from simtrain.config.train import TrainConfig
    from simtrain.launch.plan import Job

_SEEDS, _EPISODES, _EVALUATIONS = 3, 100, 50
_SAVING_SECONDS = 10.0  # beyond the grace that a training has


@dataclass
class MeasuringFlags:
    """Flags of every benchmark, and those of --until, which takes the flags of `train` besides."""

    until: str | None = None
    """Train a task until an evaluation fulfils this, e.g. "lin_vel_error<0.1 and fell<0.02", and
    show what that took; takes --seeds, --json, --compare, --tolerance and all flags of train."""
    seeds: int | None = None
    """How many trainings of --until, one after the other, from --seed on; None for 3."""
    json: Path = Path("benchmark.json")
    """File for the results; a picture of them goes beside it, as .png."""
    compare: Path | None = None
    """Results of an earlier benchmark to compare with."""
    tolerance: float = 0.1
    """By what fraction a figure may fall below that of --compare before the command fails; with
    --until, by what fraction a median may exceed it."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot be."""
        check_bounds(self)
        if self.seeds is not None and self.until is None:
            raise ConfigError(f"--seeds {self.seeds} needs --until, a condition that ends training")
        if self.json.suffix == ".png":
            raise ConfigError(f"--json {self.json} would be overwritten by the picture")
        check_file(self.json, "--json")
        check_file(self.json.with_suffix(".png"), "--json")
        if self.compare is not None and self.compare.resolve() == self.json.resolve():
            text = "would be overwritten; name another file with --json"
            raise ConfigError(f"--compare {self.compare} {text}")


def split_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags of `benchmark --until` with their values, and those of its trainings."""
    names = {f"--{field.name}" for field in fields(MeasuringFlags)}
    own: list[str] = []
    rest: list[str] = []
    takes_value = False
    for word in words:
        mine = takes_value or word.partition("=")[0] in names
        (own if mine else rest).append(word)
        takes_value = word in names and not takes_value
    return own, rest


def measure_until(tasks: Sequence[Path], own: Sequence[str], words: Sequence[str]) -> int:
    """Train every seed, and print, write and compare; the exit code. See `split_flags`."""
    flags = parse_flags("benchmark <task>", MeasuringFlags(), own)
    flags.check()
    if len(tasks) != 1:
        raise ConfigError(f"--until needs one task, whose metrics it names; here are {len(tasks)}")
    condition, given, words = str(flags.until), words, list(words)
    config, job = _configure(str(tasks[0]), condition, words)

    from simtrain.benchmark.until import UntilResults, as_json, compare, read_until, table
    from simtrain.plot.until import draw
    from simtrain.training.features.conditions import stop_condition

    name = str(stop_condition(config))
    before = None if flags.compare is None else read_until(flags.compare)
    if before is not None and (before.task, before.condition) != (config.task, name):
        text = f"is of {before.task} until {before.condition}; this is of {config.task} until"
        raise ConfigError(f"--compare {flags.compare} {text} {name}")
    base = config.run_name or flags.json.stem
    # The ranks of one training have seeds that follow each other.
    seeds = [config.seed + i * job.world_size for i in range(flags.seeds or _SEEDS)]
    configs = [replace(config, seed=seed, run_name=f"{base}_seed-{seed}") for seed in seeds]
    configs[-1].check()
    found = _train_all(configs, job, words)
    if isinstance(found, int):
        return found
    command = ["benchmark", config.task, "--until", condition, "--seeds", str(len(seeds)), *given]
    results = UntilResults(config.task, name, job.members, found, _about(config, job, command))
    ratios = {} if before is None else compare(results, before)
    table_console().print(table(results, ratios))
    picture = flags.json.with_suffix(".png")
    write_file(flags.json, as_json(results).encode())
    write_file(picture, draw(results))
    print(f"results: {flags.json}\npicture: {picture}")
    return DONE if before is None else _verdict(before, results, ratios, flags)


def _configure(task: str, condition: str, words: list[str]) -> tuple[TrainConfig, Job]:
    """The configuration of the trainings and their job; adds defaults to their flags, in place."""
    given = {word.partition("=")[0] for word in words}
    if "--resume" in given:
        raise ConfigError("--resume does not go with --until: the same command again goes on")
    words[:0] = ["--eval-episodes", str(_EPISODES)]
    evaluates = not given & {"--eval-interval", "--population"}
    if evaluates:
        words[:0] = ["--eval-interval", "1"]
    words += ["--until", condition]
    config, job, _, _ = prepare_job(discover().find(task), words)
    if evaluates:
        config.eval_interval = max(1, _iterations(config, job) // _EVALUATIONS)
        words[1] = str(config.eval_interval)
    return config, job


def _train_all(
    configs: Sequence[TrainConfig], job: Job, words: Sequence[str]
) -> tuple[SeedResult, ...] | int:
    """Train what is not trained yet; the results, or the exit code if a training did not end."""
    from simtrain.benchmark.until_runs import TrainingProcess, find_run, read_seed
    from simtrain.training.features.conditions import stop_condition
    from simtrain.training.resumption import can_resume
    from simtrain.training.stopping import exit_code

    condition = stop_condition(configs[0])
    assert condition is not None
    runs = [find_run(config) for config in configs]
    seeds: list[SeedResult] = []
    with TrainingProcess(configs[0].grace_seconds + _SAVING_SECONDS) as train:
        for i, (config, run) in enumerate(zip(configs, runs, strict=True)):
            title = f"seed {config.seed} ({i + 1} of {len(configs)})"
            iterations = _iterations(config, job)
            if run is not None:
                result, is_over = read_seed(run, condition, iterations)
                if result is not None and is_over:
                    commit = f", at commit {result.commit}" if result.commit else ""
                    _say(f"{title}: trained before, in {result.run}{commit}")
                    seeds.append(result)
                    continue
            own = ["--seed", str(config.seed), "--run-name", config.run_name]
            if run is not None and can_resume(run):
                own += ["--resume", str(run)]
            _say(f"{title}: {'going on' if '--resume' in own else 'training'}")
            code = train([config.task, *words, *own])
            if train.stop() or code != DONE:
                _say("stopped; the same command goes on" if train.stop() else f"{title} failed")
                received = train.stop.received
                return code if received is None else exit_code(received)
            trained = find_run(config)
            result = None if trained is None else read_seed(trained, condition, iterations)[0]
            if result is None:
                raise ConfigError(f"{title}: there is no evaluation within {iterations} iterations")
            seeds.append(result)
    return tuple(seeds)


def _iterations(config: TrainConfig, job: Job) -> int:
    return config.iterations(job.world_size // job.members)


def about_machine(device_name: str, threads: int) -> dict[str, Any]:
    """When and on which machine a benchmark was made, with which versions."""
    cores, each = len(os.sched_getaffinity(0)), f"{threads} thread{'s' if threads > 1 else ''}"
    machine = {"device": device_name, "cores": f"{cores} cores", "threads": f"{each} a rank"}
    date = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"date": date, "machine": machine, "versions": versions()}


def _about(config: TrainConfig, job: Job, command: Sequence[str]) -> dict[str, Any]:
    import torch

    from simtrain.benchmark.layers import device_name
    from simtrain.launch.rank import share_of_cores

    devices = job.devices[0]
    threads = job.threads or share_of_cores(devices.ranks)
    return {
        "command": shlex.join(command),
        **about_machine(device_name(torch.device(devices.kind)), threads),
        "ranks": str(job),
        "iterations": _iterations(config, job),
        "eval_interval": config.eval_interval or config.population_interval,
        "eval_episodes": config.eval_episodes,
    }


def _verdict(
    before: UntilResults, now: UntilResults, ratios: dict[str, float], flags: MeasuringFlags
) -> int:
    """The exit code of comparing: a cost that grew by more than the tolerance is a failure."""
    from simtrain.benchmark.until import COSTS

    names = ("machine", "ranks", "eval_interval", "eval_episodes")
    warn_of_differences(flags.compare, before.about, now.about, names)
    lost = {what: ratio for what, ratio in ratios.items() if ratio > 1.0 + flags.tolerance}
    for what, ratio in lost.items():
        print(f"slower: {COSTS[what]} of {now.task}: {ratio:.3f} of before", file=sys.stderr)
    if lost:
        return FAILED
    print(f"no median grew by more than {100.0 * flags.tolerance:g} % (--tolerance)")
    return DONE


def warn_of_differences(
    path: Path | None, before: dict[str, Any], now: dict[str, Any], names: Sequence[str]
) -> None:
    """Warn if an earlier benchmark was made on another machine, with other settings or versions."""
    found = [
        f"has another {name}: {before.get(name)}, now {now[name]}"
        for name in names
        if before.get(name) != now[name]
    ]
    old = before.get("versions", {})
    found += [
        f"was measured with {package} {old[package]}, now {version}"
        for package, version in now["versions"].items()
        if old.get(package, version) != version
    ]
    for difference in found:
        print(f"warning: {path} {difference}", file=sys.stderr)


def _say(text: str) -> None:
    """To standard error: standard output has the results alone."""
    print(text, file=sys.stderr, flush=True)
