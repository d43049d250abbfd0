import subprocess
import sys

import pytest
import torch
from gpu_or_cpu import MARKS

pytestmark = MARKS


@pytest.mark.parametrize("visible", [None, "0", ""])
def test_torch_counts_the_gpus_that_the_variable_leaves(visible, monkeypatch):
    """`resolve_devices` relies on it."""
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    program = "import torch; print(torch.cuda.device_count())"
    counted = subprocess.check_output([sys.executable, "-c", program], text=True)
    gpus = torch.cuda.device_count()
    assert int(counted) == {None: gpus, "0": min(1, gpus), "": 0}[visible]
