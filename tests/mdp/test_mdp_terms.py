"""Observations, rewards, terminations and metrics in states whose values are known by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from walker import CONTACTS, FEET, HINGES, VELOCITIES, made, set_contact, set_state, value
from walker import walker_env as walkers

from simtrain import EventTermCfg, TerminationTermCfg, mdp
from simtrain.mdp.rotations import quat_from_euler, quat_mul, wrap_to_pi, yaw_of

UPRIGHT, LEAN = (1.0, 0.0, 0.0, 0.0), 0.3
ROLLED = (math.sqrt(0.5), math.sqrt(0.5), 0.0, 0.0)  # 90 degrees about x: y is up
TURNED = (math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5))  # 90 degrees about z: x is where y was
E = math.e


@dataclass
class S:
    """A state of the walker, and what its sensors and actuators say."""

    height: float = 0.5
    turn: tuple[float, ...] = UPRIGHT
    hinges: tuple[float, float] = (0.1, -0.2)
    vel: tuple[float, ...] = ()
    command: tuple[float, float, float] = (0.0, 0.0, 0.0)
    touch: tuple[float, float] | None = None
    force: float = 0.0
    fields: dict[str, tuple[float, ...]] = field(default_factory=dict)


def put(env, *states: S) -> None:
    """Put each environment into its state; the others into the usual one."""
    states += (S(),) * (env.num_envs - len(states))
    qpos = [(0.0, 0.0, s.height, *s.turn, *s.hinges) for s in states]
    qvel = [(*s.vel, *(0.0,) * (8 - len(s.vel))) for s in states]
    set_state(env, torch.tensor(qpos), torch.tensor(qvel))
    env.command("velocity").copy_(torch.tensor([s.command for s in states]))
    env.actions.zero_()
    env.previous_actions.zero_()
    for i, s in enumerate(states):
        if s.touch is not None:
            set_contact(env, s.touch, s.force, i)
        for name, values in s.fields.items():
            rows = getattr(env, name) if hasattr(env, name) else env.bind(name)
            rows[i, : len(values)] = torch.tensor(values)


def leaning(angle: float, axis: int = 0) -> S:
    turn = [math.cos(angle / 2), 0.0, 0.0, 0.0]
    turn[1 + axis] = math.sin(angle / 2)
    return S(turn=tuple(turn))


def actions(now: tuple[float, ...], before: tuple[float, ...] = (0.0, 0.0)) -> S:
    return S(fields={"actions": now, "previous_actions": before})


VELOCITY, TOUCH = {"command": "velocity"}, {"sensors": CONTACTS}
JOINTS, AIR = {"joints": HINGES}, TOUCH | VELOCITY
SPEED = {"velocity_sensors": VELOCITIES}
STANDS = {"std_standing": 0.1, "std_moving": 0.4, **JOINTS, **VELOCITY}
RUNS = {"std_running": 0.8, "running_threshold": 1.0}
OTHER_STD = {"std_moving": {"left_.*": 0.3, "right_.*": 9.0}}
TURNS = S(turn=TURNED, vel=(-0.1, 0.7, 9.0, 5.0, 5.0, 0.5), command=(1.0, 0.5, -0.25))
TILTED = [leaning(0.49), leaning(0.51), leaning(0.51, axis=1), leaning(3.0, axis=1)]
ONE_DOWN = [S(touch=(0.0, 1.0), command=(0.0, y, 0.0)) for y in (0.04, 0.06)]
MOMENTUM = S(fields={"sensordata": (0.0,) * 14 + (1.0, 2.0, 2.0)})
FORWARD = S(vel=(0.8, -0.3), command=(0.8, 0.1, 0.0))


def moving(**fields: tuple[float, ...]) -> S:
    """Hinges at 3 and 4 rad/s."""
    return S(vel=(9.0,) * 6 + (3.0, 4.0), fields=fields)


def bent(*speeds: float) -> list[S]:
    """A hinge 0.2 from its place, under commands to walk at these speeds."""
    return [S(hinges=(0.3, -0.2), command=(speed, 0.0, 0.0)) for speed in speeds]


def of_std(*stds: float) -> list[float]:
    return [math.exp(-((0.2 / std) ** 2) / 2.0) for std in stds]


Case = tuple[Any, dict[str, Any], list[S], list[Any]]
VALUES: list[Case] = [
    (mdp.base_lin_vel, {}, [S(turn=TURNED, vel=(1.0, 2.0, 3.0))], [[2.0, -1.0, 3.0]]),
    (mdp.base_ang_vel, {}, [S(turn=TURNED, vel=(0, 0, 0, 0.1, 0.2, 0.3))], [[0.1, 0.2, 0.3]]),
    (mdp.projected_gravity, {}, [S(), S(turn=ROLLED)], [[0.0, 0.0, -1.0], [0.0, -1.0, 0.0]]),
    (mdp.joint_pos, JOINTS, [S(hinges=(0.3, 0.4))], [[0.3, 0.4]]),
    (mdp.joint_pos_rel, JOINTS, [S(hinges=(0.3, 0.3))], [[0.2, 0.5]]),
    (mdp.joint_vel, JOINTS, [moving()], [[3.0, 4.0]]),
    (mdp.last_action, {}, [actions((0.1, 0.2))], [[0.1, 0.2]]),
    (mdp.generated_commands, VELOCITY, [S(command=(1.0, 2.0, 3.0))], [[1.0, 2.0, 3.0]]),
    (mdp.foot_height, {"sites": FEET}, [S(0.75, hinges=(0.0, math.pi / 2))], [[0.3, 0.75]]),
    (mdp.foot_contact, TOUCH, [S(touch=(0.0, 2.0))], [[0.0, 1.0]]),
    (mdp.foot_contact_forces, TOUCH, [S(touch=(0.0, 1.0), force=E - 1.0)], [[0, 0, 0, 0, 0, 1.0]]),
    (mdp.builtin_sensor, TOUCH, [S(touch=(0.0, 2.0), force=3.0)], [[0, 0, 0, 0, 2.0, 0, 0, 6.0]]),
    (mdp.track_lin_vel_xy_exp, {"std": 0.4, **VELOCITY}, [FORWARD, S()], [1 / E, 1.0]),
    (mdp.track_ang_vel_z_exp, {"std": 0.75, **VELOCITY}, [TURNS, S()], [1 / E, 1.0]),
    (mdp.lin_vel_z_l2, {}, [S(vel=(1.0, 1.0, 0.5))], [0.25]),
    (mdp.ang_vel_xy_l2, {}, [S(vel=(1.0, 1.0, 0.5, 0.3, 0.4, 9.0))], [0.25]),
    (mdp.flat_orientation_l2, {}, [leaning(LEAN)], [math.sin(LEAN) ** 2]),
    (mdp.upright, {"std": math.sin(LEAN)}, [leaning(LEAN)], [1 / E]),
    (mdp.base_height_l2, {"target_height": 0.3}, [S(0.5)], [0.04]),
    (mdp.posture, STANDS, bent(0.04, 0.3), of_std(0.1, 0.4)),
    (mdp.posture, STANDS | OTHER_STD, bent(0.3), of_std(0.3)),
    (mdp.posture, STANDS | RUNS, bent(0.0, 0.9, 1.1), of_std(0.1, 0.4, 0.8)),
    # The left hinge may go from -1 to 1, the right one as far as it likes.
    (mdp.joint_pos_limits, JOINTS, [S(hinges=(-0.95, 7.0))], [0.05]),
    (mdp.joint_vel_l2, JOINTS, [moving()], [25.0]),
    (mdp.joint_acc_l2, JOINTS, [moving(qacc=(9.0,) * 6 + (1.0, 2.0))], [5.0]),
    (mdp.joint_torques_l2, {"actuators": "right.*"}, [moving(actuator_force=(1.0, 3.0))], [9.0]),
    (  # that motors take, and not what they brake
        mdp.electrical_power,
        {"actuators": ".*", **JOINTS},
        [moving(actuator_force=(2.0, 5.0)), moving(actuator_force=(2.0, -5.0))],
        [26.0, 6.0],
    ),
    (mdp.angular_momentum_l2, {"sensors": "momentum"}, [MOMENTUM], [9.0]),
    (mdp.action_rate_l2, {}, [actions((1.0, 2.0), (0.0, 4.0))], [5.0]),
    (mdp.self_collision_cost, TOUCH, [S(touch=(1.0, 2.0), force=-5.0)], [3.0]),
    (mdp.feet_contact_without_cmd, AIR, ONE_DOWN, [0.5, 0.0]),
    (
        mdp.feet_slide,
        TOUCH | SPEED,
        [S(vel=(0.3, 0.4, 5.0), touch=touch) for touch in ((1.0, 0.0), (1.0, 1.0))],
        [0.5, 1.0],
    ),
    (
        mdp.feet_clearance,
        {"sites": FEET, "target_height": 0.1, **SPEED},
        [S(hinges=(0.0, 0.0), vel=(2.0,))],
        [2 * 0.05 * 2.0],
    ),
    (mdp.bad_orientation, {"limit_angle": 0.5}, TILTED, [0, 1, 1, 1]),
    (mdp.root_height_below_minimum, {"minimum_height": 0.3}, [S(0.31), S(0.29)], [0, 1]),
    (
        mdp.root_height_below_minimum,
        {"minimum_height": 0.7, "bodies": ".*_leg"},
        [S(0.71), S(0.71, turn=ROLLED)],
        [0, 1],
    ),
    (mdp.terrain_out_of_bounds, {}, [S()], [0]),
    (
        mdp.illegal_contact,
        {"threshold": 5.0, **TOUCH},
        [S(touch=(1.0, 0.0), force=2.0), S(touch=(0.0, 3.0), force=2.0)],
        [0, 1],
    ),
    (mdp.lin_vel_error, VELOCITY, [TURNS], [math.hypot(0.7 - 1.0, 0.1 - 0.5)]),
    (mdp.ang_vel_error, VELOCITY, [TURNS], [0.75]),
]


def feet(left: float, right: float, height: float = 0.5, command: float = 0.5) -> S:
    hinges = (0.0, 0.0)
    return S(height, hinges=hinges, command=(command, 0.0, 0.0), touch=(left, right), force=7.0)


def variance(left: float, right: float, left_down: float) -> float:
    """Of two times in the air, and of two on the ground: the squares of half the differences."""
    return ((left - right) / 2) ** 2 + (left_down / 2) ** 2


CHANGES = [actions((1, 2)), actions((2, 4), (1, 2)), actions((2, 3), (2, 4))]
# The right foot is up for one step, two, three; both come down.
LANDS = [feet(1, 0), feet(1, 0), feet(0, 0), feet(1, 1), feet(1, 1)]
# Both feet rise by 0.06 and then 0.04 m above where they stood; the left one comes down.
RISES = [feet(1, 1), feet(0, 0, 0.56), feet(0, 0, 0.54), feet(1, 0), feet(1, 0)]
# The left foot is up for one step and down for two; the right one stays up.
LIMPS = [feet(0, 0), feet(1, 0), feet(1, 0), feet(0, 0), feet(0, 0, command=0.0)]
TIMES = [variance(0.02, 0.02, 0.0), variance(0.02, 0.04, 0.02), *[variance(0.02, 0.05, 0.04)] * 2]
EPISODES: list[Case] = [
    (mdp.action_acc_l2, {}, CHANGES, [5, 0, 10]),
    (
        mdp.foot_air_time,
        TOUCH,
        [feet(0, 0), feet(0, 1), feet(0, 0)],
        [[0.02, 0.02], [0.04, 0.0], [0.06, 0.02]],
    ),
    (mdp.feet_air_time, {"threshold": 0.05, **AIR}, LANDS, [0, 0, 0, -0.03 + 0.01, 0]),
    (mdp.feet_air_time, {"threshold": 0.0, **AIR}, [feet(0, 0), feet(1, 1, command=0.0)], [0, 0]),
    (
        mdp.feet_swing_height,
        {"target_height": 0.1, "sites": FEET, **AIR},
        [*RISES, feet(1, 1, command=0.0)],
        [0, 0, 0, 0.4**2, 0, 0],
    ),
    (mdp.air_time_variance, {"longest": 0.05, **AIR}, LIMPS, [*TIMES, 0]),
    (mdp.soft_landing, TOUCH, [feet(1, 1), feet(0, 1), feet(1, 1), feet(1, 1)], [0, 0, 7, 0]),
]


@pytest.fixture(scope="module")
def env():
    return walkers(4)


def _is(actual, *expected):
    expected = torch.tensor(expected, dtype=torch.float32)
    torch.testing.assert_close(actual[: len(expected)].float(), expected, rtol=1e-4, atol=1e-5)


def _name(item: Any) -> str:
    return getattr(item, "__name__", "")


@pytest.mark.parametrize(("term", "params", "states", "expected"), VALUES, ids=_name)
def test_each_environment_has_the_value_of_its_state(term, params, states, expected, env):
    put(env, *states)
    _is(value(env, term, **params), *expected)


@pytest.mark.parametrize(("term", "params", "states", "expected"), EPISODES, ids=_name)
def test_a_term_follows_what_happens(term, params, states, expected, env):
    term = made(env, term, **params)
    for state, number in zip(states, expected, strict=True):
        put(env, state)
        _is(term(env), number)


def test_a_new_episode_counts_anew():
    env = walkers()
    term = made(env, mdp.feet_air_time, threshold=0.0, **AIR)
    time = made(env, mdp.foot_air_time, **TOUCH)
    put(env, feet(0, 0))
    term(env), time(env)
    env.reset()
    put(env, feet(0, 1))
    _is(term(env), 0.0)
    _is(time(env), [0.02, 0.0])


def test_falling_over_is_told_apart_from_living_on():
    over = {"over": TerminationTermCfg(mdp.bad_orientation, limit_angle=0.5)}
    env = walkers(2, terminations=over)
    put(env, S(), leaning(0.8))
    env.terminations.compute()
    assert mdp.is_alive(env).tolist() == [1.0, 0.0]
    assert mdp.is_terminated(env).tolist() == [0.0, 1.0]


def test_an_encoders_bias_reaches_observation_and_servo_alike():
    bias = EventTermCfg(mdp.randomize_encoder_bias, "startup", joints=HINGES, bias=(0.05, 0.05))
    env = walkers(events={"bias": bias})
    put(env, S(hinges=(0.0, 0.0)))
    _is(value(env, mdp.joint_pos_rel, joints=HINGES, biased=True), [-0.05, 0.25])
    _is(value(env, mdp.joint_pos_rel, joints=HINGES), [-0.1, 0.2])
    env.sim.bind("ctrl").copy_(torch.tensor([[0.05, 0.05]]))
    env.sim.step(1)
    # The encoders read 0.05 where the joints are at 0: just what was asked for.
    _is(env.bind("actuator_force"), [0.0, 0.0])


def test_rotations_are_those_of_mujoco(env):
    roll, pitch, yaw = (torch.tensor([angle]) for angle in (0.3, -0.4, 2.0))
    zero = torch.zeros(1)
    turn = quat_mul(quat_from_euler(zero, zero, yaw), quat_from_euler(zero, pitch, zero))
    turn = quat_mul(turn, quat_from_euler(roll, zero, zero))
    torch.testing.assert_close(quat_from_euler(roll, pitch, yaw), turn)
    torch.testing.assert_close(yaw_of(turn), yaw)
    put(env, S(turn=tuple(turn[0].tolist())))
    gravity = [math.sin(-0.4), -math.sin(0.3) * math.cos(0.4), -math.cos(0.3) * math.cos(0.4)]
    _is(mdp.projected_gravity(env), gravity)
    _is(wrap_to_pi(torch.tensor([3.5, -3.5])), 3.5 - 2 * math.pi, 2 * math.pi - 3.5)


def test_tolerance_is_one_at_zero_and_the_given_value_at_the_margin():
    _is(mdp.tolerance(torch.tensor([0.0, 2.0, -2.0]), margin=2.0), 1.0, 0.1, 0.1)
    values = torch.tensor([0.0, 0.5, 1.0, 3.0])
    _is(mdp.tolerance(values, 1.0, 0.0, sigmoid="quadratic"), 1.0, 0.75, 0.0, 0.0)
    _is(mdp.tolerance(values, 1.0, 0.2, sigmoid="linear"), 1.0, 0.6, 0.2, 0.0)
    _is(mdp.tolerance(values, 1.0, 0.2, sigmoid="long_tail"), 1.0, 0.5, 0.2, 1.0 / 37.0)
    _is(mdp.tolerance(values, 2.0, bounds=(0.5, 1.0)), 0.1 ** (1 / 16), 1.0, 1.0, 0.1)


def test_terms_are_found_by_name_and_an_unknown_one_is_answered_with_the_nearest():
    assert all(getattr(mdp, name) is not None for name in dir(mdp))
    with pytest.raises(AttributeError, match=r"no term 'joint_position' \(did you mean 'joint_pos"):
        _ = mdp.joint_position
