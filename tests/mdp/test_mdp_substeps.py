"""Contacts at every physics step of a control step, against MuJoCo's own."""

from __future__ import annotations

import mujoco
import pytest
import torch
from tiny_task import idle, tiny_env
from walker import CONTACTS, contact_rows, made, walker_env

from simtrain import EventTermCfg, ObservationTermCfg, mdp

BALL = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="0 0 1"/>
    <body name="ball" pos="0 0 0.1">
      <freejoint/> <geom name="ball" size="0.05" mass="1" solref="-100000 -5" priority="1"/>
    </body>
    <body pos="0 3 1">
      <joint name="left_slide" type="slide" axis="1 0 0"/> <geom size="0.1" mass="1"/>
    </body>
  </worldbody>
  <actuator><motor joint="left_slide"/></actuator>
  <sensor>
    <contact name="ball" geom2="ball" data="found force" reduce="netforce"/>
  </sensor>
</mujoco>
"""
TIMESTEP, DECIMATION = 0.002, 10


def test_a_ball_that_bounces_between_two_control_steps_is_seen() -> None:
    terms = {
        "history": ObservationTermCfg(mdp.foot_contact_history, sensors="ball"),
        "air_time": ObservationTermCfg(mdp.foot_air_time, sensors="ball", substeps=True),
        "last": ObservationTermCfg(mdp.foot_contact, sensors="ball"),
    }
    options = {"timestep": TIMESTEP, "decimation": DECIMATION, "episode_length_s": 10.0}
    model = mujoco.MjSpec.from_string
    env = tiny_env(2, model=lambda: model(BALL), observations={"actor": terms}, **options)
    data = mujoco.MjData(env.model)
    air_time, unseen = 0.0, 0
    for _ in range(30):
        found = []
        for _ in range(DECIMATION):
            mujoco.mj_step(env.model, data)
            found.append(float(data.sensordata[0] > 0.0))
            air_time = 0.0 if found[-1] else air_time + TIMESTEP
        seen = idle(env)[0]["actor"]
        assert seen[1, :DECIMATION].tolist() == found
        assert seen[1, DECIMATION].item() == pytest.approx(air_time, abs=1e-5)
        assert seen[1, DECIMATION + 1].item() == found[-1]
        unseen += any(found) and not found[-1]
        assert torch.equal(env.bind("qpos")[1], torch.tensor(data.qpos).float())
    assert unseen > 0


def test_landings_within_a_control_step_are_rewarded() -> None:
    env = walker_env()
    env.command("velocity").copy_(torch.tensor([[0.5, 0.0, 0.0]]))
    params = {"sensors": CONTACTS, "command": "velocity", "threshold": 0.01}
    term = made(env, mdp.feet_air_time, substeps=True, **params)
    feet = contact_rows(env.substeps("sensordata"))[0, :, :, 0]
    feet[:, 0], feet[:, 1] = torch.tensor([1.0, 0.0, 0.0, 0.0]), 1.0
    assert term(env).item() == 0.0
    # Down after 15 ms and a step of 5 ms, up, and down again after another step.
    feet[:, 0] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    assert term(env).item() == pytest.approx((0.02 - 0.01) + (0.005 - 0.01), abs=1e-6)


def test_a_short_blow_is_an_illegal_contact() -> None:
    env = walker_env()
    last, every = (
        made(env, mdp.illegal_contact, sensors=CONTACTS, threshold=10.0, substeps=substeps)
        for substeps in (False, True)
    )
    rows = contact_rows(env.substeps("sensordata"))
    rows[0, 1, 1] = torch.tensor([1.0, 0.0, 6.0, 9.0])
    assert every(env).tolist() == [True]
    assert last(env).tolist() == [False]
    rows[0, 1, 1, 2] = 4.0
    assert every(env).tolist() == [False]


def test_a_new_episode_begins_without_contacts() -> None:
    env = walker_env(
        observations={
            "actor": {"h": ObservationTermCfg(mdp.foot_contact_history, sensors=CONTACTS)}
        },
        events={"still": EventTermCfg(mdp.reset_joints_uniform, "reset", joints=".*_hinge")},
    )
    for _ in range(20):
        idle(env)
    assert env.substeps("sensordata").any()
    assert not env.reset()["actor"].any()
