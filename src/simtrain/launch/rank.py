"""Who am I: one process of a training job, and the few collectives that the project uses."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Rank:
    """One process of a job. Collectives do nothing in a job of one."""

    rank: int
    """Number of this process among all."""
    local_rank: int
    """Number of this process on its host."""
    world_size: int
    """Number of processes."""
    device: torch.device
    """Where this process computes."""
    seed: int
    """Seed of this process, different for every rank."""
    threads: int
    """CPU threads that this process may use."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes files."""
        return self.rank == 0

    def all_reduce(self, tensor: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Combine `tensor` over all ranks, in place; returns it."""
        if self.world_size > 1:
            dist.all_reduce(tensor, op=op)
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by that of rank 0, in place; returns it."""
        if self.world_size > 1:
            dist.broadcast(tensor, src=0)
        return tensor

    def all_gather(self, values: Sequence[float]) -> Tensor:
        """The values of all ranks, float64 on the CPU, ``(world_size, len(values))``.

        Every rank gives equally many. It travels between CPUs and waits for no GPU.
        """
        mine = torch.tensor(values, dtype=torch.float64).reshape(1, -1)
        if self.world_size == 1:
            return mine
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        dist.all_gather(everyone, mine)
        return torch.cat(everyone)

    def all_gather_objects(self, value: Any) -> list[Any]:
        """What every rank gave, by rank; pickled, so for rare use."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def gather_objects(self, value: Any) -> list[Any] | None:
        """What every rank gave, by rank, on rank 0; None on others. Pickled, so for rare use."""
        if self.world_size == 1:
            return [value]
        values: list[Any] | None = [None] * self.world_size if self.is_main else None
        dist.gather_object(value, values)
        return values

    def scatter_objects(self, values: list[Any] | None) -> Any:
        """This rank's own of `values`, which rank 0 gives, one for each. Pickled likewise."""
        if self.world_size == 1:
            assert values is not None
            return values[0]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, values)
        return mine[0]

    def broadcast_object(self, value: Any) -> Any:
        """What rank 0 gave; pickled, so for rare use. It travels between CPUs."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Whether each flag is set on any rank; one collective on the CPU."""
        if self.world_size == 1:
            return flags
        return tuple((self.all_gather(list(map(float, flags))).amax(dim=0) > 0.0).tolist())

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self.all_gather([0.0])

    def seed_everything(self) -> None:
        """Seed torch (all devices), NumPy and Python with this rank's seed."""
        torch.manual_seed(self.seed)
        np.random.seed(self.seed % 2**32)  # for task files that use it
        random.seed(self.seed)


def share_of_cores(ranks: int) -> int:
    """Threads of each rank when `ranks` of them share the cores given to this process."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)
