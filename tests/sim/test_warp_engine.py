from typing import Any

import mujoco
import mujoco_warp
import numpy as np
import pytest
import torch
import warp
from engine_models import CARTPOLE, FALLING_BOX, MIXED, PENDULUMS, compile_xml, quadruped

from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg, make_engine
from simtrain.sim.mujoco_engine import MujocoEngine
from simtrain.sim.warp_engine import WarpEngine
from simtrain.sim.warp_model import (
    BufferSizes,
    check_memory,
    check_model,
    find_sizes,
    read_overflow,
)

WARP = EngineCfg("warp", "cpu")
pytestmark = pytest.mark.usefixtures("fast_compilation")

FLEX = """
<flexcomp name="cloth" type="grid" count="3 3 1" spacing=".1 .1 .1" dim="2" mass="1" radius=".01">
  <edge equality="true"/>
</flexcomp>
"""


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (("<option", '<option solver="PGS"'), "mjSOL_PGS"),
        (("<option", '<option><flag sleep="enable"/></option><option'), "'sleep'"),
        (("</worldbody>", FLEX + "</worldbody>"), "flexes"),
        (('name="tip" objtype', 'name="tip" nsample="3" delay=".01" objtype'), "a delay"),
    ],
)
def test_unsupported_features_are_named_before_anything_is_built(change, names) -> None:
    check_model(compile_xml(MIXED))
    with pytest.raises(ConfigError, match=names):
        check_model(compile_xml(MIXED.replace(*change, 1)))  # type: ignore[call-arg]


def test_a_dense_jacobian_too_large_for_warp_is_sparse() -> None:
    link = '<body pos="0.1 0 0"><joint axis="0 1 0"/><geom size="0.01" mass="0.1"/>'
    chain = f"{link * 61}{'</body>' * 61}"
    option = '<option jacobian="dense" gravity="0 0 0"/>'
    check_model(compile_xml(f"<mujoco>{option}<worldbody>{chain}</worldbody></mujoco>"))


def test_fields_that_mujoco_warp_does_not_have_are_refused_with_near_misses() -> None:
    engine = WarpEngine(WARP, compile_xml(MIXED), 2)
    with pytest.raises(ValueError, match=r"no MjData field 'xiquat' .*'xquat'"):
        engine.bind("xiquat")
    with pytest.raises(ValueError, match=r"shares 'geom_contype'.* geom_friction"):
        engine.expand("geom_contype")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_warp_cannot_use_is_refused() -> None:
    with pytest.raises(ConfigError, match="no CUDA driver that is new enough"):
        WarpEngine(EngineCfg("warp", "cuda:0"), compile_xml(MIXED), 1)


def test_the_state_of_another_engine_is_refused() -> None:
    engines = WarpEngine(WARP, compile_xml(MIXED), 2), MujocoEngine(compile_xml(MIXED), 2)
    for one, other in (engines, engines[::-1]):
        with pytest.raises(ValueError, match="of another engine"):
            one.set_state(other.state())


def steps(engine: WarpEngine) -> None:
    for _ in range(4):
        engine.step(2)


def test_without_graphs_it_says_so_once_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoCapture:
        def __init__(self, **options: Any) -> None:
            raise RuntimeError("the driver is too old")

    model = compile_xml(MIXED)
    expected, engine = (WarpEngine(WARP, model, 3) for _ in range(2))
    steps(expected)
    monkeypatch.setattr(warp, "ScopedCapture", NoCapture)
    with pytest.warns(RuntimeWarning, match="without graphs, and slower: the driver") as warned:
        steps(engine)
    assert len(warned) == 1
    assert torch.equal(engine.bind("qpos"), expected.bind("qpos"))


@pytest.mark.slow
def test_rails_that_fall_on_the_edges_of_a_height_field_are_not_thrown() -> None:
    """MuJoCo Warp's depths are wrong there; without a filter they are turned twice as fast."""
    spec = mujoco.MjSpec()
    spec.option.timestep = 0.005
    heights = np.zeros((17, 17))
    heights[:, 8:], heights[8:, :4], heights[12:, 12:] = 0.6, 0.4, 1.0
    size = [0.8, 0.8, 0.1, 0.1]
    spec.add_hfield(name="steps", size=size, nrow=17, ncol=17, userdata=heights.ravel())
    spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_HFIELD, hfieldname="steps")
    rail = spec.worldbody.add_body(pos=[0, 0, 0.2])
    rail.add_freejoint()
    rail.add_geom(type=mujoco.mjtGeom.mjGEOM_CAPSULE, size=[0.012, 0.09, 0])
    rail.explicitinertial, rail.mass, rail.inertia = True, 5.0, [0.05] * 3
    model = spec.compile()

    qpos = torch.full((300, 7), 0.2)
    qpos[:, :2] = torch.rand(300, 2) * 0.8 - 0.4
    qpos[:, 3:] = torch.nn.functional.normalize(torch.randn(300, 4))
    fastest = []
    for engine in (make_engine(EngineCfg(name), model, 300) for name in ("mujoco", "warp")):
        engine.write("qpos", qpos)
        engine.write("qvel", -2.0, index=slice(2, 3))
        engine.forward()
        speed = torch.zeros(300)
        for _ in range(60):
            engine.step()
            speed = torch.maximum(speed, engine.bind("qvel")[:, 3:].norm(dim=1))
        fastest.append(float(speed.max()))
    assert 10.0 < fastest[1] < 1.3 * fastest[0]


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
    """MuJoCo Warp moves like MuJoCo, from the same states and by the same controls."""
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


