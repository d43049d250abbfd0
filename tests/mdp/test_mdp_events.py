"""Resets, pushes and forces."""

import math

import pytest
import torch
from tiny_task import STEP_DT, idle, tiny_env
from walker import walker_env

from simtrain import EventTermCfg, SubTerrainCfg, TerrainCfg, mdp
from simtrain.mdp.rotations import yaw_of

LEFT_HINGE = 8
POSE = {"x": (-0.5, 0.5), "y": (1.0, 2.0), "yaw": (-3.0, 3.0)}
SPEED = {"z": (0.1, 0.3), "roll": (-1.0, 1.0)}
RESET_BASE = EventTermCfg(
    mdp.reset_root_state_uniform, "reset", pose_range=POSE, velocity_range=SPEED
)


def _fills(values, low, high):
    margin = 0.02 * (high - low)
    assert low - 1e-5 <= values.min() < low + margin
    assert high - margin < values.max() <= high + 1e-5


def test_the_base_starts_at_its_initial_pose_plus_what_the_ranges_say():
    env = walker_env(2000, events={"reset": RESET_BASE})
    x, y, z = env.bind("qpos")[:, :3].unbind(1)
    _fills(x, -0.5, 0.5)
    _fills(y, 1.0, 2.0)
    assert (z == 0.5).all()
    _fills(yaw_of(env.bind("qpos")[:, 3:7]), -3.0, 3.0)
    torch.testing.assert_close(env.bind("qpos")[:, 4:6], torch.zeros(2000, 2))
    velocity = env.bind("qvel")[:, :6]
    _fills(velocity[:, 2], 0.1, 0.3)
    _fills(velocity[:, 3], -1.0, 1.0)
    assert not velocity[:, [0, 1, 4, 5]].any()


def test_on_a_terrain_the_base_starts_about_its_origin_above_all_ground_in_reach():
    slope = {"slope": SubTerrainCfg(mdp.pyramid_slope, slope=(0.1, 0.3))}
    terrain = TerrainCfg(slope, num_levels=4, num_columns=2)
    env = walker_env(64, terrain=terrain, events={"reset": RESET_BASE})
    position = env.bind("qpos")[:, :3]
    away = position - env.terrain.origins
    assert away[:, 0].abs().max() <= 0.5
    assert 1.0 <= away[:, 1].min() < away[:, 1].max() <= 2.0
    above = position[:, 2] - 0.5 - env.terrain.height(position[:, :2])
    assert above.min() >= 0.0
    assert above.max() <= 0.3 * 0.5  # on the steepest slope, within the robot's reach
    assert above.max() >= 0.1


def test_a_push_adds_to_the_velocity_of_those_whose_time_has_come():
    env, mask = walker_env(4), torch.tensor([True, False, True, False])
    push = mdp.push_by_setting_velocity(env, {"x": (1.0, 1.0), "yaw": (2.0, 2.0)})
    env.sim.write("qvel", torch.full((4, 8), 0.5))
    push(env, mask)
    change = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0])
    torch.testing.assert_close(env.bind("qvel") - 0.5, mask.unsqueeze(1) * change)


@pytest.mark.parametrize("about", ["roll", "pitch"])
def test_a_robot_is_held_upright_less_and_less(about):
    pose = {about: (0.2, 0.2), "yaw": (1.0, 1.0), "z": (2.0, 2.0)}
    env = walker_env(
        2,
        events={"reset": EventTermCfg(mdp.reset_root_state_uniform, "reset", pose_range=pose)},
    )
    term = mdp.hold_upright(env, part=0.5, rate=4.0, steps=10)
    axis = 3 + ["roll", "pitch"].index(about)
    for steps, strength in ((0, 1.0), (5, 0.5), (10, 0.0), (20, 0.0)):
        env.sim.write("qvel", torch.tensor([[0.0] * 3 + [1.0] * 5, [0.0] * 8]))
        env.steps.fill_(steps)
        before = env.bind("qvel").clone()
        term(env, torch.ones(2, dtype=torch.bool))
        part = 0.5 * strength
        expected = before.clone()
        expected[:, 3:5] *= 1.0 - part
        expected[:, axis] -= part * 4.0 * math.sin(0.2)
        torch.testing.assert_close(env.bind("qvel"), expected)


def _reset_env(func, num_envs=4000, **params):
    event = EventTermCfg(func, "reset", **params)
    return tiny_env(num_envs, keyframe="bent", events={"spread": event})


def test_uniform_resets_fill_their_bounds_around_the_initial_position():
    bounds = {"position": (-0.2, 0.4), "velocity": (1.0, 3.0)}
    env = _reset_env(mdp.reset_joints_uniform, joints="left_.*", **bounds)
    _fills(env.bind("qpos")[:, LEFT_HINGE], 0.0, 0.6)
    _fills(env.bind("qvel")[:, LEFT_HINGE - 1], 1.0, 3.0)
    # Joints that were not named start where the keyframe says, at rest.
    assert torch.allclose(env.bind("qpos")[:, 9:], torch.tensor([0.3, 0.4]))
    assert (env.bind("qvel")[:, 8:] == 0.0).all()


def test_gaussian_resets_have_their_standard_deviations():
    stds = {"position_std": 0.5, "velocity_std": 2.0}
    env = _reset_env(mdp.reset_joints_gaussian, joints=".*_slide", **stds)
    values = torch.cat((env.bind("qpos")[:, [7, 9]], env.bind("qvel")[:, [6, 8]]), dim=1)
    std, mean = torch.std_mean(values, dim=0)
    assert mean.tolist() == pytest.approx([0.1, 0.3, 0.0, 0.0], abs=0.12)
    assert std.tolist() == pytest.approx([0.5, 0.5, 2.0, 2.0], rel=0.06)


def _pushed(mode="reset", **params):
    """Velocities of the box, of 1 kg, along x after each of nine steps."""
    event = EventTermCfg(mdp.apply_body_force, mode, bodies="box", params=params)
    env = tiny_env(3, events={"push": event})
    return torch.stack([idle(env) and env.bind("qvel")[:, 0].clone() for _ in range(9)])


@pytest.mark.parametrize(
    ("duration", "steps"), [(0.0, [1] * 9), (0.06, [1, 2] + 7 * [3]), (None, list(range(1, 10)))]
)
def test_a_force_lasts_as_long_as_it_is_told_to(duration, steps):
    duration_s = None if duration is None else (duration, duration)
    speeds = _pushed(force_range={"x": (3.0, 3.0)}, duration_s=duration_s)
    expected = 3.0 * STEP_DT * torch.tensor(steps, dtype=torch.float32)
    torch.testing.assert_close(speeds, expected.unsqueeze(1).expand(9, 3))


def test_forces_are_each_environments_own_and_end_with_the_episode():
    event = EventTermCfg(
        mdp.apply_body_force, "reset", bodies="box", force_range={"y": (-1, 1), "yaw": (-2, 2)}
    )
    env = tiny_env(500, events={"push": event})
    applied = env.bind("xfrc_applied")[:, env.model.body("box").id].clone()
    assert not applied[:, [0, 2, 3, 4]].any()
    _fills(applied[:, 1], -1.0, 1.0)
    _fills(applied[:, 5], -2.0, 2.0)
    idle(env, 5)
    assert torch.equal(env.bind("xfrc_applied")[:, 1], applied)
    idle(env, 5)  # the episodes end
    assert not torch.isclose(env.bind("xfrc_applied")[:, 1], applied)[:, 1].any()
