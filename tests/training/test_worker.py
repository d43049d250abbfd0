"""A rank: how precisely it multiplies, and errors for people if a device has too little memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_training import tiny_config, tiny_trainer

from simtrain.errors import ConfigError
from simtrain.training.worker import out_of_memory_as_config_error

TORCH = "CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has a total capacity of 24.00 GiB"
NCCL = "NCCL error\nunhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(TORCH),
        RuntimeError("Failed to allocate 12884901888 bytes on device 'cuda:0'"),
        torch.AcceleratorError("CUDA error: out of memory\nSearch for ..."),
        RuntimeError("Graph launch error: Warp CUDA error 2: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublas..."),
        torch.distributed.DistBackendError(NCCL),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"),
        MemoryError(),
    ],
)
def test_running_out_of_memory_is_known_by_the_texts_of_all_libraries(error) -> None:
    with (
        pytest.raises(ConfigError, match="too small for 4096 environments: use a smaller --num-e"),
        out_of_memory_as_config_error(4096),
    ):
        raise error


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "Failed to allocate memory during graph capture: memory pools are not enabled",
        "rank 1 was killed by SIGKILL: often the machine ran out of memory",
    ],
)
def test_other_failures_stay_what_they_are(text) -> None:
    with pytest.raises(RuntimeError, match=text), out_of_memory_as_config_error(64):
        raise RuntimeError(text)


@pytest.mark.parametrize("tf32", [False, True])
def test_matrices_are_multiplied_on_gpus_as_precisely_as_the_flag_says(tf32: bool) -> None:
    of_cpu: Any = torch.backends.mkldnn
    before = of_cpu.matmul.fp32_precision
    config = tiny_config()
    config.tf32 = tf32
    tiny_trainer(config)
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
    assert torch.backends.cudnn.allow_tf32 is tf32
    assert of_cpu.matmul.fp32_precision == before
