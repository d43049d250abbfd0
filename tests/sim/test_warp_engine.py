from __future__ import annotations

from typing import Any

import pytest
import torch
import warp
from engine_models import MIXED, compile_xml
from waiting import RefuseWaiting

from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg
from simtrain.sim.mujoco_engine import MujocoEngine
from simtrain.sim.warp_engine import WarpEngine
from simtrain.sim.warp_model import check_model

WARP = EngineCfg("warp", "cpu")
pytestmark = [pytest.mark.usefixtures("fast_compilation"), pytest.mark.timeout(600)]

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
    with pytest.raises(ConfigError, match=names):
        check_model(compile_xml(MIXED.replace(*change, 1)))


def test_a_supported_model_passes_the_check() -> None:
    check_model(compile_xml(MIXED))


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


def move(engine: WarpEngine) -> list[torch.Tensor]:
    """Use an engine in all ways; the fields that result."""
    fields = [
        engine.bind(field) for field in ("qpos", "qvel", "sensordata", "qacc", "cacc", "xpos")
    ]
    some = torch.tensor([True, False, True], device=engine.device)
    engine.bind("ctrl").fill_(0.3)
    engine.write("qpos", 0.11, index=slice(2, 3))
    for i in range(12):
        engine.step(5)
        if i % 3 == 2:
            engine.reset(some)
            engine.forward()
        if i % 4 == 3:
            engine.expand("body_mass")
            engine.write("body_mass", 2.0 + i, some)
            engine.set_const(some)
    return [field.clone() for field in fields]


def test_replayed_graphs_compute_what_single_launches_do() -> None:
    model = compile_xml(MIXED)
    replaying, launching = (WarpEngine(WARP, model, 3) for _ in range(2))
    launching.graphs.enabled = False
    for replayed, launched in zip(move(replaying), move(launching), strict=True):
        assert torch.equal(replayed, launched)
    assert replaying.graphs.enabled


def test_without_graphs_it_says_so_once_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoCapture:
        def __init__(self, **options: Any) -> None:
            raise RuntimeError("the driver is too old")

    model = compile_xml(MIXED)
    expected = move(WarpEngine(WARP, model, 3))
    monkeypatch.setattr(warp, "ScopedCapture", NoCapture)
    with pytest.warns(RuntimeWarning, match="without graphs, and slower: the driver") as warned:
        moved = move(WarpEngine(WARP, model, 3))
    assert len(warned) == 1
    for field, same in zip(moved, expected, strict=True):
        assert torch.equal(field, same)


def test_nothing_inside_an_environment_step_waits_for_the_device() -> None:
    engine = WarpEngine(WARP, compile_xml(MIXED), 3)
    engine.expand("dof_damping")
    some = torch.tensor([True, False, True])
    joints = torch.tensor([0, 6])
    with RefuseWaiting():
        for _ in range(3):
            engine.bind("ctrl").fill_(0.1)
            engine.step(2)
            engine.reset(some)
            engine.write("qvel", torch.zeros(3, 2), some, joints)
            engine.write("dof_damping", 0.5, some)
            engine.forward()
