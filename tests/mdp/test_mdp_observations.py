import math

import pytest
import torch
from walker import (
    CONTACTS,
    FEET,
    HINGES,
    VELOCITIES,
    joints,
    made,
    sensors,
    set_contact,
    set_state,
    sites,
    value,
    walker_env,
)

from simtrain import EventTermCfg, SubTerrainCfg, TerrainCfg, mdp
from simtrain.mdp.robot_state import height_above_ground
from simtrain.mdp.rotations import quat_from_euler, quat_mul, wrap_to_pi, yaw_of

ROLLED = (math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0)  # 90 degrees about x: y is up
TURNED = (math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5))  # 90 degrees about z: x is where y was


def _state(
    env, quaternion=(1.0, 0.0, 0.0, 0.0), height=0.5, hinges=(0.0, 0.0), velocity=(0.0,) * 8
):
    set_state(
        env,
        torch.tensor([[0.0, 0.0, height, *quaternion, *hinges]]),
        torch.tensor([velocity]),
    )
    return env


def _close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected), atol=1e-5, rtol=1e-5)


def test_base_lin_vel_is_the_velocity_in_the_bases_own_frame():
    env = _state(walker_env(), TURNED, velocity=(1.0, 2.0, 3.0, *(0.0,) * 5))
    _close(mdp.base_lin_vel(env), [[2.0, -1.0, 3.0]])


def test_base_ang_vel_is_already_in_the_bases_own_frame():
    env = _state(walker_env(), TURNED, velocity=(0.0, 0.0, 0.0, 0.1, 0.2, 0.3, 0.0, 0.0))
    _close(mdp.base_ang_vel(env), [[0.1, 0.2, 0.3]])


@pytest.mark.parametrize(
    ("quaternion", "gravity"),
    [((1.0, 0.0, 0.0, 0.0), [[0.0, 0.0, -1.0]]), (ROLLED, [[0.0, -1.0, 0.0]])],
)
def test_projected_gravity_is_down_as_the_base_sees_it(quaternion, gravity):
    _close(mdp.projected_gravity(_state(walker_env(), quaternion)), gravity)


def test_joint_positions_are_relative_to_the_keyframe():
    env = _state(walker_env(), hinges=(0.3, 0.3))
    _close(value(env, mdp.joint_pos, joints=HINGES), [[0.3, 0.3]])
    _close(value(env, mdp.joint_pos_rel, joints=HINGES), [[0.2, 0.5]])


def test_joint_velocities_are_those_of_the_joints():
    env = _state(walker_env(), velocity=(9.0,) * 6 + (1.0, -2.0))
    _close(mdp.joint_vel(env, joints(env)), [[1.0, -2.0]])


def test_last_action_and_command_are_what_they_are():
    env = walker_env()
    env.step(torch.tensor([[0.1, 0.2]]))
    _close(mdp.last_action(env), [[0.1, 0.2]])
    env.command("velocity").copy_(torch.tensor([[1.0, 2.0, 3.0]]))
    _close(mdp.generated_commands(env, "velocity"), [[1.0, 2.0, 3.0]])


def test_feet_know_height_contact_and_force():
    env = _state(walker_env(), height=0.75, hinges=(0.0, math.pi / 2))
    _close(mdp.foot_height(env, sites(env)), [[0.3, 0.75]])
    set_contact(env, [[0.0, 2.0]], force=math.e - 1.0)
    _close(mdp.foot_contact(env, sensors(env)), [[0.0, 1.0]])
    expected = math.log1p(2.0 * (math.e - 1.0))
    _close(mdp.foot_contact_forces(env, sensors(env)), [[0.0, 0.0, 0.0, 0.0, 0.0, expected]])
    down = [2.0, 0.0, 0.0, 2.0 * (math.e - 1.0)]
    _close(mdp.builtin_sensor(env, sensors(env)), [[0.0, 0.0, 0.0, 0.0, *down]])


