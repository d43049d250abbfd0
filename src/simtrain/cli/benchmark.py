"""``uv run benchmark [TASK...] [flags]``: how fast training is on this machine, layer by layer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from signal import Signals
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from simtrain.algorithms.cfg import Flag
from simtrain.cli.exits import DONE, FAILED
from simtrain.cli.output import table_console, write_file
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.start import start
from simtrain.cli.until import (
    MeasuringFlags,
    about_machine,
    measure_until,
    split_flags,
    warn_of_differences,
)
from simtrain.errors import ConfigError

if TYPE_CHECKING:
    from simtrain.benchmark.figures import Case
    from simtrain.benchmark.ranks import Settings

TASKS = ("cartpole-balance", "go1-velocity-flat")  # measured if none is named
_GRACE_SECONDS = 20.0


@dataclass
class BenchmarkFlags(MeasuringFlags):
    """Measure bare physics, env step, rollout, update and training end to end, on this machine.

    Each as environment steps a second and as a fraction of bare physics, for every combination of
    tasks, engines, ranks and environments. Without tasks: cartpole-balance and go1-velocity-flat.
    With --until: how soon one task is learned, over several seeds.
    """

    num_envs: tuple[int, ...] = (256, 1024, 4096)
    """Environments of each rank."""
    ranks: tuple[int, ...] = (1,)
    """Ranks; several numbers show weak scaling."""
    engine: tuple[Literal["auto", "mujoco", "warp"], ...] = ("auto",)
    """Physics engines; auto takes warp on GPUs and mujoco on the CPU."""
    gpu_ids: tuple[int, ...] | Literal["auto", "all"] | None = "auto"
    """GPUs for the ranks, of which N ranks take the first N; None is the CPU, auto all visible
    GPUs or, if there is none, the CPU."""
    cpu_threads: int | None = None
    """Threads of each rank; None shares the cores among the most ranks that are asked for."""
    cuda_graphs: Flag = True
    """Train by CUDA graphs, as train does; see there."""
    repetitions: int = 5
    """How often each layer is measured after warming up; the median counts."""

    def check(self) -> None:
        """Raise ConfigError for values that cannot be."""
        for name in ("num_envs", "ranks", "engine"):
            if not getattr(self, name):
                raise ConfigError(f"--{name.replace('_', '-')} needs one or more values")
        super().check()


def benchmark(arguments: Sequence[str]) -> int:
    """Parse the command line, measure, and print, write and compare; the exit code."""
    words, rest = split_paths(arguments)
    own, of_training = split_flags(rest)
    if any(word.partition("=")[0] == "--until" for word in own):
        return measure_until(words, own, of_training)
    flags = parse_flags("benchmark [task...]", BenchmarkFlags(), rest)
    flags.check()

    # Only now, so that help does not wait for what they import.
    from simtrain.benchmark.cases import all_cases, check_cases, choose_devices
    from simtrain.benchmark.figures import Results, as_json, compare, fallen, read_results, tables
    from simtrain.benchmark.ranks import Settings
    from simtrain.launch.rank import share_of_cores
    from simtrain.plot.benchmark import draw

    before = None if flags.compare is None else read_results(flags.compare)
    devices = choose_devices(flags.gpu_ids, max(flags.ranks))
    tasks = [str(word) for word in words] or TASKS
    cases = all_cases(tasks, flags.engine, devices.kind, flags.ranks, flags.num_envs)
    if before is not None and not before.by_case().keys() & set(cases):
        there = "; ".join(str(case) for case in before.by_case())
        text = "has nothing that this benchmark measures; it has"
        raise ConfigError(f"--compare {flags.compare} {text} {there}")
    check_cases(cases)
    threads = flags.cpu_threads or share_of_cores(max(flags.ranks))
    settings = Settings(devices, threads, flags.repetitions, flags.cuda_graphs)
    measured = _measure(cases, settings)
    if isinstance(measured, int):
        return measured
    figures, device_name = measured
    results = Results(figures, _about(device_name, settings))
    changes = [] if before is None else compare(results, before)
    console = table_console()
    for table in tables(results, changes, flags.tolerance):
        console.print(table)
        console.print()
    picture = flags.json.with_suffix(".png")
    write_file(flags.json, as_json(results).encode())
    write_file(picture, draw(results))
    print(f"results: {flags.json}\npicture: {picture}")
    if before is not None:
        names = ("machine", "repetitions", "cuda_graphs")
        warn_of_differences(flags.compare, before.about, results.about, names)
        lost = fallen(changes, flags.tolerance)
        for change in lost:
            print(f"slower: {change}", file=sys.stderr)
        if lost:
            return FAILED
        print(f"no figure fell by more than {100.0 * flags.tolerance:g} % (--tolerance)")
    return DONE


def _measure(cases: Sequence[Case], settings: Settings) -> tuple[Any, str] | int:
    """The figures and the device's name, or the exit code if a signal ended it."""
    from simtrain.benchmark.ranks import measure_cases
    from simtrain.launch.launcher import end_launched_ranks
    from simtrain.launch.processes import StopSignals
    from simtrain.training.stopping import exit_code

    def end(number: Signals) -> NoReturn:
        end_launched_ranks()
        os._exit(exit_code(number))

    def announce(number: Signals) -> None:
        _print_progress(f"{number.name}: stopping; Ctrl-C again stops at once")

    interrupt = partial(end, Signals.SIGINT)
    with StopSignals(
        _GRACE_SECONDS, on_signal=announce, on_expiry=end, on_second_interrupt=interrupt
    ) as stop:
        measured = measure_cases(cases, settings, _print_progress, stop)
    if measured is None or stop.received is not None:
        return DONE if stop.received is None else exit_code(stop.received)
    return measured.figures, measured.device_name


def _about(device_name: str, settings: Settings) -> dict[str, Any]:
    return {
        **about_machine(device_name, settings.threads),
        "repetitions": settings.repetitions,
        "cuda_graphs": settings.cuda_graphs and settings.devices.kind == "cuda",
    }


def _print_progress(message: object) -> None:
    """To standard error: standard output has the results alone."""
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    start("benchmark")
