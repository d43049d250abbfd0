"""The plan of a job: its hosts and the devices of its ranks, from ``--gpu-ids`` to ``cuda:i``."""

import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch

from simtrain.errors import ConfigError
from simtrain.launch.hosts import probe_hosts
from simtrain.launch.rank import Rank, share_of_cores
from simtrain.launch.torchrunx_internals import slurm_hosts

GpuIds = tuple[int, ...] | Literal["auto", "all"] | None


@dataclass(frozen=True)
class Devices:
    """What the ranks of one host compute on: GPUs, in turn if there are more ranks, or the CPU."""

    kind: Literal["cuda", "cpu"]
    ranks: int
    visible: str  # CUDA_VISIBLE_DEVICES for the ranks: rank i then uses cuda:i; empty for the CPU

    def device(self, local_rank: int) -> str:
        """Torch's name of a rank's device."""
        return f"cuda:{local_rank % self.gpus}" if self.kind == "cuda" else "cpu"

    @property
    def gpus(self) -> int:
        """Number of GPUs; 0 for the CPU."""
        return len(self.visible.split(",")) if self.kind == "cuda" else 0

    def use(self, local_rank: int) -> torch.device:
        """Give this process its device, and make it torch's current one; see `use_gpu`."""
        # CUDA reads it once, so this comes before torch or Warp first uses a GPU.
        os.environ["CUDA_VISIBLE_DEVICES"] = self.visible
        device = torch.device(self.device(local_rank))
        if device.type == "cuda":
            use_gpu(device, "--gpu-ids None trains on the CPU")
        return device


def count_gpus() -> int:
    """Number of visible GPUs; from now on this process and its children number them in one order.

    CUDA's own order puts the fastest GPU first, nvidia-smi's is that of the bus. The variable is
    read when CUDA is first used; a value that the user has set holds.
    """
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return torch.cuda.device_count()


def use_gpu(device: torch.device | str, instead: str) -> None:
    """Make a GPU torch's current one; ConfigError, which says what to do `instead`, if it cannot.

    There can be one that PyTorch cannot use: the driver is too old for it, say.
    """
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
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
        each = self.world_size // self.members
        ranks: dict[int, list[int]] = {}
        for rank, (host, _, local_rank) in enumerate(self.placements):
            member = local_rank // each * len(self.hosts) + self.hosts.index(host)
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
        # Ranks of a member follow each other, as do members, wherever they are.
        place = [each for ranks in self.member_ranks() for each in ranks].index(rank)
        return Rank(rank, local_rank, self.world_size, device, self.seed + place, threads)

    def __str__(self) -> str:
        names = self.rank_names()
        if self.members > 1:
            names = list(dict.fromkeys(names))
            each = self.world_size // self.members
            ranks = f", {each} ranks each" if each > 1 else ""
            return f"{self.members} members on {', '.join(names)}{ranks}"
        return f"{len(names)} rank{'s' if len(names) > 1 else ''} on {', '.join(names)}"


class LaunchFlags(Protocol):
    """The flags of `train` that decide which ranks there are."""

    gpu_ids: GpuIds
    cpu_workers: int
    cpu_threads: int | None
    hosts: tuple[str, ...]
    ssh_config: str | None
    collective_timeout: float
    grace_seconds: float
    max_restarts: int
    seed: int
    eval_device: str | None
    population: int | None
    ranks_per_member: int


def plan_job(flags: LaunchFlags) -> Job:
    """Find out where ranks will be; ConfigError if a GPU or a host is not there, naming it."""
    hosts = slurm_hosts() if flags.hosts == ("slurm",) else flags.hosts
    may_use_gpus = flags.gpu_ids is not None or flags.eval_device not in (None, "cpu")
    if hosts:
        found = probe_hosts(hosts, flags.ssh_config, count_gpus=may_use_gpus)
    else:
        gpu_count = count_gpus() if may_use_gpus else 0
        found = [(os.environ.get("CUDA_VISIBLE_DEVICES"), gpu_count)]
    devices = resolve_hosts(flags, hosts, found)
    if flags.population is not None:
        devices = _with_members(devices, flags.population, flags.ranks_per_member)
    # A rank that may be started again has a process of its own to lose.
    in_process = not hosts and devices[0].ranks == 1 and flags.max_restarts == 0
    return Job(
        hosts=hosts or ("localhost",),
        devices=devices,
        seed=flags.seed,
        threads=flags.cpu_threads,
        collective_timeout=flags.collective_timeout,
        grace_seconds=flags.grace_seconds,
        ssh_config=flags.ssh_config,
        in_process=in_process,
        evaluator=resolve_evaluator(flags.eval_device, *found[0]),
        members=flags.population or 1,
    )


