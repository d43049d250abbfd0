import math

import pytest
import torch
from walker import set_state, walker_env

from simtrain import CommandTermCfg, mdp

BOUNDS = {"lin_vel_x": (-1.0, 2.0), "lin_vel_y": (-0.5, 0.5), "ang_vel_z": (0.2, 0.7)}


def _env(num_envs, seconds=(1.0, 1.0), **params):
    velocity = CommandTermCfg(mdp.UniformVelocityCommand, seconds, **BOUNDS, **params)
    return walker_env(num_envs, commands={"velocity": velocity})


def test_commands_are_uniform_within_their_bounds():
    command = _env(4000).command("velocity")
    for column, (low, high) in zip(command.unbind(1), BOUNDS.values(), strict=True):
        width = high - low
        assert low <= column.min() < low + 0.01 * width
        assert high - 0.01 * width < column.max() <= high
        assert column.mean() == pytest.approx((low + high) / 2, abs=0.02 * width)
        assert column.std() == pytest.approx(width / math.sqrt(12), rel=0.04)


def test_some_environments_stand_walk_straight_ahead_or_keep_a_heading():
    command = _env(4000, rel_standing_envs=0.3).command("velocity")
    standing = (command == 0.0).all(dim=1)
    assert standing.float().mean() == pytest.approx(0.3, abs=0.03)
    assert (command[~standing, 2] >= 0.2).all()
    command = _env(4000, rel_forward_envs=0.3).command("velocity")
    ahead = (command[:, 1:] == 0.0).all(dim=1)
    assert ahead.float().mean() == pytest.approx(0.3, abs=0.03)
    assert (command[ahead, 0] >= 0.0).all()
    assert (command[~ahead, 0] < 0.0).any()
    # Facing it already, those that keep a heading ask for the least that the bounds allow.
    command = _env(2000, heading=(0.0, 0.0), rel_heading_envs=0.25).command("velocity")
    assert (command[:, 2] == 0.2).float().mean() == pytest.approx(0.25, abs=0.03)


def test_a_command_may_begin_with_its_velocity():
    env = _env(2000, init_velocity_prob=0.4)
    qpos = env.bind("qpos").clone()
    qpos[:, 3:7] = torch.tensor([math.sqrt(0.5), 0.0, 0.0, math.sqrt(0.5)])  # turned to the left
    set_state(env, qpos, torch.full((2000, 8), 0.1))
    env.commands.terms["velocity"].resample(torch.arange(2000) < 1000)
    env.commands.terms["velocity"].update()
    velocity, (x, y, turn) = env.bind("qvel"), env.command("velocity").T
    given = (velocity[:, 0] != 0.1).nonzero().flatten()
    assert len(given) / 1000 == pytest.approx(0.4, abs=0.05)
    assert given.max() < 1000
    zero = torch.zeros(2000)
    expected = torch.stack((-y, x, zero, zero, zero, turn), dim=1)
    assert torch.allclose(velocity[given, :6], expected[given], atol=1e-5)
    assert (velocity[:, 6:] == 0.1).all()


def test_a_heading_is_kept_by_a_yaw_rate_in_proportion_to_the_error():
    env = _env(1, heading=(1.0, 1.0), heading_stiffness=0.5, rel_heading_envs=1.0)
    term = env.commands.terms["velocity"]
    turned = [0.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    # An error of 1 rad; then of 0.2 and of more than 2 rad, beyond the bounds of the rate.
    for yaw, rate in ((0.0, 0.5), (0.8, 0.2), (-1.5, 0.7), (1.0 + math.pi - 0.1, 0.2)):
        turned[3], turned[6] = math.cos(yaw / 2), math.sin(yaw / 2)
        set_state(env, torch.tensor([turned]))
        term.update()
        assert term.command[0, 2] == pytest.approx(rate, abs=1e-5)


def test_people_see_bounds_and_arrows_of_the_commanded_and_the_present_velocity():
    env = _env(2)
    term = env.commands.terms["velocity"]
    torch.testing.assert_close(torch.stack(term.bounds(), dim=1), torch.tensor([*BOUNDS.values()]))
    # At (1, 2), turned to the left by a right angle, walking along y at 0.8 m/s.
    half = math.sqrt(0.5)
    qpos = torch.tensor([[1.0, 2.0, 0.5, half, 0.0, 0.0, half, 0.0, 0.0]])
    set_state(env, qpos, torch.tensor([[0.0, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]]))
    env.commands.hold("velocity", [1.0, 0.5, 0.0])
    wanted, present = term.markers(1)
    assert wanted.start[:2] == pytest.approx((1.0, 2.0))
    assert wanted.end[:2] == pytest.approx((1.0 - 0.25, 2.0 + 0.5))
    assert present.end[:2] == pytest.approx((1.0, 2.4))
    assert wanted.start[2] > 0.6
    assert wanted.rgb != present.rgb
