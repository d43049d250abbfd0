"""The YAM arm, its grip, and the task of lifting a cube."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.env.model import compile_model
from simtrain.sim import EngineCfg, make_engine

WARP = EngineCfg(name="warp", device="cpu")
PULLS = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, -1), (0, 0, 0))  # N


def _task():
    return discover().find("yam-lift-cube").make()


def test_the_arm_weighs_what_it_should_and_its_fingers_move_together():
    model = compile_model(_task())
    arm = model.body_subtreemass[model.body("arm").id]
    assert arm == pytest.approx(3.6401, abs=1e-3)
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    data.ctrl[:] = model.key_ctrl[0]
    data.ctrl[6] = 0.01
    for _ in range(300):
        mujoco.mj_step(model, data)
    left, right = (float(data.joint(f"{side}_finger").qpos[0]) for side in ("left", "right"))
    assert left == pytest.approx(0.01, abs=1e-3)
    assert right == pytest.approx(-left, abs=1e-3)


def test_the_arm_stays_where_it_is_with_zero_actions():
    env = Env(_task(), 2, EngineCfg(threads=1))
    env.reset()
    before = env.bind("qpos")[:, :6].clone()
    for _ in range(50):
        env.step(torch.zeros(2, 7))
    torch.testing.assert_close(env.bind("qpos")[:, :6], before, atol=2e-3, rtol=0.0)


ON_WARP = pytest.param(WARP, marks=[pytest.mark.slow, pytest.mark.timeout(900)])


@pytest.mark.parametrize("engine", [EngineCfg(), ON_WARP])
def test_a_gripped_cube_is_held_while_it_is_pulled_for_five_seconds(engine):
    model = compile_model(_task())
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_kinematics(model, data)
    turn = np.zeros(4)
    mujoco.mju_mat2Quat(turn, data.site("grasp").xmat)
    start = np.array(model.key_qpos[0])
    start[8:] = [*data.site("grasp").xpos, *turn]
    start[6:8] = 0.0205, -0.0205
    sim = make_engine(engine, model, 1, keyframe=0)
    sim.write("qpos", torch.tensor(start, dtype=torch.float32)[None])
    ctrl = torch.tensor(start[:7], dtype=torch.float32)
    ctrl[6] = -0.06
    sim.bind("ctrl")[:] = ctrl.to(sim.device)
    cube, grasp = model.body("cube").id, model.site("grasp").id
    pull = torch.zeros(1, model.nbody, 6)
    places = []
    for force in PULLS:
        pull[0, cube, :3] = torch.tensor(force, dtype=torch.float32)
        sim.write("xfrc_applied", pull)
        sim.step(round(1.0 / model.opt.timestep))
        offset = sim.bind("xpos")[0, cube] - sim.bind("site_xpos")[0, grasp]
        places.append(offset @ sim.bind("site_xmat")[0, grasp].view(3, 3))
    moved = torch.stack(places) - places[0]  # it sinks while the fingers close
    assert (moved.norm(dim=1) < 0.001).all()
    assert (places[0].norm() < 0.02).all()
