"""A training job before it runs: its hosts, and the devices of its ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass

from simtrain.config import TrainConfig
from simtrain.errors import ConfigError
from simtrain.launch.devices import Devices, resolve_devices, resolve_evaluator
from simtrain.launch.hosts import check_own_name, hosts_of_slurm, probe_hosts


@dataclass(frozen=True)
class Job:
    """Which ranks there are and where they run."""

    hosts: tuple[str, ...]
    """Names of the hosts; the first has rank 0."""
    devices: tuple[Devices, ...]
    """Devices of each host."""
    seed: int
    """Seed of rank 0; each rank adds its number."""
    threads: int | None
    """Threads of each rank; None shares the cores of a host among its ranks."""
    collective_timeout: float
    """Seconds that the first collective may take."""
    grace_seconds: float
    """Seconds that the ranks have to end once they are told to stop."""
    ssh_config: str | None
    """File with SSH settings of the hosts; None for the user's."""
    in_process: bool
    """Whether the only rank runs in the process of the command."""
    evaluator: Devices | None
    """What the process that evaluates beside training runs on, on the first host; None if there is
    none."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(devices.ranks for devices in self.devices)

    def rank_names(self) -> list[str]:
        """What each rank runs on; with the host's name if there are several."""
        return [
            devices.device(i) if len(self.hosts) == 1 else f"{host} {devices.device(i)}"
            for host, devices in zip(self.hosts, self.devices, strict=True)
            for i in range(devices.ranks)
        ]

    def __str__(self) -> str:
        names = self.rank_names()
        return f"{len(names)} rank{'s' if len(names) > 1 else ''} on {', '.join(names)}"


def plan_job(config: TrainConfig) -> Job:
    """Find out where the ranks of a run will be; hosts are asked for their GPUs.

    Raises:
        ConfigError: there is no such GPU, or a host cannot be reached; says which and why.
    """
    hosts = config.hosts
    if hosts == ("slurm",):
        hosts = hosts_of_slurm()
    if hosts:
        found = probe_hosts(hosts, config.ssh_config, count_gpus=_may_use_gpus(config))
    else:
        # torch is imported only if a GPU may be asked for.
        hosts = ("localhost",)
        found = [(os.environ.get("CUDA_VISIBLE_DEVICES"), _gpu_count(config))]
    devices = tuple(
        _devices_of(f"host {host}: " if config.hosts else "", config, visible, count)
        for host, (visible, count) in zip(hosts, found, strict=True)
    )
    for host, other in zip(hosts, devices, strict=True):
        if other.kind != devices[0].kind:
            without = host if other.kind == "cpu" else hosts[0]
            raise ConfigError(
                f"host {without} has no GPU and others have; name hosts of one kind, "
                "or train on the CPU of all with --gpu-ids None"
            )
    # A rank that may be started again has a process of its own to lose.
    in_process = not config.hosts and devices[0].ranks == 1 and config.max_restarts == 0
    if not in_process:
        check_own_name()
    return Job(
        hosts=hosts,
        devices=devices,
        seed=config.seed,
        threads=config.cpu_threads,
        collective_timeout=config.collective_timeout,
        grace_seconds=config.grace_seconds,
        ssh_config=config.ssh_config,
        in_process=in_process,
        evaluator=resolve_evaluator(config.eval_device, *found[0]),
    )


def _may_use_gpus(config: TrainConfig) -> bool:
    return config.gpu_ids is not None or config.eval_device not in (None, "cpu")


def _devices_of(host: str, config: TrainConfig, visible: str | None, gpu_count: int) -> Devices:
    try:
        return resolve_devices(config.gpu_ids, config.cpu_workers, visible, gpu_count)
    except ConfigError as error:
        raise ConfigError(f"{host}{error}") from error


def _gpu_count(config: TrainConfig) -> int:
    if not _may_use_gpus(config):
        return 0
    import torch

    return torch.cuda.device_count()
