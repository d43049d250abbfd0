"""The plan of a job: its hosts and the devices of its ranks, from ``--gpu-ids`` to ``cuda:i``."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import torch

from simtrain.errors import ConfigError, config_errors_of
from simtrain.launch import GpuIds, LaunchFlags
from simtrain.launch.hosts import HostGpus, list_gpus, probe_hosts, visible_gpus
from simtrain.launch.rank import Rank, share_of_cores
from simtrain.launch.torchrunx_internals import slurm_hosts


@dataclass(frozen=True)
class Devices:
    """The devices of the ranks of one host: GPUs, in turn if there are more ranks, or the CPU."""

    kind: Literal["cuda", "cpu"]
    ranks: int
    visible: str  # CUDA_VISIBLE_DEVICES for the ranks: rank i then uses cuda:i; empty for the CPU
    uuids: tuple[str, ...] = ()  # of the GPUs

    def device(self, local_rank: int) -> str:
        """Torch's name of a rank's device."""
        return f"cuda:{local_rank % self.gpus}" if self.kind == "cuda" else "cpu"

    @property
    def gpus(self) -> int:
        """Number of GPUs; 0 for the CPU."""
        return len(self.visible.split(",")) if self.kind == "cuda" else 0

    def first(self, ranks: int) -> Devices:
        """The devices of the first `ranks` ranks, each with its own GPU, or all on the CPU."""
        visible = ",".join(self.visible.split(",")[:ranks])
        return replace(self, ranks=ranks, visible=visible, uuids=self.uuids[:ranks])

    def use(self, local_rank: int) -> torch.device:
        """Give this process its device, and make it torch's current one.

        ConfigError if PyTorch cannot use the GPU, or would use another one.
        """
        device = torch.device(self.device(local_rank))
        if device.type == "cuda":
            # CUDA reads it once, so this comes before torch or Warp first uses a GPU.
            os.environ["CUDA_VISIBLE_DEVICES"] = self.visible
            use_gpu(device, "--gpu-ids None trains on the CPU")
            if visible_gpus()[: self.gpus] != list(self.uuids):
                raise ConfigError(
                    "this process used CUDA before, and can no longer choose its GPU; begin a new "
                    "one, or set CUDA_VISIBLE_DEVICES before"
                )
        return device


def find_gpus() -> HostGpus:
    """The GPUs of this machine that PyTorch may use; does not begin to use CUDA in this process."""
    uuids = list_gpus() if torch.backends.cuda.is_built() else []
    return HostGpus(os.environ.get("CUDA_VISIBLE_DEVICES"), uuids)


def use_gpu(device: torch.device | str, instead: str) -> None:
    """Make a GPU torch's current one; ConfigError, which says what to do `instead`, if it cannot.

    PyTorch cannot use every GPU that is there: the driver may be too old for it.
    """
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # see `list_gpus`
    try:
        torch.cuda.set_device(device)
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"PyTorch cannot use the GPU: {reason} ({instead})") from error


@dataclass(frozen=True)
class Job:
    """The ranks of a job: on hosts, of which the first has rank 0, and the `devices` of each.

    Rank i has seed `seed` + i, and `threads` CPU threads; None shares a host's cores among its
    ranks. A rank that hangs ends the job after `collective_timeout` seconds, and ranks have
    `grace_seconds` to end after a signal. Members of a population go to the hosts in turn.
    """

    hosts: tuple[str, ...]
    devices: tuple[Devices, ...]
    seed: int = 0
    threads: int | None = None
    collective_timeout: float = 600.0
    grace_seconds: float = 30.0
    ssh_config: str | None = None  # file with SSH settings of the hosts; None for the user's
    in_process: bool = False  # whether the only rank runs in the process of the command
    evaluator: Devices | None = None  # device of the evaluator process, on the first host
    members: int = 1  # of a population, each of equally many ranks

    @property
    def placements(self) -> list[tuple[str, Devices, int]]:
        """Host, devices of that host and local rank, of every rank."""
        pairs = zip(self.hosts, self.devices, strict=True)
        return [(host, devices, i) for host, devices in pairs for i in range(devices.ranks)]

    @property
    def on_one_machine(self) -> bool:
        """Whether all ranks run on the machine of the command, none by SSH."""
        return self.hosts == ("localhost",)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(devices.ranks for devices in self.devices)

    def member_ranks(self) -> list[list[int]]:
        """The ranks of each member."""
        if self.members == 1:
            return [list(range(self.world_size))]
        ranks_per_member = self.world_size // self.members
        ranks: dict[int, list[int]] = {}
        for rank, (host, _, local_rank) in enumerate(self.placements):
            member = local_rank // ranks_per_member * len(self.hosts) + self.hosts.index(host)
            ranks.setdefault(member, []).append(rank)
        return [ranks[member] for member in range(self.members)]

    def rank_names(self) -> list[str]:
        """Device of each rank; with the host's name if there are several."""
        prefix = "{} " if len(self.hosts) > 1 else ""
        return [prefix.format(host) + devices.device(i) for host, devices, i in self.placements]

    def make_rank(self, rank: int = 0) -> Rank:
        """Make this process a rank of the job, with its device and its number of threads."""
        _, devices, local_rank = self.placements[rank]
        threads = self.threads or share_of_cores(devices.ranks)
        torch.set_num_threads(threads)
        device = devices.use(local_rank)
        # By member, wherever its ranks are.
        place = [number for ranks in self.member_ranks() for number in ranks].index(rank)
        return Rank(rank, local_rank, self.world_size, device, self.seed + place, threads)

    def __str__(self) -> str:
        names = self.rank_names()
        if self.members > 1:
            names = list(dict.fromkeys(names))
            per_member = self.world_size // self.members
            ranks = f", {per_member} ranks each" if per_member > 1 else ""
            return f"{self.members} members on {', '.join(names)}{ranks}"
        return f"{len(names)} rank{'s' if len(names) > 1 else ''} on {', '.join(names)}"


