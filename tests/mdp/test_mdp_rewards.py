import math

import pytest
import torch
from walker import (
    CONTACTS,
    FEET,
    HINGES,
    VELOCITIES,
    made,
    sensors,
    set_contact,
    set_state,
    sites,
    value,
    walker_env,
)

from simtrain import RewardTermCfg, TerminationTermCfg, mdp

UPRIGHT = (1.0, 0.0, 0.0, 0.0)


def _env(qpos=(0.0, 0.0, 0.5, *UPRIGHT, 0.1, -0.2), qvel=(0.0,) * 8, command=(0.0, 0.0, 0.0)):
    env = walker_env()
    set_state(env, torch.tensor([qpos]), torch.tensor([qvel]))
    env.command("velocity").copy_(torch.tensor([command]))
    return env


def _is(actual, expected):
    assert actual.shape == (1,)
    assert actual.item() == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_tracking_is_one_at_the_command_and_1_over_e_an_std_away():
    env = _env(qvel=(0.8, -0.3, 0.0, 0.0, 0.0, 0.5, 0.0, 0.0), command=(0.8, 0.1, 0.1))
    _is(mdp.track_lin_vel_xy_exp(env, "velocity", std=0.4), math.exp(-1.0))
    _is(mdp.track_ang_vel_z_exp(env, "velocity", std=0.2), math.exp(-4.0))


def test_velocities_out_of_the_plane_count_squared():
    env = _env(qvel=(1.0, 1.0, 0.5, 0.3, 0.4, 9.0, 0.0, 0.0))
    _is(mdp.lin_vel_z_l2(env), 0.25)
    _is(mdp.ang_vel_xy_l2(env), 0.25)


def test_leaning_counts_by_the_squared_sine():
    lean = 0.3
    env = _env(qpos=(0.0, 0.0, 0.5, math.cos(lean / 2), math.sin(lean / 2), 0.0, 0.0, 0.0, 0.0))
    _is(mdp.flat_orientation_l2(env), math.sin(lean) ** 2)
    _is(mdp.upright(env, std=math.sin(lean)), math.exp(-1.0))


def test_base_height_counts_squared():
    _is(mdp.base_height_l2(_env(), target_height=0.3), 0.04)


@pytest.mark.parametrize(("command", "std"), [((0.0, 0.0, 0.04), 0.1), ((0.3, 0.0, 0.0), 0.4)])
def test_posture_gives_freedom_only_under_a_command(command, std):
    env = _env(qpos=(0.0, 0.0, 0.5, *UPRIGHT, 0.3, -0.2), command=command)
    params = {"joints": HINGES, "command": "velocity", "std_standing": 0.1, "std_moving": 0.4}
    _is(value(env, mdp.posture, **params), math.exp(-((0.2 / std) ** 2) / 2.0))
    free = {"left_.*": 0.4, "right_.*": 9.0}
    if command[0]:
        params["std_moving"] = free
        _is(value(env, mdp.posture, **params), math.exp(-((0.2 / 0.4) ** 2) / 2.0))


def test_posture_gives_runners_a_freedom_of_their_own():
    params = {"joints": HINGES, "command": "velocity", "std_standing": 0.1, "std_moving": 0.4}
    params |= {"std_running": 0.8, "running_threshold": 1.0}
    for speed, std in ((0.9, 0.4), (1.1, 0.8)):
        env = _env(qpos=(0.0, 0.0, 0.5, *UPRIGHT, 0.3, -0.2), command=(speed, 0.0, 0.0))
        _is(value(env, mdp.posture, **params), math.exp(-((0.2 / std) ** 2) / 2.0))


def test_joint_limits_count_what_is_beyond_their_part():
    # The left hinge may go from -1 to 1, the right one as far as it likes.
    env = _env(qpos=(0.0, 0.0, 0.5, *UPRIGHT, -0.95, 7.0))
    _is(value(env, mdp.joint_pos_limits, joints=HINGES, soft_limit_factor=0.9), 0.05)


