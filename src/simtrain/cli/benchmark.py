"""``uv run benchmark [TASK...] [flags]``: how fast training is on this machine, layer by layer."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from simtrain.cli.exits import DONE, FAILED, end_at_once_on_signals, run_command
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.config import Flag
from simtrain.errors import ConfigError
from simtrain.launch.spinning import limit_spinning

if TYPE_CHECKING:
    from simtrain.benchmark.figures import Case, Results
    from simtrain.launch.devices import Devices

TASKS = ("cartpole-balance", "go1-velocity-flat")
"""What is measured if no task is named."""
_MOST_RANKS = 1024
_GRACE_SECONDS = 20.0


@dataclass
class BenchmarkFlags:
    """Measure bare physics, env step, rollout, update and training end to end, on this machine.

    Each as environment steps a second and as a fraction of bare physics, for every combination of
    tasks, engines, ranks and environments. Without tasks: cartpole-balance and go1-velocity-flat.
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
    json: Path = Path("benchmark.json")
    """File for the results; a picture of them goes beside it, as .png."""
    compare: Path | None = None
    """Results of an earlier benchmark to compare with."""
    tolerance: float = 0.1
    """By what fraction a figure may fall below that of --compare before the command fails."""

    @property
    def picture(self) -> Path:
        """Where the picture goes."""
        return self.json.with_suffix(".png")

    def check(self) -> None:
        """Raise ConfigError for values that cannot be."""
        for name in ("num_envs", "ranks", "engine"):
            if not getattr(self, name):
                raise ConfigError(f"--{name.replace('_', '-')} needs one or more values")
        for flag, values in (
            ("--num-envs", self.num_envs),
            ("--ranks", self.ranks),
            ("--repetitions", (self.repetitions,)),
            ("--cpu-threads", () if self.cpu_threads is None else (self.cpu_threads,)),
        ):
            if min(values, default=1) < 1:
                raise ConfigError(f"{flag} is {min(values)}; it must be 1 or more")
        if max(self.ranks) > _MOST_RANKS:
            raise ConfigError(f"--ranks is {max(self.ranks)}; it must be {_MOST_RANKS} or less")
        if not 0.0 <= self.tolerance < 1.0:
            raise ConfigError(
                f"--tolerance is {self.tolerance}; it must be a fraction, 0 or more and below 1"
            )
        if self.json.suffix == ".png":
            raise ConfigError(f"--json {self.json} would be overwritten by the picture")
        for path in (self.json, self.picture):
            _check_writable(path)
        if self.compare is not None and self.compare.resolve() == self.json.resolve():
            raise ConfigError(
                f"--compare {self.compare} would be overwritten; name another file with --json"
            )


def main() -> None:
    """Entry point of the ``benchmark`` command."""
    end_at_once_on_signals()
    limit_spinning()
    run_command(lambda: benchmark(sys.argv[1:]))


def benchmark(arguments: Sequence[str]) -> int:
    """Parse the command line, measure, and print, write and compare; the exit code."""
    # Not above, so that from the first tenth of a second on Ctrl-C ends without a traceback.
    from simtrain.benchmark.figures import Results, as_json, compare, fallen, read_results

    words, rest = split_paths(arguments)
    flags = parse_flags("benchmark [task...]", BenchmarkFlags(), rest)
    flags.check()
    before = None if flags.compare is None else read_results(flags.compare)
    devices = _choose_devices(flags)
    cases = _cases([str(word) for word in words] or list(TASKS), flags, devices)
    if before is not None and not {case for case, _ in _keys(before)} & set(cases):
        raise ConfigError(
            f"--compare {flags.compare} has nothing that this benchmark measures; it has "
            + "; ".join(str(case) for case in before.by_case())
        )
    _check_cases(cases)

    measured = _measure(cases, flags, devices)
    if isinstance(measured, int):
        return measured
    results = Results(measured[0], _about(measured[1], flags, devices))
    changes = [] if before is None else compare(results, before)
    _print(results, changes, flags)
    _write(flags.json, as_json(results).encode())

    from simtrain.benchmark.plot import draw

    _write(flags.picture, draw(results))
    print(f"results: {flags.json}\npicture: {flags.picture}")
    if before is not None:
        _tell_differences(before, results, flags)
        lost = fallen(changes, flags.tolerance)
        for change in lost:
            print(f"slower: {change}", file=sys.stderr)
        if lost:
            return FAILED
        print(f"no figure fell by more than {100.0 * flags.tolerance:g} % (--tolerance)")
    return DONE


def _keys(results: Results) -> list[tuple[Case, str]]:
    return [(figure.case, figure.layer) for figure in results.figures]


