"""The device of these tests: a GPU, or where there is none the CPU, on which all run as well.

There Warp simulates on its CPU device, and a tape stands in for CUDA graphs. They are slow tests
then: `tests/sim` and `tests/training/test_graphs.py` show sooner what they can show without a GPU.
"""

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from tape import Tape
from waiting import RefuseWaiting

from simtrain.env.env import Env
from simtrain.sim import EngineCfg
from simtrain.sim.cuda_graphs import CudaGraphs

HAS_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if HAS_GPU else torch.device("cpu")
ENVS = 64 if HAS_GPU else 8
MARKS = [pytest.mark.timeout(1200)]  # the first run on a machine compiles
if not HAS_GPU:
    MARKS += [pytest.mark.usefixtures("fast_compilation"), pytest.mark.slow]
GPU_FLAGS = ("--gpu-ids", "0") if HAS_GPU else ("--gpu-ids", "None", "--cpu-threads", "1")


def warp(*, deterministic: bool = False) -> EngineCfg:
    return EngineCfg("warp", DEVICE, deterministic=deterministic)


def graph_backend(env: Env | None = None) -> CudaGraphs:
    """What makes graphs; `env`, if given, is then captured in them."""
    return CudaGraphs(DEVICE) if HAS_GPU else Tape(env)


def no_waiting() -> AbstractContextManager[Any]:
    """Within, PyTorch raises instead of waiting for the device."""
    return CudaGraphs(DEVICE).without_waiting() if HAS_GPU else RefuseWaiting()


def synchronize() -> None:
    if HAS_GPU:
        torch.cuda.synchronize()
