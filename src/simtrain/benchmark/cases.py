"""Which cases a benchmark measures, on which devices; checked before anything is measured."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

from simtrain.benchmark.figures import Case
from simtrain.errors import ConfigError
from simtrain.launch.hosts import HostGpus
from simtrain.launch.plan import Devices, GpuIds, find_gpus, resolve_devices
from simtrain.sim import EngineName, choose_engine


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
) -> list[Case]:
    """Every combination once, in the order given."""
    names = [choose_engine(engine, kind).name for engine in engines]
    combinations = itertools.product(tasks, names, [kind], ranks, num_envs)
    return list(dict.fromkeys(itertools.starmap(Case, combinations)))


def check_cases(cases: Sequence[Case]) -> None:
    """Raise ConfigError if there is no such task, or it cannot be trained like that."""
    from simtrain.benchmark.ranks import case_config

    configs = [case_config(case) for case in cases]
    for config in configs:
        config.check()

    from simtrain.env.model import check_task

    for config in {config.task: config for config in configs}.values():
        check_task(config.env)
