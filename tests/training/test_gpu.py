"""What a person is told when a GPU cannot be used, or its memory is too small."""

from __future__ import annotations

import pytest
import torch

from simtrain.errors import ConfigError
from simtrain.training.gpu import check_gpu, out_of_memory_as_config_error, too_little_memory

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


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_pytorch_cannot_use_is_refused_with_its_reason() -> None:
    check_gpu(torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"cannot use the GPU: .* \(--gpu-ids None trains"):
        check_gpu(torch.device("cuda:0"))