def test_joint_and_action_efforts_count_squared():
    env = _env(qvel=(0.0,) * 6 + (3.0, 4.0))
    _is(value(env, mdp.joint_vel_l2, joints=HINGES), 25.0)
    env.bind("qacc")[:] = torch.tensor([[9.0] * 6 + [1.0, 2.0]])
    _is(value(env, mdp.joint_acc_l2, joints=HINGES), 5.0)
    env.bind("actuator_force")[:] = torch.tensor([[1.0, 3.0]])
    _is(value(env, mdp.joint_torques_l2, actuators="right.*"), 9.0)
    env.actions.copy_(torch.tensor([[1.0, 2.0]]))
    env.previous_actions.copy_(torch.tensor([[0.0, 4.0]]))
    _is(mdp.action_rate_l2(env), 5.0)


def test_power_is_what_motors_take_and_not_what_they_brake():
    env = _env(qvel=(0.0,) * 6 + (3.0, 4.0))
    for forces, power in (((2.0, 5.0), 26.0), ((2.0, -5.0), 6.0)):
        env.bind("actuator_force")[:] = torch.tensor([forces])
        _is(value(env, mdp.electrical_power, joints=HINGES, actuators=".*"), power)


def test_a_change_of_the_actions_change_counts_squared():
    env = _env()
    term = made(env, mdp.action_acc_l2)
    for last, now, expected in (
        ((0, 0), (1, 2), 5.0),
        ((1, 2), (2, 4), 0.0),
        ((2, 4), (2, 3), 10.0),
    ):
        env.previous_actions.copy_(torch.tensor([last]))
        env.actions.copy_(torch.tensor([now]))
        _is(term(env), expected)


def test_swings_count_by_how_their_highest_points_miss_the_target():
    env = _env(command=(0.5, 0.0, 0.0))
    params = {"sensors": sensors(env), "sites": sites(env), "command": "velocity"}
    term = made(env, mdp.feet_swing_height, target_height=0.1, **params)
    # Both feet rise by 0.06 and then 0.04 m above where they stood; the left one comes down.
    for height, touches, expected in (
        (0.5, [1.0, 1.0], 0.0),
        (0.56, [0.0, 0.0], 0.0),
        (0.54, [0.0, 0.0], 0.0),
        (0.5, [1.0, 0.0], 0.4**2),
        (0.5, [1.0, 0.0], 0.0),
    ):
        set_state(env, torch.tensor([(0.0, 0.0, height, *UPRIGHT, 0.0, 0.0)]))
        set_contact(env, [touches])
        _is(term(env), expected)
    env.command("velocity").zero_()
    set_contact(env, [[1.0, 1.0]])
    _is(term(env), 0.0)


def test_contacts_of_the_robot_with_itself_are_counted():
    env = _env()
    set_contact(env, [[1.0, 2.0]], force=-5.0)
    _is(value(env, mdp.self_collision_cost, sensors=CONTACTS), 3.0)


def test_angular_momentum_counts_squared():
    env = _env()
    env.bind("sensordata")[:, sensors(env, "momentum").data] = torch.tensor([[1.0, 2.0, 2.0]])
    _is(value(env, mdp.angular_momentum_l2, sensors="momentum"), 9.0)


@pytest.mark.parametrize(("command", "expected"), [(0.04, 0.5), (0.06, 0.0)])
def test_feet_should_be_down_under_a_command_to_stand(command, expected):
    env = _env(command=(0.0, command, 0.0))
    set_contact(env, [[0.0, 1.0]])
    _is(mdp.feet_contact_without_cmd(env, sensors(env), "velocity"), expected)


