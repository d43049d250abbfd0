"""Who am I: one process of a training job, and the few collectives that the project uses."""

from __future__ import annotations

import random
from dataclasses import dataclass

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

    def seed_everything(self) -> None:
        """Seed torch (all devices), NumPy and Python with this rank's seed."""
        torch.manual_seed(self.seed)
        np.random.seed(self.seed % 2**32)  # for task files that use it
        random.seed(self.seed)
