"""Places in frames, goals and grasps, against MuJoCo's own numbers and by physics."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch
from tiny_task import tiny_task

from simtrain import (
    ActuatorActionCfg,
    CommandTermCfg,
    EventTermCfg,
    MetricTermCfg,
    ObservationTermCfg,
    mdp,
)
from simtrain.env.commands import Sphere
from simtrain.env.env import Env
from simtrain.env.model import check_task
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg

MODEL = """
<mujoco>
  <option timestep="0.005"/>
  <worldbody>
    <geom name="table" type="plane" size="0 0 1"/>
    <body name="base" pos="0.1 0.2 0.3" euler="10 20 30">
      <joint name="turn" axis="0 1 0"/> <geom size="0.02" contype="0" conaffinity="0"/>
      <site name="hand" pos="0.1 0 0.2" euler="0 40 50"/>
    </body>
    <body name="left" pos="0 0.06 0.5">
      <joint name="left" type="slide" axis="0 -1 0"/>
      <geom name="left" type="box" size="0.02 0.01 0.02" mass="0.1"/>
    </body>
    <body name="right" pos="0 -0.06 0.5">
      <joint name="right" type="slide" axis="0 1 0"/>
      <geom name="right" type="box" size="0.02 0.01 0.02" mass="0.1"/>
    </body>
    <body name="cube" pos="0 0 0.5">
      <freejoint/> <geom name="cube" type="box" size="0.02 0.02 0.02" mass="0.05"/>
    </body>
    <body name="ball" pos="1 0 0.5"> <freejoint/> <geom size="0.02" mass="0.05"/> </body>
  </worldbody>
  <actuator>
    <motor name="turn" joint="turn"/> <motor name="left" joint="left"/>
    <motor name="right" joint="right"/>
  </actuator>
  <sensor>
    <contact name="left_cube" geom1="left" geom2="cube" data="found force" reduce="netforce"/>
    <contact name="right_cube" geom1="right" geom2="cube" data="found force" reduce="netforce"/>
    <contact name="right_found" geom1="right" geom2="cube" data="found"/>
  </sensor>
