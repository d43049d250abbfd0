from __future__ import annotations

from typing import Any

import mujoco_warp
import pytest
import torch
import warp
from engine_models import MIXED, compile_xml
from waiting import RefuseWaiting

from simtrain.errors import ConfigError
from simtrain.sim import warp_kernels
from simtrain.sim.mujoco_engine import MujocoEngine
from simtrain.sim.warp_engine import WarpEngine
from simtrain.sim.warp_model import bytes_per_env, check_memory, check_model

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
    engine = WarpEngine(compile_xml(MIXED), 2, device="cpu")
    with pytest.raises(ValueError, match=r"no MjData field 'xiquat' .*'xquat'"):
        engine.bind("xiquat")
    with pytest.raises(ValueError, match=r"shares 'geom_contype'.* geom_friction"):
        engine.expand("geom_contype")


def test_too_many_environments_for_the_memory_are_refused() -> None:
    each = bytes_per_env(compile_xml(MIXED), 10, 32)
    assert 5_000 < each < 50_000
    check_memory(100, each, 100 * each)
    with pytest.raises(ConfigError, match="use --num-envs 100 or fewer"):
        check_memory(101, each, 100 * each)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_warp_cannot_use_is_refused() -> None:
    with pytest.raises(ConfigError, match="no CUDA driver that is new enough"):
        WarpEngine(compile_xml(MIXED), 1, device="cuda:0")


def test_the_state_of_another_engine_is_refused() -> None:
    engines = WarpEngine(compile_xml(MIXED), 2, device="cpu"), MujocoEngine(compile_xml(MIXED), 2)
    for one, other in (engines, engines[::-1]):
        with pytest.raises(ValueError, match="of another engine"):
            one.set_state(other.state())


def test_overflow_names_the_flag_and_a_value() -> None:
    model = compile_xml(MIXED)
    engine = WarpEngine(model, 2, device="cpu", max_contacts=1, max_constraints=4)
    engine.write("qpos", 0.095, index=slice(2, 3))
    engine.step(3)
    overflow = engine.overflow()
    assert overflow.num_envs == 2
    assert overflow.contacts
    assert "--env.sim.max-contacts" in overflow.messages()
    room = WarpEngine(model, 2, device="cpu", max_contacts=8, max_constraints=4)
    room.write("qpos", 0.095, torch.tensor([False, True]), slice(2, 3))
    room.step(3)
    overflow = room.overflow()
    assert (overflow.num_envs, overflow.contacts, overflow.constraints) == (1, False, True)
    assert overflow.constraints_seen == 16
    assert overflow.messages() == {
        "--env.sim.max-constraints": "rows of constraints were dropped in 1 environments: there is "
        "room for 4 in each, and 16 were wanted; use --env.sim.max-constraints 25"
    }


def test_overflow_is_forgotten_once_it_was_told() -> None:
    engine = WarpEngine(compile_xml(MIXED), 2, device="cpu", max_contacts=1)
    engine.write("qpos", 0.095, index=slice(2, 3))
    engine.step()
    assert engine.overflow().messages()
    engine.reset()
    engine.step()
    assert engine.overflow().messages() == {}


def test_overflow_without_a_flag_says_what_mends_it() -> None:
    engine = WarpEngine(compile_xml(MIXED), 3, device="cpu")
    bits = warp.to_torch(engine._data.overflow)
    bits[1] |= int(mujoco_warp.OverflowType.HFIELD)  # as the kernels do
    bits[2] |= int(mujoco_warp.OverflowType.ITERATIONS)
    overflow = engine.overflow()
    assert (overflow.num_envs, overflow.contacts, overflow.constraints) == (1, False, False)
    assert list(overflow.messages()) == ["hfield"]
    assert "50 or more cells of a height field" in overflow.messages()["hfield"]
    assert "(in 1 environments)" in overflow.messages()["hfield"]
    assert engine.overflow().messages() == {}


def test_its_own_kernels_compile_for_gpus(tmp_path) -> None:
    """Warp's compiler for CUDA needs no GPU."""
    warp.compile_aot_module(warp_kernels, arch=[75, 90], module_dir=tmp_path, use_ptx=True)
    assert {path.suffixes[-2] for path in tmp_path.glob("*.ptx")} == {".sm75", ".sm90"}


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
    replaying, launching = (WarpEngine(model, 3, device="cpu") for _ in range(2))
    launching._graphs.enabled = False
    for replayed, launched in zip(move(replaying), move(launching), strict=True):
        assert torch.equal(replayed, launched)
    assert replaying._graphs._graphs[("step", 5)] is not None


def test_without_graphs_it_says_so_once_and_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoCapture:
        def __init__(self, **options: Any) -> None:
            raise RuntimeError("the driver is too old")

    model = compile_xml(MIXED)
    expected = move(WarpEngine(model, 3, device="cpu"))
    monkeypatch.setattr(warp, "ScopedCapture", NoCapture)
    with pytest.warns(RuntimeWarning, match="without graphs, and slower: the driver") as warned:
        moved = move(WarpEngine(model, 3, device="cpu"))
    assert len(warned) == 1
    for field, same in zip(moved, expected, strict=True):
        assert torch.equal(field, same)


def test_nothing_inside_an_environment_step_waits_for_the_device() -> None:
    engine = WarpEngine(compile_xml(MIXED), 3, device="cpu")
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
