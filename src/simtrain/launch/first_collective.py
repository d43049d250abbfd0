"""The ranks meet: a first collective with a deadline, and what to try when it does not finish.

Collectives that never finish are the most frequent trouble with several GPUs, and say nothing by
themselves. Here they would be a matter of the machine, so they are looked for before anything is
built.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from simtrain.launch.rank import Rank

_LATER_SECONDS = 1800.0
"""What any later collective may take: another rank may be saving, or recording a video."""

ADVICE = """\
What usually is the matter, most frequent first, and what to try:
  1. GPUs cannot reach each other's memory behind an IOMMU (hangs at the first collective):
     set NCCL_P2P_DISABLE=1, or boot the kernel with iommu=pt
  2. Shared memory is too small in a container:
     set NCCL_SHM_DISABLE=1, or start it with more (docker run --shm-size=1g, or --ipc=host)
  3. A host name does not resolve: `getent hosts $(hostname)` must print an address on every host;
     add the name to /etc/hosts
  4. A port is blocked: a firewall must let ranks connect to each other on any port; with several
     network interfaces, name one with NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME
NCCL_DEBUG=INFO shows what NCCL does, in the ranks' logs."""


def meet(rank: Rank, timeout: float, on_hang: Callable[[str], None]) -> None:
    """Connect the ranks, and reduce one number over all of them on their devices and on their CPUs.

    Args:
        rank: this process; ``MASTER_ADDR`` and ``MASTER_PORT`` say where rank 0 is.
        timeout: seconds that this may take.
        on_hang: called with what is to be told, from another thread, if it takes longer.
    """
    where = f"the first collective of {rank.world_size} ranks"
    with _deadline(
        timeout,
        lambda: on_hang(
            f"{where} did not finish within {timeout:g} s (--collective-timeout).\n{ADVICE}"
        ),
    ):
        cuda = rank.device.type == "cuda"
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if cuda else "gloo",
            rank=rank.rank,
            world_size=rank.world_size,
            timeout=timedelta(seconds=_LATER_SECONDS),
            device_id=rank.device if cuda else None,
        )
        total = float(rank.all_reduce(torch.ones((), device=rank.device)))
        count = len(rank.all_gather([0.0]))
    if total != rank.world_size or count != rank.world_size:
        raise RuntimeError(f"{where} gave {total:g} and {count} instead of {rank.world_size}")


@contextmanager
def _deadline(seconds: float, expired: Callable[[], None]) -> Iterator[None]:
    timer = threading.Timer(seconds, expired)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
