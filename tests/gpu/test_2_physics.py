"""What only a GPU can show about the warp engine. The contract tests run there as well."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import pytest
import torch

from simtrain.sim import EngineCfg, make_engine
from simtrain.sim.warp_engine import WarpEngine

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

MODEL = """
<mujoco>
  <option timestep="0.002"/>
  <worldbody>
    <geom type="plane" size="5 5 .1"/>
    <body pos="0 0 .3">
      <freejoint/>
      <geom type="box" size=".1 .1 .1" mass="1"/>
      <site name="imu"/>
    </body>
    <body pos="2 0 1">
      <joint name="hinge" axis="0 1 0" damping=".1"/>
      <geom type="capsule" size=".02" fromto="0 0 0 .3 0 0" mass=".5"/>
    </body>
  </worldbody>
  <actuator><motor joint="hinge"/></actuator>
  <sensor><accelerometer site="imu"/><velocimeter site="imu"/></sensor>
</mujoco>
"""
CUDA = EngineCfg("warp", "cuda")
EXACT = EngineCfg("warp", "cuda", deterministic=True)
FIELDS = ("qpos", "qvel", "sensordata", "qacc", "xpos")


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(MODEL)


@pytest.fixture
def no_synchronization() -> Iterator[None]:
    """PyTorch fails instead of waiting for the GPU."""
    yield
    torch.cuda.set_sync_debug_mode("default")


def move(engine: WarpEngine, steps: int = 20) -> list[torch.Tensor]:
    """Use an engine in all ways; the fields that result."""
    fields = [engine.bind(field) for field in FIELDS]
    some = torch.arange(engine.num_envs, device=engine.device) % 2 == 0
    engine.expand("body_mass")
    engine.bind("ctrl").fill_(0.3)
    engine.write("qpos", 0.12, index=slice(2, 3))
    for i in range(steps):
        engine.step(5)
        if i % 7 == 6:
            engine.reset(some)
            engine.forward()
        if i % 9 == 8:
            engine.write("body_mass", 2.0 + i, some)
            engine.set_const(some)
    return [field.clone() for field in fields]


def test_replayed_graphs_compute_what_single_launches_do(model) -> None:
    """Sums in a fixed order, or chance would set them apart."""
    replaying, launching = (WarpEngine(EXACT, model, 64) for _ in range(2))
    launching.graphs.enabled = launching.graphs.conditional = False
    for replayed, launched in zip(move(replaying), move(launching), strict=True):
        torch.testing.assert_close(replayed, launched)
    assert replaying.graphs.enabled
    assert replaying.graphs.conditional


def test_it_moves_like_mujoco(model) -> None:
    engines = (
        make_engine(EngineCfg("mujoco"), model, 8),
        make_engine(EngineCfg("warp", "cuda"), model, 8),
    )
    bound = [[engine.bind(field) for field in ("qpos", "qvel")] for engine in engines]
    for engine in engines:
        engine.bind("ctrl").fill_(0.4)
        engine.step(5)
        engine.step(5)
        engine.step(5)
    for exact, single in zip(*bound, strict=True):
        torch.testing.assert_close(single.cpu(), exact, rtol=1e-4, atol=1e-4)


def test_nothing_inside_an_environment_step_waits_for_the_gpu(model, no_synchronization) -> None:
    engine = WarpEngine(CUDA, model, 64)
    some = torch.arange(64, device="cuda") % 3 == 0
    joints = torch.tensor([0, 6], device="cuda")
    engine.expand("dof_damping")
    for i in range(6):
        if i == 3:
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        engine.bind("ctrl").fill_(0.1)
        engine.step(4)
        engine.reset(some)
        engine.write("qvel", torch.zeros(64, 2, device="cuda"), some, joints)
        engine.write("dof_damping", 0.5, some)
        engine.forward()


def test_it_works_on_pytorchs_current_stream(model) -> None:
    expected = move(WarpEngine(EXACT, model, 16))
    engine = WarpEngine(EXACT, model, 16)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        moved = move(engine)
        on_time = [field.clone() for field in moved]
    torch.cuda.synchronize()
    for field, same in zip(on_time, expected, strict=True):
        torch.testing.assert_close(field, same)


def test_deterministic_runs_are_equal_to_the_last_bit(model) -> None:
    first, second = (move(WarpEngine(EXACT, model, 64)) for _ in range(2))
    for field, same in zip(first, second, strict=True):
        assert torch.equal(field, same)


def test_two_engines_do_not_touch_each_others_memory(model) -> None:
    one, other = (WarpEngine(CUDA, model, 32) for _ in range(2))
    move(one)
    fields = [other.bind(field) for field in FIELDS]
    other.step(3)
    before = [field.clone() for field in fields]
    addresses = {one.bind(field).data_ptr() for field in FIELDS}
    assert addresses.isdisjoint(field.data_ptr() for field in fields)
    move(one)
    for field, same in zip(fields, before, strict=True):
        assert torch.equal(field, same)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_an_engine_uses_no_other_gpu(model) -> None:
    move(WarpEngine(EngineCfg("warp", "cuda:0"), model, 32))
    torch.cuda.synchronize(0)
    before = torch.cuda.mem_get_info(0)[0]
    engine = WarpEngine(EngineCfg("warp", "cuda:1"), model, 4096)
    move(engine)
    assert engine.bind("qpos").device == torch.device("cuda:1")
    torch.cuda.synchronize(1)
    assert torch.cuda.mem_get_info(0)[0] == before


def test_memory_does_not_grow_over_a_thousand_steps(model) -> None:
    engine = WarpEngine(CUDA, model, 256)
    move(engine, steps=30)
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    move(engine, steps=1000)
    torch.cuda.synchronize()
    assert free - torch.cuda.mem_get_info()[0] < 2**21