def test_air_time_counts_steps_without_contact():
    env = walker_env()
    term = made(env, mdp.foot_air_time, sensors=sensors(env))
    for touches in ([0.0, 0.0], [0.0, 1.0], [0.0, 0.0]):
        set_contact(env, [touches])
        times = term(env)
    _close(times, [[0.06, 0.02]])
    env.reset()
    set_contact(env, [[0.0, 0.0]])
    _close(term(env), [[0.02, 0.02]])


def test_the_height_scan_of_a_slope_follows_the_heading():
    # The middle column of a pyramid's side: height falls with x away from the platform.
    slope = SubTerrainCfg(mdp.pyramid_slope, slope=(0.5, 0.5), platform_width=0.8)
    env = walker_env(terrain=TerrainCfg({"slope": slope}, num_levels=1, num_columns=1))
    for quaternion, rises in (((1.0, 0.0, 0.0, 0.0), (0.25, 0.0)), (TURNED, (0.0, 0.25))):
        set_state(env, torch.tensor([[2.0, 0.0, 2.0, *quaternion, 0.0, 0.0]]))
        scan = value(env, mdp.height_scan, size=(1.0, 1.0), resolution=0.5, offset=0.3)
        image = value(env, mdp.height_scan, size=(1.0, 1.0), resolution=0.5, image=True)
        assert image.shape == (1, 1, 3, 3)
        assert torch.equal(image.flatten(1), scan)
        scan = scan.view(3, 3)  # forward x left
        # 4 m from the middle to the edge: the ground is at (4 - 2) / 2 below the base.
        assert scan[1, 1] == pytest.approx(2.0 - 0.3 - 1.0, abs=1e-4)
        assert scan[2, 1] - scan[1, 1] == pytest.approx(rises[0], abs=1e-4)
        assert scan[1, 0] - scan[1, 1] == pytest.approx(rises[1], abs=1e-4)
    points = torch.tensor([[[2.0, 0.0, 1.5], [0.0, 0.0, 2.0]]])
    _close(height_above_ground(env, points), [[0.5, 2.0 - 1.8]])


def test_an_encoders_bias_reaches_observation_and_servo_alike():
    bias = EventTermCfg(mdp.randomize_encoder_bias, "startup", joints=HINGES, bias=(0.05, 0.05))
    env = walker_env(events={"bias": bias})
    _state(env)
    _close(value(env, mdp.joint_pos_rel, joints=HINGES, biased=True), [[-0.05, 0.25]])
    _close(value(env, mdp.joint_pos_rel, joints=HINGES), [[-0.1, 0.2]])
    force = env.bind("actuator_force")
    env.sim.bind("ctrl").copy_(torch.tensor([[0.05, 0.05]]))
    env.sim.step(1)
    # The encoders read 0.05 where the joints are at 0: just what was asked for.
    _close(force, [[0.0, 0.0]])


def test_rotations_are_those_of_mujoco():
    roll, pitch, yaw = (torch.tensor([angle]) for angle in (0.3, -0.4, 2.0))
    zero = torch.zeros(1)
    turn = quat_mul(quat_from_euler(zero, zero, yaw), quat_from_euler(zero, pitch, zero))
    turn = quat_mul(turn, quat_from_euler(roll, zero, zero))
    torch.testing.assert_close(quat_from_euler(roll, pitch, yaw), turn)
    torch.testing.assert_close(yaw_of(turn), yaw)
    env = walker_env()
    set_state(env, torch.cat((torch.zeros(1, 3), turn, torch.zeros(1, 2)), dim=1))
    gravity = [[math.sin(-0.4), -math.sin(0.3) * math.cos(0.4), -math.cos(0.3) * math.cos(0.4)]]
    _close(mdp.projected_gravity(env), gravity)
    _close(wrap_to_pi(torch.tensor([3.5, -3.5])), [3.5 - 2 * math.pi, 2 * math.pi - 3.5])


