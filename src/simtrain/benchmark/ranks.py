"""A benchmark's cases on their ranks: each number of ranks is a job of processes of its own.

Nothing is left of one job when the next begins; the command itself uses no GPU or threads.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from simtrain.benchmark.figures import Case, Figure, figures_of
from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.launch.launcher import launch_ranks
from simtrain.launch.plan import Devices, Job
from simtrain.launch.processes import StopSignals
from simtrain.launch.rank import Rank


@dataclass(frozen=True)
class Settings:
    """How the cases of a benchmark are measured; n ranks take the first n devices."""

    devices: Devices
    threads: int  # of each rank, on the CPU
    repetitions: int
    cuda_graphs: bool


@dataclass(frozen=True)
class Measured:
    """The figures of a job of ranks, and the model of the device of rank 0."""

    figures: tuple[Figure, ...]
    device_name: str


def case_config(case: Case) -> TrainConfig:
    """The configuration that a case is trained with."""
    config = default_config(case.task)
    config.num_envs, config.engine = case.num_envs, case.engine
    return config


def measure_cases(
    cases: Sequence[Case], settings: Settings, say: Callable[[object], None], stop: StopSignals
) -> Measured | None:
    """Measure all cases, printing lines by `say`; None if a signal ended that."""
    figures: tuple[Figure, ...] = ()
    name = ""
    for ranks in dict.fromkeys(case.ranks for case in cases):
        some = [case for case in cases if case.ranks == ranks]
        visible = ",".join(settings.devices.visible.split(",")[:ranks])
        devices = Devices(settings.devices.kind, ranks, visible)
        job = Job(("localhost",), (devices,), threads=settings.threads, grace_seconds=10.0)
        measured = launch_ranks(
            job, measure_rank, some, settings, receive=say, stop=stop, log_dir=""
        )
        if measured is None or stop():
            return None
        figures += measured.figures
        name = measured.device_name
    return Measured(figures, name)


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
    from simtrain.training.gpu import out_of_memory_as_config_error
    from simtrain.training.worker import make_trainer

    say = show if rank.is_main else lambda message: None
    figures: list[Figure] = []
    for case in cases:
        say(f"measuring {case}")
        config = case_config(case)
        config.cuda_graphs = settings.cuda_graphs
        seed_everything(rank.seed)
        with (
            out_of_memory_as_config_error(case.num_envs, rank.device),
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
    return Measured(tuple(figures), device_name(rank.device))