def _with_members(devices: tuple[Devices, ...], members: int, each: int) -> tuple[Devices, ...]:
    """The same devices with the ranks of a population, whose members go to the hosts in turn."""
    if members < len(devices):
        text = f"{members} members (--population) for {len(devices)} hosts (--hosts)"
        raise ConfigError(f"{text}: each host needs one")
    most = max(64, 4 * len(os.sched_getaffinity(0)))
    result = []
    for i, those in enumerate(devices):
        ranks = len(range(i, members, len(devices))) * each
        if those.kind == "cuda" and each > those.gpus:
            text = f"--ranks-per-member is {each}, and there are {those.gpus} GPUs in --gpu-ids"
            raise ConfigError(f"{text}; ranks of one member need a GPU each")
        if ranks > most:
            text = f"--population {members} with --ranks-per-member {each} makes {ranks} ranks"
            raise ConfigError(f"{text} on a host; at most {most} make sense here")
        result.append(replace(those, ranks=ranks))
    return tuple(result)


def resolve_hosts(
    flags: LaunchFlags, hosts: tuple[str, ...], found: list[tuple[str | None, int]]
) -> tuple[Devices, ...]:
    """The devices of hosts, by the ``CUDA_VISIBLE_DEVICES`` and number of GPUs `found` there."""
    devices = []
    for i, (visible, gpu_count) in enumerate(found):
        try:
            devices.append(resolve_devices(flags.gpu_ids, flags.cpu_workers, visible, gpu_count))
        except ConfigError as error:
            raise ConfigError(f"host {hosts[i]}: {error}" if hosts else str(error)) from error
        if devices[i].kind != devices[0].kind:
            without = hosts[i] if devices[i].kind == "cpu" else hosts[0]
            what = "name hosts of one kind, or train on the CPU of all with --gpu-ids None"
            raise ConfigError(f"host {without} has no GPU and others have; {what}")
    return tuple(devices)


def resolve_devices(
    gpu_ids: GpuIds, cpu_workers: int, visible: str | None, gpu_count: int
) -> Devices:
    """The devices that ``--gpu-ids`` and ``--cpu-workers`` ask for; ConfigError if not there.

    `visible` is the host's ``CUDA_VISIBLE_DEVICES``, None if it is not set; its entries can be
    indices, UUIDs or MIG names. `gpu_count` is how many GPUs torch sees there, under `visible`.
    """
    entries = _entries(visible, gpu_count)
    hint = "" if entries else "; --gpu-ids None trains on the CPU"
    if gpu_ids is None or (gpu_ids == "auto" and not entries):
        return Devices("cpu", cpu_workers, "")
    there_is = _there_is(entries, visible)
    if cpu_workers != 1:
        text = f"--cpu-workers {cpu_workers} is for training on the CPU, and {there_is}"
        fix = "add --gpu-ids None to train on the CPU, or leave --cpu-workers out to train on GPUs"
        raise ConfigError(f"{text}; {fix}")
    if gpu_ids == "all" and not entries:
        raise ConfigError(f"--gpu-ids all: {there_is}{hint}")
    if isinstance(gpu_ids, str):
        gpu_ids = (0,) if gpu_ids == "auto" else tuple(range(len(entries)))
    if not gpu_ids:
        raise ConfigError("--gpu-ids needs one or more numbers, all, or None for the CPU")
    for gpu, times in Counter(gpu_ids).items():
        if not 0 <= gpu < len(entries):
            raise ConfigError(f"--gpu-ids {gpu}: {there_is}{hint}")
        if times > 1:
            text = f"--gpu-ids names GPU {gpu} {times} times; each rank needs its own"
            raise ConfigError(f"{text}, and {there_is}")
    return Devices("cuda", len(gpu_ids), ",".join(entries[gpu] for gpu in gpu_ids))


def resolve_evaluator(device: str | None, visible: str | None, gpu_count: int) -> Devices | None:
    """The device that ``--eval-device`` asks for, if any; the rest as in `resolve_devices`."""
    if device is None or device == "cpu":
        return None if device is None else Devices("cpu", 1, "")
    entries, gpu = _entries(visible, gpu_count), int(device.removeprefix("cuda:"))
    if gpu >= len(entries):
        text = f"--eval-device {device}: {_there_is(entries, visible)}"
        raise ConfigError(f"{text}; --eval-device cpu evaluates on the CPU")
    return Devices("cuda", 1, entries[gpu])


def _entries(visible: str | None, gpu_count: int) -> list[str]:
    """The name of each GPU in ``CUDA_VISIBLE_DEVICES``; CUDA stops at the first it cannot find."""
    entries = map(str, range(gpu_count)) if visible is None else visible.split(",")
    return [entry.strip() for entry in entries if entry.strip()][:gpu_count]


def _there_is(entries: list[str], visible: str | None) -> str:
    variable = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible})"
    few = {0: "no GPU is visible", 1: "the only visible GPU is 0"}
    return few.get(len(entries), f"the visible GPUs are 0 to {len(entries) - 1}") + variable