def _choose_devices(flags: BenchmarkFlags) -> Devices:
    """Where ranks can be; ConfigError if there is no such GPU, or not enough for the ranks."""
    from simtrain.launch.devices import resolve_devices

    count = 0
    if flags.gpu_ids is not None:
        import torch

        count = torch.cuda.device_count()
    ids = flags.gpu_ids
    if ids == "auto":
        ids = "all" if count else None
    devices = resolve_devices(ids, 1, os.environ.get("CUDA_VISIBLE_DEVICES"), count)
    if devices.kind == "cuda" and devices.ranks < max(flags.ranks):
        raise ConfigError(
            f"--ranks {max(flags.ranks)} needs as many GPUs, and there are {devices.ranks} "
            "(--gpu-ids); --gpu-ids None measures on the CPU"
        )
    return devices


def _cases(tasks: list[str], flags: BenchmarkFlags, devices: Devices) -> list[Case]:
    """Every combination once, tasks in the order given."""
    from simtrain.benchmark.figures import Case

    auto: Literal["mujoco", "warp"] = "warp" if devices.kind == "cuda" else "mujoco"
    return list(
        dict.fromkeys(
            Case(task, auto if engine == "auto" else engine, devices.kind, ranks, num_envs)
            for task in tasks
            for engine in flags.engine
            for ranks in flags.ranks
            for num_envs in flags.num_envs
        )
    )


def _check_cases(cases: Sequence[Case]) -> None:
    """Raise ConfigError if there is no such task, or it cannot be trained like that."""
    from simtrain.benchmark.ranks import case_config

    configs = [case_config(case) for case in cases]
    for config in configs:
        config.check()

    from simtrain.env.model import check_task

    for config in {config.task: config for config in configs}.values():
        check_task(config.env)


def _measure(
    cases: Sequence[Case], flags: BenchmarkFlags, devices: Devices
) -> tuple[Any, str] | int:
    """The figures and the device's name, or the exit code if a signal ended it."""
    from simtrain.benchmark.ranks import measure_cases
    from simtrain.launch.launcher import end_launched_ranks
    from simtrain.launch.stop import StopSignals
    from simtrain.training.stopping import exit_code

    def end(number: Signals) -> NoReturn:
        end_launched_ranks()
        os._exit(exit_code(number))

    stop = StopSignals(
        _GRACE_SECONDS,
        on_signal=lambda number: _say(f"{number.name}: stopping; Ctrl-C again stops at once"),
        on_expiry=end,
        on_second_interrupt=lambda: end(Signals.SIGINT),
    )
    with stop:
        measured = measure_cases(
            cases,
            devices,
            _threads(flags),
            flags.repetitions,
            _say,
            stop,
            cuda_graphs=flags.cuda_graphs,
        )
    if measured is None or stop.received is not None:
        return DONE if stop.received is None else exit_code(stop.received)
    return measured.figures, measured.device_name


def _threads(flags: BenchmarkFlags) -> int:
    from simtrain.launch.rank import share_of_cores

    return flags.cpu_threads or share_of_cores(max(flags.ranks))


def _about(device_name: str, flags: BenchmarkFlags, devices: Devices) -> dict[str, Any]:
    from datetime import datetime

    from simtrain.run.directory import versions

    return {
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": {
            "device": device_name,
            "cores": f"{len(os.sched_getaffinity(0))} cores",
            "threads": f"{_threads(flags)} thread{'s' if _threads(flags) > 1 else ''} a rank",
        },
        "repetitions": flags.repetitions,
        "cuda_graphs": flags.cuda_graphs and devices.kind == "cuda",
        "versions": versions(),
    }


def _print(results: Results, changes: Sequence[Any], flags: BenchmarkFlags) -> None:
    from rich.console import Console

    from simtrain.benchmark.table import tables

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000  # a program reads it
    for table in tables(results, changes, flags.tolerance):
        console.print(table)
        console.print()


def _tell_differences(before: Results, now: Results, flags: BenchmarkFlags) -> None:
    """Warn if the earlier figures are not of this machine with these settings."""
    found = [
        f"has another {name}: {before.about.get(name)}, now {now.about[name]}"
        for name in ("machine", "repetitions", "cuda_graphs")
        if before.about.get(name) != now.about[name]
    ]
    old = before.about.get("versions", {})
    found += [
        f"was measured with {package} {old[package]}, now {version}"
        for package, version in now.about["versions"].items()
        if old.get(package, version) != version
    ]
    for difference in found:
        print(f"warning: {flags.compare} {difference}", file=sys.stderr)


def _write(path: Path, content: bytes) -> None:
    from simtrain.run.directory import written_whole

    try:
        with written_whole(path) as file:
            file.write(content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _check_writable(path: Path) -> None:
    if not path.parent.is_dir():
        raise ConfigError(f"--json {path} cannot be written: {path.parent} is not a folder")
    if path.is_dir():
        raise ConfigError(f"--json {path} cannot be written: it is a folder")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"--json {path} cannot be written: no permission for {path.parent}")


def _say(message: object) -> None:
    """Progress goes to standard error: standard output has the results alone."""
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
