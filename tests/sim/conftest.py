from typing import Any

import mujoco
import pytest
import torch
from engine_models import MakeEngine

from simtrain.sim import EngineCfg, make_engine
from simtrain.sim.engine import Engine

needs_cuda = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(
    params=[
        "mujoco",
        "warp",
        pytest.param("cuda", marks=needs_cuda),
    ]
)
def make(request: pytest.FixtureRequest) -> MakeEngine:
    """Makes an engine of a model: MuJoCo's, MuJoCo Warp's on the CPU, and its on CUDA."""
    if request.param == "warp":
        request.getfixturevalue("fast_compilation")
    name = "mujoco" if request.param == "mujoco" else "warp"
    device = "cuda" if request.param == "cuda" else "cpu"

    def make(model: mujoco.MjModel, num_envs: int = 3, **options: Any) -> Engine:
        return make_engine(EngineCfg(name, device), model, num_envs, **options)

    return make
