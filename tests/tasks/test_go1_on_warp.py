"""The quadruped on both engines, from the same states under the same controls.

MuJoCo Warp counts in float32, which leaves them about a millionth apart.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.env.model import compile_model
from simtrain.env.names import find_keyframe, initial_state
from simtrain.sim import EngineCfg, make_engine

pytestmark = [pytest.mark.usefixtures("fast_compilation"), pytest.mark.timeout(600)]

TASK = "go1-velocity-flat"
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    ],
)
FIELDS = ("qpos", "qvel", "sensordata")
TOLERANCES = {1: 1e-4, 20: 1e-2}
"""After how many steps engines may be how far apart, relative to a field's largest entry (or 1)."""


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("spread", [0.0, 0.4], ids=["standing", "random actions"])
def test_the_engines_agree(device: str, spread: float) -> None:
    cfg = discover().find(TASK).make()
    model = compile_model(cfg)
    keyframe = find_keyframe(model, cfg.keyframe)
    engines = [
        make_engine(EngineCfg("mujoco"), model, 3, keyframe=keyframe),
        make_engine(EngineCfg("warp", device), model, 3, keyframe=keyframe),
    ]
    bound = [[engine.bind(field) for field in FIELDS] for engine in engines]
    home = torch.as_tensor(initial_state(model, cfg.keyframe).ctrl, dtype=torch.float32)
    start = bound[0][0].clone()
    for step in range(1, 21):
        ctrl = home + spread * torch.randn(3, model.nu)
        for engine in engines:
            engine.bind("ctrl").copy_(ctrl)
            engine.step(cfg.decimation)
        if allowed := TOLERANCES.get(step):
            for field, exact, single in zip(FIELDS, *bound, strict=True):
                apart = (single.cpu() - exact).abs().max().item()
                assert apart < allowed * exact.abs().max().clamp(min=1.0).item(), (field, step)
    moved = (bound[0][0] - start).abs().max().item()
    assert moved > 0.2 if spread else moved < 0.02
    assert engines[1].overflow().messages == {}


def run(engine: str, actions: list[Tensor]) -> list[Tensor]:
    """Observations, rewards and dones of every step, with the same random numbers."""
    torch.manual_seed(0)
    cfg = discover().find(TASK).make()
    cfg.episode_length_s = 0.4  # so that episodes end and resets happen
    env = Env(cfg, 4, EngineCfg(engine, threads=1))
    seen = []
    for action in actions:
        observations, rewards, dones, _ = env.step(action)
        groups = [observations[name].clone() for name in ("actor", "critic")]
        seen += [*groups, rewards.clone(), dones.float()]
    return seen


def test_the_task_is_the_same_on_both_engines() -> None:
    """Randomized masses, friction and gains, pushes, resets, observations and rewards."""
    actions = [0.5 * torch.randn(4, 12) for _ in range(45)]
    exact, single = run("mujoco", actions), run("warp", actions)
    assert sum(dones.sum() for dones in exact[3::4]) >= 8
    for i, (one, other) in enumerate(zip(exact, single, strict=True)):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-3, msg=lambda m, i=i: f"{i}: {m}")
