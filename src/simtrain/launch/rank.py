"""`Rank`: one process of a training job, and the collectives that the project uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_CPU = torch.device("cpu")


@dataclass
class Progress:
    """How far a rank is: its main thread writes this, its heartbeat reads it.

    As a context it marks that the rank waits for others: in a collective, or for one on its GPU.
    """

    iteration: int | None = 0
    """The iteration that all ranks work on; 0 for the first collective, None where a rank may work
    alone."""
    waits: int = 0
    """How often it has begun to wait."""
    is_waiting: bool = False

    def __enter__(self) -> None:
        self.waits += 1
        self.is_waiting = True

    def __exit__(self, *exception: object) -> None:
        self.is_waiting = False


@dataclass(frozen=True)
class Rank:
    """One process of a job, or of a `group` of its ranks, with its own seed and number of threads.

    Collectives have the names that they have in `torch.distributed`, and are those of the group; in
    a group of one rank they do nothing. Those of objects pickle, on the CPU: they are for rare use.
    """

    rank: int
    local_rank: int  # number of this process on its host
    world_size: int
    device: torch.device
    seed: int
    threads: int
    progress: Progress = field(default_factory=Progress, repr=False, compare=False)
    group: dist.ProcessGroup | None = None  # of all ranks, if None
    of_job: Rank | None = field(default=None, repr=False)
    """This process as a rank of the whole job, if this one is a rank of a `group` of it."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes the files of a run."""
        return self.rank == 0

    def all_reduce(self, tensor: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Combine `tensor` over all ranks, in place; returns it."""
        self._wait_in(dist.all_reduce, tensor, op=op)
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by that of rank 0, in place; returns it."""
        self._wait_in(dist.broadcast, tensor, group_src=0)
        return tensor

    def all_gather(self, values: Sequence[float] | Tensor) -> Tensor:
        """Gather equally many values of every rank: float64, CPU, ``(world_size, len(values))``."""
        own = torch.as_tensor(values, dtype=torch.float64).reshape(1, -1)
        gathered = own.repeat(self.world_size, 1)
        self._wait_in(dist.all_gather, list(gathered.split(1)), own)
        return gathered

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag, true if it is true on any rank; a collective on the CPU."""
        return tuple(self.all_gather(flags).any(dim=0).tolist())

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self.all_gather([0.0])

    def all_gather_object(self, value: Any) -> list[Any]:
        """Gather the values of all ranks, by rank."""
        values = [value] * self.world_size
        self._wait_in(dist.all_gather_object, values, value)
        return values

    def gather_object(self, value: Any) -> list[Any] | None:
        """Gather the values of all ranks, by rank, on rank 0; None on others."""
        values = [value] * self.world_size if self.is_main else None
        self._wait_in(dist.gather_object, value, values, group_dst=0)
        return values

    def broadcast_object(self, value: Any) -> Any:
        """The value of rank 0."""
        values = [value]
        self._wait_in(dist.broadcast_object_list, values, device=_CPU, group_src=0)
        return values[0]

    def send_object(self, value: Any, to: int) -> None:
        """Send `value` to the rank `to`, which calls `recv_object`."""
        dist.send_object_list([value], device=_CPU, group=self.group, group_dst=to)

    def recv_object(self, sender: int) -> Any:
        """Receive the value that the rank `sender` sends to this one."""
        values = [None]
        dist.recv_object_list(values, device=_CPU, group=self.group, group_src=sender)
        return values[0]

    def _wait_in(self, collective: Callable[..., object], *args: Any, **options: Any) -> None:
        if self.world_size > 1:
            with self.progress:
                collective(*args, group=self.group, **options)

    def split(self, groups: Sequence[Sequence[int]], *, on_device: bool = True) -> Rank | None:
        """This process as a rank of the one of `groups` that it is in, lists of ranks, or None.

        A collective: all ranks pass the same groups. Without `on_device`, collectives of the
        groups take tensors of the CPU alone.
        """
        own = None
        on_gpu = on_device and self.device.type == "cuda"
        for ranks in groups:
            group: Any = None
            if len(ranks) > 1:
                group = dist.new_group(list(ranks), backend=backend(cuda=on_gpu))
            if self.rank in ranks:
                place, size = list(ranks).index(self.rank), len(ranks)
                own = replace(self, rank=place, world_size=size, group=group, of_job=self)
        return own


def backend(*, cuda: bool) -> str:
    """The backends of a process group: Gloo for the CPU, NCCL for GPUs."""
    return "cpu:gloo,cuda:nccl" if cuda else "gloo"


def share_of_cores(ranks: int) -> int:
    """Threads of each rank when `ranks` of them share the cores given to this process."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)
