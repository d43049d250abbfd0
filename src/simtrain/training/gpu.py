"""The error for people where a device has too little memory."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from simtrain.errors import ConfigError

_ASKED = re.compile(r"allocate ([\d.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_OUT_OF_MEMORY = re.compile(
    r"cuda.*out of memory"  # PyTorch, the launch of a graph, Warp and NCCL ('Cuda failure 2 ...')
    r"|Failed to allocate \d+ bytes on device 'cuda"  # Warp's allocator
    r"|CU\w+_ALLOC_FAILED",  # cuBLAS, cuSOLVER
    re.IGNORECASE,
)


@contextmanager
def out_of_memory_as_config_error(num_envs: int, device: torch.device) -> Iterator[None]:
    """Turn running out of memory into a ConfigError; on a GPU it says how many would fit.

    Only PyTorch's own allocator raises `torch.OutOfMemoryError`; the driver, when it launches a
    graph, and other libraries raise a RuntimeError with a text.
    """
    if device.type != "cuda":
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
                raise
            text = f"this machine's memory is too small for {num_envs} environments"
            raise ConfigError(f"{text}: use a smaller --num-envs") from error
        return
    free = torch.cuda.mem_get_info(device)[0]
    try:
        yield
    except RuntimeError as error:
        if not _OUT_OF_MEMORY.search(str(error)):
            raise
        left = torch.cuda.mem_get_info(device)[0]
        raise ConfigError(too_little_memory(num_envs, free, left, str(error))) from error


def too_little_memory(num_envs: int, free: int, left: int, error: str) -> str:
    """The error's text; `free` and `left` are bytes at the start and at the end."""
    asked = _ASKED.search(error)
    more = float(asked[1]) * _UNITS[asked[2]] if asked else 0.0
    # What was asked for last is seldom the last that would have been.
    needed = max(free - left + more, free * (num_envs + 1) / num_envs)
    return (
        f"the GPU's memory is too small for {num_envs} environments: they need at least "
        f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB were free; "
        f"use --num-envs {max(1, int(num_envs * free / needed))} or fewer"
    )
