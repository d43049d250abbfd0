"""`Rank`: one process of a training job, and the collectives that the project uses."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
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
    """One process of a job, or of a `group` of its ranks, with its own seed and number of threads.

    Collectives are those of the group; they do nothing in one of a single rank. Those on objects
    pickle, so they are for rare use.
    """

    rank: int
    local_rank: int  # number of this process on its host
    world_size: int
    device: torch.device
    seed: int
    threads: int
    end_job: Callable[[str], None] | None = None
    """Ends this rank with the text of an error, and with it the job; from any thread."""
    progress: Progress = field(default_factory=Progress, repr=False, compare=False)
    group: dist.ProcessGroup | None = None  # of all ranks, if None
    whole: Rank | None = field(default=None, repr=False)
    """This process among all ranks of the job, if this is its place in a `group` of them."""

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, the only one that writes files."""
        return self.rank == 0

    def all_reduce(self, tensor: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """Combine `tensor` over all ranks, in place; returns it."""
        if self.world_size > 1:
            with self.progress:
                dist.all_reduce(tensor, op=op, group=self.group)
        return tensor

    def broadcast(self, tensor: Tensor) -> Tensor:
        """Replace `tensor` by that of rank 0, in place; returns it."""
        if self.world_size > 1:
            with self.progress:
                dist.broadcast(tensor, group=self.group, group_src=0)
        return tensor

    def all_gather(self, values: Sequence[float] | Tensor) -> Tensor:
        """What all give, equally many; float64, between CPUs, ``(world_size, len(values))``."""
        mine = torch.as_tensor(values, dtype=torch.float64).reshape(1, -1)
        if self.world_size == 1:
            return mine
        everyone = [torch.empty_like(mine) for _ in range(self.world_size)]
        with self.progress:
            dist.all_gather(everyone, mine, group=self.group)
        return torch.cat(everyone)

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag, true if it is true on any rank; a collective on the CPU."""
        return tuple(self.all_gather(flags).any(dim=0).tolist())

    @contextmanager
    def deadline(self, seconds: float, doing: str) -> Iterator[Callable[[bool], bool]]:
        """Limit the time of what all ranks do together, at the same time; yields `any` of one flag.

        After `seconds` the job ends, whatever the ranks wait for, and the error names those that
        have called `any` less often than others.
        """
        end_job, group = self.end_job, dist.group.WORLD
        if end_job is None or group is None:
            yield lambda flag: self.any(flag)[0]
            return
        store = group.get_group_store()
        counters = [f"{doing}/{rank}" for rank in range(self.world_size)]

        def expire() -> None:
            calls = [store.add(counter, 0) for counter in counters]
            behind = [str(rank) for rank, count in enumerate(calls) if count == min(calls)]
            end_job(f"rank {' and '.join(behind)} did not finish {doing} within {seconds:g} s")

        def any_rank(flag: bool) -> bool:
            store.add(counters[self.rank], 1)
            return self.any(flag)[0]

        with time_limit(seconds, expire):
            yield any_rank

    def barrier(self) -> None:
        """Wait until every rank has called this."""
        self.all_gather([0.0])

    def all_gather_objects(self, value: Any) -> list[Any]:
        """What every rank gave, by rank."""
        values = [value] * self.world_size
        if self.world_size > 1:
            with self.progress:
                dist.all_gather_object(values, value, group=self.group)
        return values

    def gather_objects(self, value: Any) -> list[Any] | None:
        """What every rank gave, by rank, on rank 0; None on others."""
        values = [value] * self.world_size if self.is_main else None
        if self.world_size > 1:
            with self.progress:
                dist.gather_object(value, values, group=self.group, group_dst=0)
        return values

    def scatter_objects(self, values: list[Any] | None) -> Any:
        """This rank's own of `values`, which rank 0 gives, one for each."""
        mine = (values or [None])[:1]
        if self.world_size > 1:
            with self.progress:
                dist.scatter_object_list(mine, values, group=self.group, group_src=0)
        return mine[0]

    def broadcast_object(self, value: Any) -> Any:
        """What rank 0 gave. It travels between CPUs."""
        values = [value]
        if self.world_size > 1:
            with self.progress:
                cpu = torch.device("cpu")
                dist.broadcast_object_list(values, device=cpu, group=self.group, group_src=0)
        return values[0]

    def send_object(self, value: Any, to: int) -> None:
        """Hand `value` to the rank `to`, which receives it; it travels between CPUs."""
        cpu = torch.device("cpu")
        dist.send_object_list([value], device=cpu, group=self.group, group_dst=to)

    def receive_object(self, sender: int) -> Any:
        """What the rank `sender` sends to this one."""
        values = [None]
        cpu = torch.device("cpu")
        dist.recv_object_list(values, device=cpu, group=self.group, group_src=sender)
        return values[0]

    def within(self, groups: Sequence[Sequence[int]], *, on_device: bool = True) -> Rank | None:
        """This process as a rank of its one of `groups`, lists of ranks; None if it is in none.

        All ranks call it together, with the same groups. Without `on_device`, collectives of the
        group are on tensors of the CPU alone.
        """
        mine = None
        for ranks in groups:
            is_mine = self.rank in ranks
            group: Any = None
            if len(ranks) > 1:
                device = self.device.type if on_device else "cpu"
                backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
                group = dist.new_group(list(ranks), backend=backend)
            if is_mine:
                place = list(ranks).index(self.rank)
                size = len(ranks)
                mine = replace(self, rank=place, world_size=size, group=group, whole=self)
        return mine


@contextmanager
def time_limit(seconds: float, action: Callable[[], None]) -> Iterator[None]:
    """Call `action`, in another thread, if the block takes longer."""
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def share_of_cores(ranks: int) -> int:
    """Threads of each rank when `ranks` of them share the cores given to this process."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)
