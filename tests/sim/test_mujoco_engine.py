import multiprocessing

import mujoco
import numpy as np
import pytest
import torch
from engine_models import MIXED, compile_xml, quadruped

from simtrain.errors import SimulationError
from simtrain.sim.mujoco_engine import MujocoEngine


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    states = []
    for threads in (1, 3):
        engine = MujocoEngine(quadruped(), 8, threads=threads)
        assert engine.threads == threads
        random = torch.Generator().manual_seed(0)
        for _ in range(10):
            engine.bind("ctrl").copy_(torch.rand(8, 12, generator=random) - 0.5)
            engine.step(4)
        states.append(engine.state()["state"])
    assert torch.equal(*states)


@pytest.mark.parametrize("model", [compile_xml(MIXED), quadruped()], ids=["mixed", "quadruped"])
def test_physics_is_mj_step_to_the_last_bit(model) -> None:
    engine = MujocoEngine(model, 2)
    data = [mujoco.MjData(model) for _ in range(2)]
    full_state = mujoco.mjtState.mjSTATE_INTEGRATION
    ctrl = torch.tensor([0.25, -0.5])
    had_contacts = False
    for _ in range(60):
        engine.bind("ctrl")[:, 0] = ctrl
        engine.step(5)
        for env, each in enumerate(data):
            each.ctrl[0] = ctrl[env].item()
            mujoco.mj_step(model, each, nstep=5)
            had_contacts |= each.ncon > 0
    expected = np.empty((2, mujoco.mj_stateSize(model, full_state)))
    for row, each in zip(expected, data, strict=True):
        mujoco.mj_getState(model, each, row, full_state)
    np.testing.assert_array_equal(engine.state()["state"].numpy(), expected)
    assert had_contacts


def test_islands_are_looked_for_where_there_can_be_several() -> None:
    flag = int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    model = quadruped()
    assert MujocoEngine(model, 1).model.opt.disableflags & flag
    assert not model.opt.disableflags & flag
    assert not MujocoEngine(compile_xml(MIXED), 1).model.opt.disableflags & flag


def test_simulations_that_mujoco_warns_of_have_failed_until_they_are_reset() -> None:
    engine = MujocoEngine(compile_xml(MIXED), 4)
    engine.step(2)
    assert not engine.failed.any()
    engine.write("qvel", 1e12, torch.tensor([False, False, True, True]))
    engine.step(5)
    assert engine.failed.tolist() == [False, False, True, True]
    assert "huge value in QVEL at DOF 0" in engine.failure_message()
    assert engine.failure_message() == "its state is not finite"
    engine.reset(torch.tensor([False, False, True, False]))
    engine.step()
    assert engine.failed.tolist() == [False, False, False, True]
    engine.set_state(MujocoEngine(compile_xml(MIXED), 4).state())
    engine.step()
    assert not engine.failed.any()


def test_an_error_names_the_environment() -> None:
    engine = MujocoEngine(compile_xml(MIXED), 4)
    engine.expand("opt.integrator")
    engine.write("opt.integrator", 99, torch.tensor([False, True, True, True]))
    text = r"failed in environment 1, of 3 in all: .*integrator"
    with pytest.raises(SimulationError, match=text):
        engine.step()


def test_mujoco_reads_no_clock_in_a_step() -> None:
    MujocoEngine(quadruped(), 1)
    model = quadruped()
    data = mujoco.MjData(model)
    mujoco.mj_step(model, data)
    assert data.time > 0.0
    assert not any(timer.duration for timer in data.timer)


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_process_is_told_instead_of_waiting_for_ever() -> None:
    engine = MujocoEngine(compile_xml(MIXED), 4, threads=2)
    engine.step()
    reading, writing = multiprocessing.Pipe(duplex=False)

    def step() -> None:
        try:
            engine.step()
        except SimulationError as error:
            writing.send(str(error))

    multiprocessing.get_context("fork").Process(target=step, daemon=True).start()
    assert reading.poll(20.0)
    assert reading.recv().endswith("start it with multiprocessing's spawn")
    engine.step()  # the parent goes on
