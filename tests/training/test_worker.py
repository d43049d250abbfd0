"""A rank: how precisely it multiplies, and errors for people if a device has too little memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_training import tiny_config, tiny_trainer

from simtrain.errors import ConfigError
from simtrain.training.worker import out_of_memory_as_config_error

GIB = 2**30
TORCH = "CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has a total capacity of 24.00 GiB"
WARP = f"Failed to allocate {12 * GIB} bytes on device 'cuda:0'"
NCCL = "NCCL error\nunhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"
NEEDED = "at least 20.0 GiB, and 16.0 GiB were free; use --num-envs 3276 or fewer"
UNKNOWN = "use --num-envs 4095 or fewer"


@pytest.fixture(autouse=True)
def _gpu_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of 16 GiB of which 8 are left the second time it is asked."""
    free = iter((16 * GIB, 8 * GIB))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(free), 24 * GIB))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (torch.OutOfMemoryError(TORCH), NEEDED),
        (RuntimeError(WARP), NEEDED),
        (torch.AcceleratorError("CUDA error: out of memory\nSearch for ..."), UNKNOWN),
        (RuntimeError("Graph launch error: Warp CUDA error 2: out of memory"), UNKNOWN),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublas..."), UNKNOWN),
        (torch.distributed.DistBackendError(NCCL), UNKNOWN),
    ],
)
def test_running_out_of_memory_is_known_by_the_texts_of_all_libraries(error, says) -> None:
    with (
        pytest.raises(ConfigError, match=r"too small for 4096 environments.*" + says),
        out_of_memory_as_config_error(4096, torch.device("cuda")),
    ):
        raise error


@pytest.mark.parametrize(
    ("device", "text"),
    [
        ("cuda", "CUDA error: an illegal memory access was encountered"),
        ("cuda", "Failed to allocate memory during graph capture: memory pools are not enabled"),
        ("cuda", "rank 1 was killed by SIGKILL: often the machine ran out of memory"),
        ("cpu", TORCH),
    ],
)
def test_other_failures_stay_what_they_are(device, text) -> None:
    with (
        pytest.raises(RuntimeError, match=text),
        out_of_memory_as_config_error(64, torch.device(device)),
    ):
        raise RuntimeError(text)


def test_a_machine_with_too_little_memory_is_told() -> None:
    with (
        pytest.raises(ConfigError, match="this machine's memory is too small for 64 environments"),
        out_of_memory_as_config_error(64, torch.device("cpu")),
    ):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8")


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
