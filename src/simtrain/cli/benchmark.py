"""``uv run simtrain benchmark [TASK...] [flags]``: how fast training is on this machine.

Layer by layer or, with ``--until CONDITION``, how soon a task is learned.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from simtrain.algorithms.cfg import Flag
from simtrain.api import EngineFlag
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.terminal import DONE, FAILED, table_console, write_file
from simtrain.cli.train import prepare_training
from simtrain.config.tasks import discover
from simtrain.errors import ConfigError
from simtrain.launch import GpuIds
from simtrain.limits import Limits, Repetitions
from simtrain.run.directory import check_file

if TYPE_CHECKING:
    from simtrain.benchmark.figures import Results
    from simtrain.benchmark.until import UntilResults

TASKS = ("cartpole-balance", "go1-velocity-flat")  # measured if none is named
_GRACE_SECONDS = 20.0
_SEEDS, _EPISODES, _EVALUATIONS = 3, 100, 50  # of --until
_OF_UNTIL = ("--until", "--seeds", "--json", "--compare", "--tolerance")
"""Flags that go with --until; the others are then those of `train`."""


@dataclass
class BenchmarkFlags:
    """Measure bare physics, env step, rollout, update and training end to end, on this machine.

    Each layer is shown as environment steps per second and as a fraction of bare physics, for every
    combination of tasks, engines, ranks, threads and environments. The default tasks are
    cartpole-balance and go1-velocity-flat. With --until, the training time of one task is measured
    over several seeds.
    """

    until: str | None = None
    """Train a task until this condition is true, e.g. "lin_vel_error<0.1 and failure_rate<0.02",
    and show the steps and the time; accepts --seeds, --json, --compare, --tolerance and all flags
    of train."""
    seeds: Annotated[int, Limits(1, 1000)] | None = None
    """Number of trainings of --until, one after the other, from --seed on; None for 3."""
    json: Path = Path("benchmark.json")
    """File for the results; a picture with the same name and .png is written, too."""
    compare: Path | None = None
    """Results of an earlier benchmark to compare with."""
    tolerance: Annotated[float, Limits(0.0, 0.999)] = 0.1
    """Allowed fraction by which a figure may be below that of --compare, without an error; with
    --until, by which a median may be above it."""
    num_envs: Annotated[tuple[int, ...], Limits(1, 2**24)] = ()
    """Environments of each rank; by default, the number of the task."""
    ranks: Annotated[tuple[int, ...], Limits(1, 1024, required=True)] = (1,)
    """Ranks; several numbers show weak scaling."""
    engine: Annotated[tuple[EngineFlag, ...], Limits(required=True)] = ("auto",)
    """Physics engines; auto takes warp on GPUs and mujoco on the CPU."""
    gpu_ids: GpuIds = "auto"
    """GPUs for the ranks; N ranks use the first N. None is the CPU, auto all visible GPUs or, if
    there is none, the CPU."""
    cpu_threads: Annotated[tuple[int, ...], Limits(1, 4096)] = ()
    """Threads of each rank; several numbers show the speed-up and the serial part. By default, the
    cores are divided among the largest number of ranks."""
    cuda_graphs: Flag = True
    """Use CUDA graphs, as in train."""
    tf32: Flag = True
    """Multiply matrices in TF32 on GPUs, as in train."""
    repetitions: Repetitions = 5
    """Number of measurements of each layer after warming up; the median counts."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot be."""
        if self.seeds is not None and self.until is None:
            raise ConfigError(f"--seeds {self.seeds} needs --until, a condition that ends training")
        if self.json.suffix == ".png":
            raise ConfigError(f"--json {self.json} would be overwritten by the picture")
        check_file(self.json, "--json")
        check_file(self.json.with_suffix(".png"), "--json")
        if self.compare is not None and self.compare.resolve() == self.json.resolve():
            text = "would be overwritten; name another file with --json"
            raise ConfigError(f"--compare {self.compare} {text}")


def benchmark(arguments: Sequence[str]) -> int:
    """Parse the command line, measure, and print, write and compare; the exit code."""
    paths, words = split_paths(arguments)
    tasks = list(map(str, paths))
    own, of_training = split_flags(words)
    is_until = any(word.partition("=")[0] == "--until" for word in own)
    prog = "simtrain benchmark <task>" if is_until else "simtrain benchmark [task...]"
    flags = parse_flags(prog, BenchmarkFlags(), own if is_until else words)
    flags.check()
    if is_until:
        return _measure_until(tasks, flags, of_training)
    return _measure_layers(tasks or TASKS, flags)