def test_feet_slide_by_their_speed_while_they_touch():
    env = _env(qvel=(0.3, 0.4, 5.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    params = {"sensors": CONTACTS, "velocity_sensors": VELOCITIES}
    set_contact(env, [[1.0, 0.0]])
    _is(value(env, mdp.feet_slide, **params), 0.5)
    set_contact(env, [[1.0, 1.0]])
    _is(value(env, mdp.feet_slide, **params), 1.0)


def test_feet_clearance_counts_height_missed_while_a_foot_moves():
    env = _env(qpos=(0.0, 0.0, 0.5, *UPRIGHT, 0.0, 0.0), qvel=(2.0, *(0.0,) * 7))
    params = {"sites": FEET, "velocity_sensors": VELOCITIES, "target_height": 0.1}
    _is(value(env, mdp.feet_clearance, **params), 2 * 0.05 * 2.0)


def test_air_time_is_rewarded_at_touch_down():
    env = _env(command=(0.5, 0.0, 0.0))
    term = made(env, mdp.feet_air_time, sensors=sensors(env), command="velocity", threshold=0.05)
    for left, right, expected in (
        (1.0, 0.0, 0.0),  # the right foot is up for one step,
        (1.0, 0.0, 0.0),  # two,
        (0.0, 0.0, 0.0),  # three
        (1.0, 1.0, (0.02 - 0.05) + (0.06 - 0.05)),  # both come down
        (1.0, 1.0, 0.0),
    ):
        set_contact(env, [[left, right]])
        _is(term(env), expected)
    set_contact(env, [[0.0, 0.0]])
    term(env)
    env.reset()  # a new episode starts in the air
    set_contact(env, [[1.0, 1.0]])
    _is(term(env), 0.0)


def test_air_time_is_not_rewarded_under_a_command_to_stand():
    env = _env()
    term = made(env, mdp.feet_air_time, sensors=sensors(env), command="velocity", threshold=0.0)
    for touches in ([0.0, 0.0], [1.0, 1.0]):
        set_contact(env, [touches])
        _is(term(env), 0.0)


def test_feet_should_share_their_times_in_the_air_and_on_the_ground():
    env = _env(command=(0.5, 0.0, 0.0))
    term = made(env, mdp.air_time_variance, sensors=sensors(env), command="velocity", longest=0.05)
    # The left foot is up for one step and down for two; the right one stays up.
    for left, left_times, right_air in (
        (0.0, (0.02, 0.0), 0.02),
        (1.0, (0.02, 0.02), 0.04),
        (1.0, (0.02, 0.04), 0.05),
        (0.0, (0.02, 0.04), 0.05),
    ):
        set_contact(env, [[left, 0.0]])
        air, down = left_times
        # The variance of two values is the square of half their difference.
        _is(term(env), ((air - right_air) / 2) ** 2 + (down / 2) ** 2)
    env.command("velocity").zero_()
    _is(term(env), 0.0)


def test_landing_counts_the_force_of_the_first_contact_alone():
    env = _env()
    term = made(env, mdp.soft_landing, sensors=sensors(env))
    for touches, expected in (([1.0, 1.0], 0.0), ([0.0, 1.0], 0.0), ([1.0, 1.0], 7.0)):
        set_contact(env, [touches], force=7.0)
        _is(term(env), expected)
    set_contact(env, [[1.0, 1.0]], force=7.0)
    _is(term(env), 0.0)


def test_a_drop_ends_with_one_touch_down_after_the_time_of_free_fall():
    drop = 0.3
    rewards = {
        "air": RewardTermCfg(
            mdp.feet_air_time, 1.0, sensors=CONTACTS, command="velocity", threshold=0.0
        ),
        "landing": RewardTermCfg(mdp.soft_landing, 1.0, sensors=CONTACTS),
    }
    env = walker_env(rewards=rewards)
    hanging = (0.0, 0.0, 0.5 + drop, *UPRIGHT, 0.0, 0.0)
    set_state(env, torch.tensor([hanging]), torch.zeros(1, 8))
    env.command("velocity").fill_(0.5)
    touched = []
    # The servos hold the legs still: keyframe plus action is zero.
    for _ in range(20):
        env.step(torch.tensor([[-0.1, 0.2]]))
        touched.append(bool(mdp.foot_contact(env, sensors(env)).any()))
    fall = math.sqrt(2 * drop / 9.81)
    first = touched.index(True) + 1
    assert first == math.ceil(fall / env.step_dt)
    air, landing = env.rewards.episode_sums[0] / env.step_dt
    assert air == pytest.approx(2 * (first - 1) * env.step_dt, abs=0.05)
    assert landing > 0.0


def test_falling_over_is_told_apart_from_living_on():
    over = {"over": TerminationTermCfg(mdp.bad_orientation, limit_angle=0.5)}
    env = walker_env(2, terminations=over)
    qpos = env.bind("qpos").clone()
    qpos[1, 3:7] = torch.tensor([math.cos(0.4), math.sin(0.4), 0.0, 0.0])
    set_state(env, qpos)
    env.terminations.compute()
    assert mdp.is_alive(env).tolist() == [1.0, 0.0]
    assert mdp.is_terminated(env).tolist() == [0.0, 1.0]
