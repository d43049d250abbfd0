"""The cases of a benchmark: first all are checked, then each is measured on its ranks.

Each number of ranks and of threads is a job of processes of its own, of which nothing is left when
the next begins; the command itself uses no GPU or threads.
"""

import gc
import itertools
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

from simtrain.benchmark.figures import Case, Figure, figures_of
from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.env.model import check_task
from simtrain.errors import ConfigError
from simtrain.launch import GpuIds
from simtrain.launch.hosts import HostGpus
from simtrain.launch.launcher import launch_ranks
from simtrain.launch.plan import Devices, Job, find_gpus, resolve_devices
from simtrain.launch.processes import StopSignals
from simtrain.launch.rank import Rank
from simtrain.sim import EngineName, choose_engine


@dataclass(frozen=True)
class Settings:
    """How the cases of a benchmark are measured; n ranks take the first n devices."""

    devices: Devices
    repetitions: int
    cuda_graphs: bool
    tf32: bool = True


Measured = tuple[tuple[Figure, ...], str]
"""The figures of a job of ranks, and the model of the device of rank 0."""


def choose_devices(gpu_ids: GpuIds, ranks: int) -> Devices:
    """The devices that ``--gpu-ids`` names, ``auto`` all GPUs or the CPU; at least `ranks`."""
    gpus = HostGpus(None, ()) if gpu_ids is None else find_gpus()
    if gpu_ids == "auto":
        gpu_ids = "all" if gpus.uuids else None
    devices = resolve_devices(gpu_ids, 1, gpus)
    if devices.kind == "cuda" and devices.ranks < ranks:
        raise ConfigError(
            f"--ranks {ranks} needs as many GPUs, and there are {devices.ranks} "
            "(--gpu-ids); --gpu-ids None measures on the CPU"
        )
    return devices


def all_cases(
    tasks: Iterable[str],
    engines: Iterable[EngineName | Literal["auto"]],
    kind: Literal["cuda", "cpu"],
    ranks: Iterable[int],
    num_envs: Iterable[int],
    threads: Iterable[int],
) -> list[Case]:
    """Every combination once, in the order given; ConfigError for one that cannot be trained.

    Without `num_envs`, a task has its own number where physics runs.
    """
    names, sizes = [choose_engine(engine, kind).name for engine in engines], list(num_envs)
    every: dict[Case, None] = {}
    for task, name in itertools.product(tasks, names):
        cfg, on_gpu = default_config(task).env, (name, kind) == ("warp", "cuda")
        own = TrainConfig.of_task(task, cfg, on_gpu=on_gpu).num_envs
        combinations = itertools.product([task], [name], [kind], ranks, sizes or [own], threads)
        every |= dict.fromkeys(itertools.starmap(Case, combinations))
    cases = list(every)
    configs = [case_config(case) for case in cases]
    for config in configs:
        config.check()
    for config in {config.task: config for config in configs}.values():
        check_task(config.env)
    return cases


def case_config(case: Case) -> TrainConfig:
    """The configuration that a case is trained with."""
    return replace(default_config(case.task), num_envs=case.num_envs, engine=case.engine)


def measure_cases(
    cases: Sequence[Case], settings: Settings, say: Callable[[object], None], stop: StopSignals
) -> Measured | None:
    """Measure all cases, printing lines by `say`; None if a signal ended that."""
    figures: tuple[Figure, ...] = ()
    name = ""
    for ranks, threads in dict.fromkeys((case.ranks, case.threads) for case in cases):
        some = [case for case in cases if (case.ranks, case.threads) == (ranks, threads)]
        devices = (settings.devices.first(ranks),)
        job = Job(("localhost",), devices, threads=threads, grace_seconds=10.0)
        given = job, measure_rank, some, settings
        measured = launch_ranks(*given, receive=say, stop=stop, log_dir="")
        if measured is None or stop():
            return None
        figures, name = figures + measured[0], measured[1]
    return figures, name


def measure_rank(
    rank: Rank,
    show: Callable[[object], None],
    stop: Callable[[], bool],
    cases: Sequence[Case],
    settings: Settings,
) -> Measured | None:
    """Measure cases as one rank of a job; None if it was told to stop."""
    from simtrain.benchmark.layers import Clock, StoppedError, device_name, measure_layers
    from simtrain.env.randomness import seed_everything
    from simtrain.launch.phase_timer import make_timer
    from simtrain.training.worker import make_trainer, out_of_memory_as_config_error

    rank.progress.iteration = 1  # all ranks work together, so one that hangs is found
    say = show if rank.is_main else lambda message: None
    figures: list[Figure] = []
    for case in cases:
        say(f"measuring {case}")
        config = case_config(case)
        config.cuda_graphs, config.tf32 = settings.cuda_graphs, settings.tf32
        seed_everything(rank.seed)
        with (
            out_of_memory_as_config_error(case.num_envs),
            closing(make_trainer(config, rank, make_timer(rank.device), say)) as trainer,
        ):
            try:
                seconds = measure_layers(trainer, settings.repetitions, Clock(rank, stop), say)
            except StoppedError:
                return None
        steps = case.ranks * case.num_envs * config.num_steps_per_env
        figures += figures_of(case, steps, seconds)
        del trainer
        gc.collect()  # it is gone before the next is built
    return tuple(figures), device_name(rank.device)
