"""What a person is told when a GPU cannot be used, or its memory is too small."""

from __future__ import annotations

import pytest
import torch

from simtrain.errors import ConfigError
from simtrain.training.gpu import out_of_memory_as_config_error, too_little_memory

GIB = 2**30
TORCH = "CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has a total capacity of 24.00 GiB"
WARP = f"Failed to allocate {12 * GIB} bytes on device 'cuda:0'"


@pytest.mark.parametrize("error", [TORCH, WARP])
def test_it_says_what_was_needed_and_how_many_environments_would_fit(error: str) -> None:
    text = too_little_memory(4096, free=16 * GIB, left=8 * GIB, error=error)
    assert "too small for 4096 environments" in text
    assert "at least 20.0 GiB, and 16.0 GiB were free" in text
    assert "use --num-envs 3276 or fewer" in text


def test_it_asks_for_fewer_where_nobody_knows_how_much_was_missing() -> None:
    error = "Graph creation error: CUDA error 2: out of memory"
    assert "use --num-envs 99 or fewer" in too_little_memory(100, 16 * GIB, 12 * GIB, error)


def test_other_errors_and_the_cpu_are_left_alone() -> None:
    with (
        pytest.raises(torch.OutOfMemoryError),
        out_of_memory_as_config_error(4, torch.device("cpu")),
    ):
        raise torch.OutOfMemoryError(TORCH)


@pytest.fixture
def gpu_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of 16 GiB that is half full the second time it is asked."""
    free = iter((16 * GIB, 8 * GIB))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(free), 24 * GIB))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError(TORCH),
        torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'"),
        RuntimeError(WARP),
        RuntimeError("Graph launch error: Warp CUDA error 2: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        torch.distributed.DistBackendError(
            "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\n"
            "Last error:\nCuda failure 2 'out of memory'"
        ),
    ],
)
def test_running_out_of_memory_is_known_by_the_texts_of_all_libraries(error, gpu_memory) -> None:
    with (
        pytest.raises(ConfigError, match="too small for 64 environments"),
        out_of_memory_as_config_error(64, torch.device("cuda")),
    ):
        raise error


@pytest.mark.parametrize(
    "text",
    [
        "CUDA error: an illegal memory access was encountered",
        "Failed to allocate memory during graph capture because memory pools are not enabled",
        "rank 1 was killed by SIGKILL, which often means that the machine ran out of memory",
    ],
)
def test_other_failures_stay_what_they_are(text, gpu_memory) -> None:
    with (
        pytest.raises(RuntimeError, match=text),
        out_of_memory_as_config_error(64, torch.device("cuda")),
    ):
        raise RuntimeError(text)
