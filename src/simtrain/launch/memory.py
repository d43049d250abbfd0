"""The memory of this machine: how much is free, and whether something fits into it."""

from contextlib import suppress
from pathlib import Path

import psutil

from simtrain.errors import ConfigError

_CONTAINER = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that this process may still take, by the machine's memory and its container's limit."""
    free = int(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, IndexError):  # no container, or one without a limit
        most = int((_CONTAINER / "memory.max").read_text())
        # What its files keep in memory is given up when processes need it.
        used = int((_CONTAINER / "memory.stat").read_text().split()[1])
        free = min(free, max(0, most - used))
    return free


def check_memory(needed: int, num_envs: int, ranks: int = 1) -> None:
    """Raise ConfigError if `needed` bytes, those of all environments and ranks, are not free."""
    if needed > (free := available_memory()):
        each = f" in each of {ranks} ranks" if ranks > 1 else ""
        fewer = int(num_envs * free / needed)
        use = f"--num-envs {fewer}" if fewer and ranks == 1 else "fewer environments or ranks"
        raise ConfigError(
            f"{num_envs:,} environments{each} need about {gib(needed)} of memory, and {gib(free)} "
            f"are free; use {use}, or smaller rollouts or networks"
        )


def gib(size: int) -> str:
    """A number of bytes for people."""
    return f"{size / 2**30:.3g} GiB"
