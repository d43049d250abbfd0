from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import pytest
import torch
import warp
from engine_models import MIXED, compile_xml

from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg, make_engine
from simtrain.sim.mujoco_engine import MujocoEngine
from simtrain.sim.warp_engine import WarpEngine
from simtrain.sim.warp_model import check_model

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
