"""`Rank`: one process of a training job, and the collectives that the project uses."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass
class Progress:
    """How far a rank is: its main thread writes this, and its heartbeat reads it.

    Within this, as a context, the rank waits for others: in a collective, or for its GPU's.
    """

    iteration: int | None = 0
    """The one that all ranks work on, 0 for the first collective; None where one may work alone."""
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
    """One process of a job, with its own seed and number of CPU threads.

    Collectives do nothing in a job of one; those on objects pickle, so they are for rare use.
    """

    rank: int
    local_rank: int  # number of this process on its host
    world_size: int
    device: torch.device
    seed: int
    threads: int
    progress: Progress = field(default_factory=Progress, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes files."""
        return self.rank == 0

    def all_reduce(self, tensor: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Combine `tensor` over all ranks, in place; returns it."""
        if self.world_size > 1:
            with self.progress:
                dist.all_reduce(tensor, op=op)
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by that of rank 0, in place; returns it."""
        if self.world_size > 1:
            with self.progress:
                dist.broadcast(tensor, src=0)
        return tensor

    def all_gather(self, values: Sequence[float]) -> Tensor:
        """What all give, equally many; float64, between CPUs, ``(world_size, len(values))``."""
        mine = torch.tensor(values, dtype=torch.float64).reshape(1, -1)
        if self.world_size == 1:
            return mine
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        with self.progress:
            dist.all_gather(everyone, mine)
        return torch.cat(everyone)

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag, true if it is true on any rank; a collective on the CPU."""
        return tuple(self.all_gather(flags).any(dim=0).tolist())

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self.all_gather([0.0])

    def all_gather_objects(self, value: Any) -> list[Any]:
        """What every rank gave, by rank."""
        values = [value] * self.world_size
        if self.world_size > 1:
            with self.progress:
                dist.all_gather_object(values, value)
        return values

    def gather_objects(self, value: Any) -> list[Any] | None:
        """What every rank gave, by rank, on rank 0; None on others."""
        values = [value] * self.world_size if self.is_main else None
        if self.world_size > 1:
            with self.progress:
                dist.gather_object(value, values)
        return values

    def scatter_objects(self, values: list[Any] | None) -> Any:
        """This rank's own of `values`, which rank 0 gives, one for each."""
        mine = (values or [None])[:1]
        if self.world_size > 1:
            with self.progress:
                dist.scatter_object_list(mine, values)
        return mine[0]

    def broadcast_object(self, value: Any) -> Any:
        """What rank 0 gave. It travels between CPUs."""
        values = [value]
        if self.world_size > 1:
            with self.progress:
                dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]


def share_of_cores(ranks: int) -> int:
    """Threads of each rank when `ranks` of them share the cores given to this process."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)