@pytest.mark.parametrize(
    ("model", "contacts", "constraints"),
    [
        (compile_xml(FALLING_BOX), (4, 19), (16, 999)),
        (compile_xml(CARTPOLE), (1, 999), (1, 16)),  # limits that it did not meet
        (quadruped(), (8, 999), (1, 999)),
    ],
    ids=["box", "cart-pole", "quadruped"],
)
def test_the_probe_leaves_room_and_always_finds_the_same(model, contacts, constraints) -> None:
    sizes = find_sizes(model)
    assert contacts[0] <= sizes.max_contacts <= contacts[1]
    assert constraints[0] <= sizes.max_constraints <= constraints[1]
    assert find_sizes(model) == sizes


def test_the_probe_leaves_room_for_friction_loss_that_is_added_later() -> None:
    """Twelve joints without friction loss, limits and contacts have no constraints before."""
    link = '<body pos="0 0 -0.1"><joint axis="0 1 0"/><geom size="0.01" mass="0.1"/>'
    chain = f"{link * 12}{'</body>' * 12}"
    model = compile_xml(
        f'<mujoco><option><flag contact="disable"/></option><worldbody>{chain}</worldbody></mujoco>'
    )
    engine = WarpEngine(WARP, model, 2)
    engine.expand("dof_frictionloss")
    engine.write("dof_frictionloss", 0.5)
    engine.write("qvel", 0.1)
    engine.step(2)
    overflow = engine.overflow()
    assert overflow is not None
    assert overflow.num_envs == 0, overflow


def test_too_many_environments_for_the_memory_are_refused() -> None:
    model, sizes, free = compile_xml(MIXED), BufferSizes(10, 32), 10_000_000
    with pytest.raises(ConfigError, match=r"use --num-envs (\d+) or fewer") as refused:
        check_memory(model, 100_000, sizes, free)
    most = int(refused.value.args[0].split("--num-envs ")[1].split()[0])
    assert free / 50_000 < most < free / 5_000
    check_memory(model, most, sizes, free)
    with pytest.raises(ConfigError, match=f"use --num-envs {most} or fewer"):
        check_memory(model, most + 1, sizes, free)


def test_overflow_names_the_flag_and_a_value() -> None:
    model = compile_xml(MIXED)
    engine = WarpEngine(WARP, model, 2, max_contacts=1, max_constraints=4)
    engine.write("qpos", 0.095, index=slice(2, 3))
    engine.step(3)
    overflow = engine.overflow()
    assert overflow.num_envs == 2
    assert "--env.sim.max-contacts" in overflow.messages
    engine.reset()
    engine.step()
    assert engine.overflow().messages == {}  # it was told
    engine = WarpEngine(WARP, model, 2, max_contacts=8, max_constraints=4)
    engine.write("qpos", 0.095, torch.tensor([False, True]), slice(2, 3))
    engine.step(3)
    overflow = engine.overflow()
    assert overflow.num_envs == 1
    assert overflow.messages == {
        "--env.sim.max-constraints": "rows of constraints were dropped in 1 environments: there is "
        "room for 4 in each, and 16 were wanted; use --env.sim.max-constraints 25"
    }


def test_overflow_without_a_flag_says_what_mends_it() -> None:
    kinds = mujoco_warp.OverflowType
    bits = torch.tensor([0, int(kinds.HFIELD), int(kinds.ITERATIONS)])
    overflow = read_overflow(bits, BufferSizes(8, 8), BufferSizes(0, 0))
    assert overflow.num_envs == 1
    assert list(overflow.messages) == ["hfield"]
    assert "50 or more cells of a height field" in overflow.messages["hfield"]
    assert "(in 1 environments)" in overflow.messages["hfield"]
