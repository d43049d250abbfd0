import math

import pytest
import torch
from walker import walker_env

from simtrain import EventTermCfg, SubTerrainCfg, TerrainCfg, mdp
from simtrain.errors import ConfigError
from simtrain.mdp.rotations import yaw_of

POSE = {"x": (-0.5, 0.5), "y": (1.0, 2.0), "yaw": (-3.0, 3.0)}
SPEED = {"z": (0.1, 0.3), "roll": (-1.0, 1.0)}


def _env(num_envs=2000, **changes):
    reset = EventTermCfg(
        mdp.reset_root_state_uniform, "reset", pose_range=POSE, velocity_range=SPEED
    )
    return walker_env(num_envs, events={"reset": reset}, **changes)


def test_the_base_starts_at_its_initial_pose_plus_what_the_ranges_say():
    env = _env()
    x, y, z = env.bind("qpos")[:, :3].unbind(1)
    for values, (low, high) in ((x, (-0.5, 0.5)), (y, (1.0, 2.0))):
        assert low <= values.min() < low + 0.01
        assert high - 0.01 < values.max() <= high
    assert (z == 0.5).all()
    yaw = yaw_of(env.bind("qpos")[:, 3:7])
    assert yaw.std() == pytest.approx(6.0 / math.sqrt(12), rel=0.05)
    torch.testing.assert_close(env.bind("qpos")[:, 4:6], torch.zeros(2000, 2))
    velocity = env.bind("qvel")[:, :6]
    assert 0.1 <= velocity[:, 2].min() < velocity[:, 2].max() <= 0.3
    assert velocity[:, 3].abs().max() == pytest.approx(1.0, abs=0.01)
    assert not velocity[:, [0, 1, 4, 5]].any()


def test_on_a_terrain_the_base_starts_about_its_origin_above_all_ground_in_reach():
    slope = {"slope": SubTerrainCfg(mdp.pyramid_slope, slope=(0.1, 0.3))}
    env = _env(64, terrain=TerrainCfg(slope, num_levels=4, num_columns=2))
    away = env.bind("qpos")[:, :3] - env.terrain.origins
    assert away[:, 0].abs().max() <= 0.5
    assert 1.0 <= away[:, 1].min() < away[:, 1].max() <= 2.0
    position = env.bind("qpos")[:, :3]
    above = position[:, 2] - 0.5 - env.terrain.height(position[:, :2])
    assert above.min() >= 0.0
    assert above.max() <= 0.3 * 0.5  # on the steepest slope, within the robot's reach
    assert above.max() >= 0.1


def test_a_push_adds_to_the_velocity_of_those_whose_time_has_come():
    push = EventTermCfg(
        mdp.push_by_setting_velocity,
        "interval",
        interval_range_s=(0.1, 0.2),
        velocity_range={"x": (1.0, 1.0), "yaw": (2.0, 2.0)},
    )
    env = walker_env(64, events={"push": push})
    qpos = env.bind("qpos").clone()
    qpos[:, 2] = 2.0  # above the floor: nothing else changes these velocities
    env.sim.write("qpos", qpos)
    pushes = torch.zeros(64)
    for _ in range(20):
        before = env.bind("qvel").clone()
        env.step(torch.zeros(64, 2))
        change = env.bind("qvel") - before
        pushes += change[:, 0] > 0.5
    assert pushes.min() >= 2
    assert pushes.max() <= 4


def test_an_axis_that_is_none_is_told():
    with pytest.raises(ConfigError, match=r"no axis 'theta'; there are x, y, z, roll, pitch, yaw"):
        mdp.push_by_setting_velocity(walker_env(), {"theta": (0.0, 1.0)})
