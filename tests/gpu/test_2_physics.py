"""The warp engine on a GPU, or without one on the CPU. The contract tests run there as well."""

from contextlib import nullcontext

import mujoco
import pytest
import torch
import warp as wp
from engine_models import MIXED, compile_xml
from gpu_or_cpu import DEVICE, HAS_GPU, MARKS, no_waiting, synchronize, warp

from simtrain.sim import EngineCfg
from simtrain.sim.warp_engine import WarpEngine

pytestmark = MARKS

EXACT = warp(deterministic=True)
FIELDS = ("qpos", "qvel", "sensordata", "qacc", "cacc", "xpos")


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return compile_xml(MIXED)


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


def test_nothing_inside_an_environment_step_waits_for_the_device(model) -> None:
    engine = WarpEngine(warp(), model, 64)
    some = torch.arange(64, device=DEVICE) % 3 == 0
    joints = torch.tensor([0, 6], device=DEVICE)
    engine.expand("dof_damping")
    for i in range(6):
        synchronize()
        with no_waiting() if i >= 3 else nullcontext():
            engine.bind("ctrl").fill_(0.1)
            engine.step(4)
            engine.reset(some)
            engine.write("qvel", torch.zeros(64, 2, device=DEVICE), some, joints)
            engine.write("dof_damping", 0.5, some)
            engine.forward()


def test_it_works_on_pytorchs_current_stream(model) -> None:
    expected = move(WarpEngine(EXACT, model, 16))
    engine = WarpEngine(EXACT, model, 16)
    synchronize()
    with torch.cuda.stream(torch.cuda.Stream()) if HAS_GPU else nullcontext():
        on_time = move(engine)
    synchronize()
    for field, same in zip(on_time, expected, strict=True):
        # To the last bit, but on a GPU: MuJoCo Warp does not sort contacts there yet.
        assert torch.equal(field, same) or HAS_GPU
        torch.testing.assert_close(field, same)


def test_two_engines_do_not_touch_each_others_memory(model) -> None:
    one, other = (WarpEngine(warp(), model, 32) for _ in range(2))
    move(one)
    fields = [other.bind(field) for field in FIELDS]
    other.step(3)
    before = [field.clone() for field in fields]
    addresses = {one.bind(field).data_ptr() for field in FIELDS}
    assert addresses.isdisjoint(field.data_ptr() for field in fields)
    move(one)
    for field, same in zip(fields, before, strict=True):
        assert torch.equal(field, same)


@pytest.mark.gpu
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


def test_memory_does_not_grow_with_the_steps(model) -> None:
    def used() -> int:
        """Bytes of this process alone: others may use the GPU at the same time."""
        synchronize()
        if not HAS_GPU:
            return 0
        return wp.get_mempool_used_mem_current("cuda:0") + torch.cuda.memory_allocated()

    engine = WarpEngine(warp(), model, 256 if HAS_GPU else 2)
    move(engine, steps=30)
    before = used()
    move(engine, steps=1000 if HAS_GPU else 30)
    assert used() - before < 2**21