OBSERVATIONS = [
    (mdp.base_lin_vel, {}),
    (mdp.base_ang_vel, {}),
    (mdp.projected_gravity, {}),
    (mdp.joint_pos, {"joints": HINGES}),
    (mdp.joint_pos_rel, {"joints": HINGES, "biased": True}),
    (mdp.joint_vel, {"joints": HINGES}),
    (mdp.last_action, {}),
    (mdp.generated_commands, {"command": "velocity"}),
    (mdp.foot_contact, {"sensors": CONTACTS}),
    (mdp.foot_contact_forces, {"sensors": CONTACTS}),
    (mdp.foot_air_time, {"sensors": CONTACTS}),
    (mdp.foot_height, {"sites": FEET}),
    (mdp.height_scan, {}),
]
REWARDS = [
    (mdp.is_alive, {}),
    (mdp.is_terminated, {}),
    (mdp.track_lin_vel_xy_exp, {"command": "velocity", "std": 0.5}),
    (mdp.track_ang_vel_z_exp, {"command": "velocity", "std": 0.5}),
    (mdp.lin_vel_z_l2, {}),
    (mdp.ang_vel_xy_l2, {}),
    (mdp.flat_orientation_l2, {}),
    (mdp.base_height_l2, {"target_height": 0.4}),
    (
        mdp.posture,
        {"joints": HINGES, "command": "velocity", "std_standing": 0.1, "std_moving": 0.3},
    ),
    (mdp.joint_pos_limits, {"joints": HINGES, "soft_limit_factor": 0.1}),
    (mdp.joint_vel_l2, {"joints": HINGES}),
    (mdp.joint_acc_l2, {"joints": HINGES}),
    (mdp.joint_torques_l2, {"actuators": ".*_servo"}),
    (mdp.action_rate_l2, {}),
    (mdp.angular_momentum_l2, {"sensors": "momentum"}),
    (mdp.feet_air_time, {"sensors": CONTACTS, "command": "velocity", "threshold": 0.1}),
    (mdp.air_time_variance, {"sensors": CONTACTS, "command": "velocity"}),
    (mdp.feet_contact_without_cmd, {"sensors": CONTACTS, "command": "velocity"}),
    (mdp.feet_slide, {"sensors": CONTACTS, "velocity_sensors": VELOCITIES}),
    (
        mdp.feet_clearance,
        {"sites": FEET, "velocity_sensors": VELOCITIES, "target_height": 0.1},
    ),
    (mdp.soft_landing, {"sensors": CONTACTS}),
    (mdp.bad_orientation, {"limit_angle": 0.2}),
    (mdp.root_height_below_minimum, {"minimum_height": 0.5}),
    (mdp.terrain_out_of_bounds, {"margin": 0.5}),
    (mdp.illegal_contact, {"sensors": CONTACTS, "threshold": 1.0}),
]


@pytest.mark.parametrize(
    ("func", "params"), OBSERVATIONS + REWARDS, ids=lambda item: getattr(item, "__name__", "")
)
def test_each_environment_gets_what_it_would_get_alone(func, params):
    waves = SubTerrainCfg(mdp.waves, amplitude=(0.1, 0.1))
    terrain = TerrainCfg({"waves": waves}, num_levels=1, num_columns=1)
    commands = torch.rand(4, 3) * 0.5
    actions = torch.randn(2, 4, 2) * 0.3
    base = torch.cat((torch.rand(4, 2), torch.full((4, 1), 0.6)), dim=1)
    quaternion = torch.nn.functional.normalize(torch.tensor([1.0, 0, 0, 0]) + torch.randn(4, 4) / 9)
    qpos = torch.cat((base, quaternion, torch.randn(4, 2) / 5), dim=1)
    qvel = torch.randn(4, 8) / 5

    def values(rows):
        env = walker_env(len(rows), terrain=terrain)
        set_state(env, qpos[rows], qvel[rows])
        for action in actions:
            env.command("velocity").copy_(commands[rows])
            env.step(action[rows])
        env.command("velocity").copy_(commands[rows])
        return value(env, func, **params)

    together = values([0, 1, 2, 3])
    alone = torch.cat([values([i]) for i in range(4)])
    torch.testing.assert_close(together, alone)