</mujoco>
"""
CPU = EngineCfg(threads=1)
GOAL = CommandTermCfg(
    mdp.UniformPositionCommand, (1e6, 1e6), x=(0.0, 0.1), y=(-0.2, 0.2), z=(0.5, 0.9)
)


def _cfg(**more):
    observed = {"actor": {"joints": ObservationTermCfg(mdp.joint_pos, joints="turn")}}
    return tiny_task(
        **{"observations": observed, **more},
        model=lambda: mujoco.MjSpec.from_string(MODEL),
        commands={"goal": GOAL},
        actions={"all": ActuatorActionCfg("turn|left|right")},
    )


def _env(num_envs=3, engine=CPU, **more):
    env = Env(_cfg(**more), num_envs, engine, metrics=True)
    env.reset()
    return env


@pytest.mark.usefixtures("fast_compilation")
@pytest.mark.parametrize("engine", [CPU, EngineCfg(name="warp", device="cpu")])
def test_places_are_seen_from_frames_as_mujoco_has_them(engine):
    frame = {"frame": "hand"}
    offset = {"frame": "base", "origin": "cube"}
    env = _env(engine=engine, observations={"actor": {
        "cube": ObservationTermCfg(mdp.position_in_frame, places=("cube", "left"), **frame),
        "ori": ObservationTermCfg(mdp.orientation_in_frame, places="cube", **frame),
        "goal": ObservationTermCfg(mdp.goal_in_frame, command="goal", **frame),
        "hand": ObservationTermCfg(mdp.position_in_frame, places="hand", frame="base"),
        "offset": ObservationTermCfg(mdp.goal_in_frame, command="goal", **offset),
        "world": ObservationTermCfg(mdp.position_in_frame, places="cube"),
    }})  # fmt: skip
    env.sim.write("qpos", torch.randn(env.num_envs, env.model.nq))
    env.sim.forward()
    seen = env.observations.compute()["actor"]
    for row in range(env.num_envs):
        data = mujoco.MjData(env.model)
        data.qpos[:] = env.bind("qpos")[row].numpy()
        mujoco.mj_forward(env.model, data)
        at, turn = data.site("hand").xpos, data.site("hand").xmat.reshape(3, 3)
        base, goal = data.body("base"), env.command("goal")[row].numpy()
        expected = [
            *(turn.T @ (data.body("left").xpos - at)), *(turn.T @ (data.body("cube").xpos - at)),
            *(turn.T @ data.body("cube").xmat.reshape(3, 3))[:, :2].ravel(),
            *(turn.T @ (goal - at)),
            *(base.xmat.reshape(3, 3).T @ (at - base.xpos)),
            *(base.xmat.reshape(3, 3).T @ (goal - data.body("cube").xpos)), *data.body("cube").xpos,
        ]  # fmt: skip
        np.testing.assert_allclose(seen[row], expected, atol=1e-5)


def _pressed(left: float, right: float, **more):
    """Whether the cube is grasped after pads have pressed on it for 0.5 s, N each."""
    terms = {"grasped": MetricTermCfg(mdp.is_grasped, sensors=".*_cube", **more)}
    env = _env(metrics=terms, episode_length_s=1.0)
    for _ in range(round(0.5 / env.step_dt)):
        env.step(torch.tensor([[0.0, left, right]] * env.num_envs))
    return env.metrics.values[:, 0].tolist()


def test_a_cube_is_grasped_between_two_pads_that_press_and_not_by_one():
    assert _pressed(3.0, 3.0) == [1.0] * 3
    assert _pressed(0.0, 0.0) == [0.0] * 3
    assert _pressed(1.0, 0.0) == [0.0] * 3
    assert _pressed(3.0, 3.0, force=5.0) == [0.0] * 3


@pytest.mark.parametrize(
    ("sensors", "message"),
    [
        ("left_cube", "between two pads or more; left_cube is the only sensor"),
        ("left_cube|right_found", "'right_found' is no <contact"),
    ],
)
def test_a_sensor_that_cannot_tell_of_a_grasp_is_told(sensors, message):
    grasped = MetricTermCfg(mdp.is_grasped, sensors=sensors)
    with pytest.raises(ConfigError, match=message):
        check_task(_cfg(metrics={"grasped": grasped}))


def test_a_goal_is_within_its_bounds_drawn_by_mask_and_shown_as_a_sphere():
    env = _env(64)
    goal = env.command("goal")
    low, high = env.commands.terms["goal"].bounds()
    assert ((goal >= low) & (goal <= high)).all()
    assert (goal.std(dim=0) > 0.2 * (high - low)).all()
    before, mask = goal.clone(), torch.arange(64) < 5
    env.commands.terms["goal"].resample(mask)
    assert torch.equal((goal != before).any(dim=1), mask)
    (sphere,) = env.commands.terms["goal"].markers(7)
    assert isinstance(sphere, Sphere)
    assert sphere.center == tuple(goal[7].tolist())


def test_a_place_is_at_its_goal_after_it_has_been_there_for_a_time():
    parameters = {"command": "goal", "place": "cube", "distance": 0.05, "duration_s": 0.09}
    env = _env(2, metrics={"success": MetricTermCfg(mdp.at_goal, **parameters)})
    steps = 5  # of 0.02 s: no less than it says
    goal, success = env.command("goal"), env.metrics.terms[0]
    goal[0], goal[1] = env.bind("xpos")[0, env.model.body("cube").id], 1.0
    assert [success().tolist() for _ in range(steps)][-2:] == [[0.0, 0.0], [1.0, 0.0]]
    goal[0] += 0.06
    assert success().tolist() == [0.0, 0.0]


def test_bodies_that_move_freely_are_reset_by_name_each_in_its_place():
    reset = EventTermCfg(
        mdp.reset_root_state_uniform,
        mode="reset",
        bodies="cube|ball",
        pose_range={"x": (0.1, 0.2), "yaw": (0.5, 0.5)},
    )
    env = _env(32, events={"reset": reset})
    cube, ball = env.bind("qpos")[:, 3:].split(7, dim=1)
    assert ((cube[:, 0] >= 0.1) & (cube[:, 0] <= 0.2)).all()
    assert cube[:, 0].std() > 0.02
    assert ((ball[:, 0] >= 1.1) & (ball[:, 0] <= 1.2)).all()
    assert (ball[:, 0] - 1.0 - cube[:, 0]).abs().max() > 0.01
    place = torch.tensor([0.0, 0.5, np.cos(0.25), 0.0, 0.0, np.sin(0.25)]).float()
    torch.testing.assert_close(cube[:, 1:], place.expand(32, 6))
    assert (env.bind("qpos")[:, :3] == 0.0).all()
    reset.params["bodies"] = "left"
    with pytest.raises(ConfigError, match=r"the body 'left' has no free joint"):
        check_task(_cfg(events={"reset": reset}))