def plan_job(
    flags: LaunchFlags,
    seed: int = 0,
    eval_device: str | None = None,
    population: int | None = None,
    ranks_per_member: int = 1,
) -> Job:
    """Find out where ranks will be; ConfigError if a GPU or a host is not there, naming it.

    The other arguments are flags of training with the same names.
    """
    hosts = slurm_hosts() if flags.hosts == ("slurm",) else flags.hosts
    if population is not None and len(hosts) > 1 and eval_device not in (None, "cpu"):
        text = f"--eval-device {eval_device} is a GPU of the first host, and members on other hosts"
        raise ConfigError(f"{text} evaluate there; use --eval-device cpu, or leave it out")
    may_use_gpus = flags.gpu_ids is not None or eval_device not in (None, "cpu")
    if hosts:
        gpus = probe_hosts(hosts, flags.ssh_config, list_gpus=may_use_gpus)
    else:
        gpus = [find_gpus() if may_use_gpus else HostGpus(None, ())]
    devices = []
    for host, gpus_there in zip(hosts or ("localhost",), gpus, strict=True):
        with config_errors_of(f"host {host}") if hosts else nullcontext():
            devices.append(resolve_devices(flags.gpu_ids, flags.cpu_workers, gpus_there))
        if devices[-1].kind != devices[0].kind:
            without = host if devices[-1].kind == "cpu" else hosts[0]
            what = "name hosts of one kind, or train on the CPU of all with --gpu-ids None"
            raise ConfigError(f"host {without} has no GPU and others have; {what}")
    if population is not None:
        devices = _with_members(devices, population, ranks_per_member)
    return Job(
        hosts=hosts or ("localhost",),
        devices=tuple(devices),
        seed=seed,
        threads=flags.cpu_threads,
        collective_timeout=flags.collective_timeout,
        grace_seconds=flags.grace_seconds,
        ssh_config=flags.ssh_config,
        # A rank that may be started again has a process of its own to lose.
        in_process=not hosts and devices[0].ranks == 1 and flags.max_restarts == 0,
        evaluator=resolve_evaluator(eval_device, gpus[0]),
        members=population or 1,
    )


def _with_members(devices: Sequence[Devices], members: int, ranks_per_member: int) -> list[Devices]:
    """The same devices with the ranks of a population, whose members go to the hosts in turn."""
    if members < len(devices):
        text = f"{members} members (--population) for {len(devices)} hosts (--hosts)"
        raise ConfigError(f"{text}: each host needs one")
    most = max(64, 4 * len(os.sched_getaffinity(0)))
    result = []
    for i, host_devices in enumerate(devices):
        ranks = len(range(i, members, len(devices))) * ranks_per_member
        if host_devices.kind == "cuda" and ranks_per_member > host_devices.gpus:
            text = f"--ranks-per-member is {ranks_per_member}, and there are {host_devices.gpus}"
            raise ConfigError(f"{text} GPUs in --gpu-ids; ranks of one member need a GPU each")
        if ranks > most:
            text = f"--population {members} with --ranks-per-member {ranks_per_member} makes"
            raise ConfigError(f"{text} {ranks} ranks on a host; at most {most} make sense here")
        result.append(replace(host_devices, ranks=ranks))
    return result


def resolve_devices(gpu_ids: GpuIds, cpu_workers: int, gpus: HostGpus) -> Devices:
    """The devices that ``--gpu-ids`` and ``--cpu-workers`` ask for; ConfigError if not there."""
    count = len(gpus.entries)
    if gpu_ids is None or (gpu_ids == "auto" and not count):
        return Devices("cpu", cpu_workers, "")
    if cpu_workers != 1:
        text = f"--cpu-workers {cpu_workers} is for training on the CPU, and {gpus}"
        fix = "add --gpu-ids None to train on the CPU, or leave --cpu-workers out to train on GPUs"
        raise ConfigError(f"{text}; {fix}")
    hint = "" if count else "; --gpu-ids None trains on the CPU"
    if gpu_ids == "all" and not count:
        raise ConfigError(f"--gpu-ids all: {gpus}{hint}")
    if isinstance(gpu_ids, str):
        gpu_ids = (0,) if gpu_ids == "auto" else tuple(range(count))
    if not gpu_ids:
        raise ConfigError("--gpu-ids needs one or more numbers, all, or None for the CPU")
    for gpu, times in Counter(gpu_ids).items():
        if not 0 <= gpu < count:
            raise ConfigError(f"--gpu-ids {gpu}: {gpus}{hint}")
        if times > 1:
            text = f"--gpu-ids names GPU {gpu} {times} times; each rank needs its own"
            raise ConfigError(f"{text}, and {gpus}")
    return _cuda(gpus, gpu_ids)


def resolve_evaluator(device: str | None, gpus: HostGpus) -> Devices | None:
    """The device that ``--eval-device`` asks for, if any; ConfigError if it is not there."""
    if device is None or device == "cpu":
        return None if device is None else Devices("cpu", 1, "")
    gpu = int(device.removeprefix("cuda:"))
    if gpu >= len(gpus.entries):
        text = f"--eval-device {device}: {gpus}"
        raise ConfigError(f"{text}; --eval-device cpu evaluates on the CPU")
    return _cuda(gpus, (gpu,))


def _cuda(gpus: HostGpus, numbers: tuple[int, ...]) -> Devices:
    visible = ",".join(gpus.entries[number] for number in numbers)
    return Devices("cuda", len(numbers), visible, tuple(gpus.uuids[i] for i in numbers))