def split_flags(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The flags of `benchmark --until` with their values, and those of its trainings."""
    own: list[str] = []
    rest: list[str] = []
    is_value = False
    for word in words:
        is_own = is_value or word.partition("=")[0] in _OF_UNTIL
        (own if is_own else rest).append(word)
        is_value = word in _OF_UNTIL and not is_value
    return own, rest


def _measure_layers(tasks: Sequence[str], flags: BenchmarkFlags) -> int:
    # Only now, so that help does not wait for what they import.
    from simtrain.benchmark.figures import Results, about_machine, read_results
    from simtrain.benchmark.pictures import draw_layers
    from simtrain.benchmark.ranks import Settings, all_cases, choose_devices, measure_cases
    from simtrain.launch.launcher import exit_with_ranks
    from simtrain.launch.processes import StopSignals, exit_code
    from simtrain.launch.rank import share_of_cores

    before = None if flags.compare is None else read_results(flags.compare)
    devices = choose_devices(flags.gpu_ids, max(flags.ranks))
    threads = flags.cpu_threads or (share_of_cores(max(flags.ranks)),)
    sizes = flags.ranks, flags.num_envs, threads
    cases = all_cases(tasks, flags.engine, devices.kind, *sizes)
    if before is not None:
        measured_before = dict.fromkeys(figure.case for figure in before.figures)
        if measured_before.keys().isdisjoint(cases):
            text = "has nothing that this benchmark measures; it has"
            known = "; ".join(map(str, measured_before))
            raise ConfigError(f"--compare {flags.compare} {text} {known}")
    settings = Settings(devices, flags.repetitions, flags.cuda_graphs, flags.tf32)

    def end(number: Signals) -> NoReturn:
        exit_with_ranks(exit_code(number))

    stop_signals = StopSignals(
        _GRACE_SECONDS,
        on_signal=lambda n: print(
            f"{n.name}: stopping; Ctrl-C again stops at once", file=sys.stderr
        ),
        on_expiry=end,
        on_second_interrupt=lambda: end(Signals.SIGINT),
    )
    with redirect_stdout(sys.stderr), stop_signals as stop:  # it has the results alone
        measured = measure_cases(cases, settings, stop)
    if measured is None or stop.received is not None:
        return exit_code(stop.received)
    figures, device_name = measured
    about = about_machine(device_name, *threads)
    about["repetitions"] = flags.repetitions
    about["cuda_graphs"] = flags.cuda_graphs and devices.kind == "cuda"
    about["tf32"] = flags.tf32 and devices.kind == "cuda"
    results = Results(figures, about)
    return _show(results, before, flags, draw_layers(results))


def _measure_until(tasks: Sequence[str], flags: BenchmarkFlags, words: Sequence[str]) -> int:
    """Train every seed until the condition holds; `words` are the flags of `train`."""
    if len(tasks) != 1:
        raise ConfigError(f"--until needs one task, whose metrics it names; here are {len(tasks)}")
    given = {word.partition("=")[0] for word in words}
    if "--resume" in given:
        raise ConfigError("--resume does not go with --until: the same command again goes on")
    chooses_interval = bool(given & {"--eval-interval", "--population"})
    defaults = ["--eval-episodes", str(_EPISODES)]
    defaults += [] if chooses_interval else ["--eval-interval", "1"]
    arguments = [*defaults, *words, "--until", str(flags.until)]
    config, job, model, _ = prepare_training(discover().find(tasks[0]), arguments)
    iterations = config.iterations(job.world_size // job.members)
    if not chooses_interval:
        config.eval_interval = max(1, iterations // _EVALUATIONS)

    import torch

    from simtrain.benchmark.figures import about_machine
    from simtrain.benchmark.pictures import draw_until
    from simtrain.benchmark.ranks import device_name
    from simtrain.benchmark.until import UntilResults, read_until, train_seeds
    from simtrain.launch.rank import share_of_cores
    from simtrain.training.features.conditions import stop_condition

    condition = str(stop_condition(config))
    before = None if flags.compare is None else read_until(flags.compare)
    if before is not None and (before.task, before.condition) != (config.task, condition):
        text = f"is of {before.task} until {before.condition}; this is of {config.task} until"
        raise ConfigError(f"--compare {flags.compare} {text} {condition}")
    name = config.run_name or flags.json.stem
    # The ranks of one training have seeds that follow each other.
    seeds = [config.seed + i * job.world_size for i in range(flags.seeds or _SEEDS)]
    configs = [replace(config, seed=seed, run_name=f"{name}_seed-{seed}") for seed in seeds]
    configs[-1].check()

    with redirect_stdout(sys.stderr):  # standard output has the results alone
        trained = train_seeds(configs, job, model, iterations)
    if isinstance(trained, int):
        return trained
    until = ["--until", str(flags.until), "--seeds", str(len(seeds))]
    devices = job.devices[0]
    device = device_name(torch.device(devices.kind))
    about = {
        "command": shlex.join(["benchmark", config.task, *until, *words]),
        **about_machine(device, job.threads or share_of_cores(devices.ranks)),
        "ranks": str(job),
        "iterations": iterations,
        "eval_interval": config.eval_interval or config.population_interval,
        "eval_episodes": config.eval_episodes,
    }
    results = UntilResults(config.task, condition, job.members, trained, about)
    return _show(results, before, flags, draw_until(results))


def _show(results: Results | UntilResults, before: Any, flags: BenchmarkFlags, figure: Any) -> int:
    """Print the results, write them and their picture, and compare them; the exit code."""
    from simtrain.benchmark.figures import differences
    from simtrain.plot.panels import as_file

    console = table_console()
    for table in results.tables(before, flags.tolerance):
        console.print(table)
        console.print()
    picture = flags.json.with_suffix(".png")
    write_file(flags.json, results.as_json().encode())
    write_file(picture, as_file(figure))
    print(f"results: {flags.json}\npicture: {picture}")
    if before is None:
        return DONE
    for difference in differences(before.about, results.about, results.SETTINGS):
        print(f"warning: {flags.compare} {difference}", file=sys.stderr)
    slower = results.slower(before, flags.tolerance)
    for line in slower:
        print(f"slower: {line}", file=sys.stderr)
    if slower:
        return FAILED
    print(f"{results.UNCHANGED} by more than {100.0 * flags.tolerance:g} % (--tolerance)")
    return DONE
