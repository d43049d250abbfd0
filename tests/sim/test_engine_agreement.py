"""MuJoCo Warp moves like MuJoCo: same states and controls, on both engines."""

from __future__ import annotations

import pytest
import torch
from engine_models import CARTPOLE, FALLING_BOX, MIXED, PENDULUMS, compile_xml

from simtrain.sim import EngineCfg, make_engine

pytestmark = pytest.mark.usefixtures("fast_compilation")

MODELS = {
    "cart-pole": CARTPOLE,
    "pendulums": PENDULUMS.format(integrator="Euler"),
    "pendulums, implicitfast": PENDULUMS.format(integrator="implicitfast"),
    "pendulums, RK4": PENDULUMS.format(integrator="RK4"),
    "pendulums, discrete": PENDULUMS.format(integrator="discrete"),
    "falling box": FALLING_BOX,
    "box and arm": MIXED,
}
SUBSTEPS = 5


@pytest.mark.parametrize("name", MODELS)
def test_states_and_sensors_agree(name: str) -> None:
    model = compile_xml(MODELS[name])
    engines = [make_engine(EngineCfg("mujoco"), model, 3), make_engine(EngineCfg("warp"), model, 3)]
    random = torch.Generator().manual_seed(0)
    start = 0.1 * torch.randn(3, model.nv, generator=random)
    for engine in engines:
        engine.write("qvel", start)
        engine.forward()
    fields = ("qpos", "qvel", "sensordata")
    bound = [[engine.bind(field) for field in fields] for engine in engines]
    for step in range(1, 21):
        ctrl = 2 * torch.rand(3, model.nu, generator=random) - 1
        for engine in engines:
            engine.bind("ctrl").copy_(ctrl)
            engine.step(SUBSTEPS)
        if step in (1, 20):
            tolerance = 1e-4 if step == 1 else 1e-2
            for field, exact, single in zip(fields, *bound, strict=True):
                scale = exact.abs().max().clamp(min=1.0).item()
                torch.testing.assert_close(
                    single,
                    exact,
                    rtol=tolerance,
                    atol=tolerance * scale,
                    msg=lambda text, field=field, step=step: f"{field} after {step} steps: {text}",
                )
