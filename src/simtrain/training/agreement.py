"""Ranks must hold the same networks, bit for bit; a difference is found, and stops the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from simtrain.errors import RankError
from simtrain.launch.rank import Rank


def check_same_tensors(tensors: Iterable[Tensor], rank: Rank, iteration: int) -> None:
    """Compare a checksum of `tensors` over all ranks; all ranks call it together.

    Raises:
        RankError: they differ; names the ranks that are not as most others.
    """
    if rank.world_size == 1:
        return
    sum_of_mine = checksum(tensors)
    rows = rank.all_gather([sum_of_mine >> 32, sum_of_mine & 0xFFFFFFFF]).tolist()
    sums = [tuple(row) for row in rows]
    usual = Counter(sums).most_common(1)[0][0]
    others = [str(i) for i, each in enumerate(sums) if each != usual]
    if others:
        raise RankError(
            f"after iteration {iteration} the parameters of rank {' and '.join(others)} are not "
            f"those of rank {sums.index(usual)}; ranks must stay equal, bit for bit. Something "
            "changed them on one rank alone: a faulty device or interconnect, or a task that "
            "writes to the networks"
        )


def checksum(tensors: Iterable[Tensor]) -> int:
    """A number of 64 bits that any changed bit of any tensor changes.

    A sum of 32-bit words with odd weights, modulo 2^64, computed on the tensors' device.
    """
    words = torch.cat([t.detach().contiguous().flatten().view(torch.int32) for t in tensors])
    weights = 2 * torch.arange(len(words), device=words.device) + 1
    return int((words.long() * weights).sum()) & 0xFFFFFFFFFFFFFFFF
