import subprocess
import sys

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("visible", [None, "0", ""])
def test_torch_counts_the_gpus_that_the_variable_leaves(visible, monkeypatch):
    """`resolve_devices` relies on it."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    program = "import torch; print(torch.cuda.device_count())"
    counted = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert int(counted) == {None: torch.cuda.device_count(), "0": 1, "": 0}[visible]
