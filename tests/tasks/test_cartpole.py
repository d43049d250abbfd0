"""The cart-pole tasks against formulas of the DeepMind Control Suite, written independently."""

import math

import pytest
import torch

from simtrain.config.tasks import discover
from simtrain.env.env import Env
from simtrain.sim import EngineCfg


def _env(name, num_envs=1):
    return Env(discover().find(name).make(), num_envs, EngineCfg(threads=1))


def _tolerance(x, margin, value_at_margin=0.1, sigmoid="gaussian"):
    """dm_control.utils.rewards.tolerance with bounds (0, 0)."""
    distance = abs(x) / margin
    if sigmoid == "gaussian":
        scale = math.sqrt(-2.0 * math.log(value_at_margin))
        return math.exp(-0.5 * (distance * scale) ** 2)
    scale = math.sqrt(1.0 - value_at_margin)
    return 1.0 - (distance * scale) ** 2 if abs(distance * scale) < 1.0 else 0.0


def _smooth_reward(x, angle, velocity, control):
    """dm_control.suite.cartpole.Balance._get_reward for sparse=False."""
    upright = (math.cos(angle) + 1.0) / 2.0
    centered = (1.0 + _tolerance(x, margin=2.0)) / 2.0
    small_control = (4.0 + _tolerance(control, 1.0, 0.0, "quadratic")) / 5.0
    small_velocity = (1.0 + _tolerance(velocity, margin=5.0)) / 2.0
    return upright * small_control * small_velocity * centered


STATES = [
    (0.0, 0.0, 0.0, 0.0),
    (0.5, 0.3, -1.0, 0.5),
    (-1.5, 3.0, 4.0, -1.0),
    (1.7, -1.2, -8.0, 0.9),
    (0.1, math.pi, 0.0, 0.0),
]


@pytest.mark.parametrize("name", ["cartpole-balance", "cartpole-swingup"])
def test_the_reward_is_the_suites_smooth_reward(name):
    env = _env(name, len(STATES))
    x, angle, velocity, control = torch.tensor(STATES).unbind(1)
    env.sim.write("qpos", torch.stack((x, angle), dim=1))
    env.sim.write("qvel", torch.stack((torch.zeros_like(x), velocity), dim=1))
    env.bind("ctrl")[:, 0] = control
    expected = torch.tensor([_smooth_reward(*state) for state in STATES])
    torch.testing.assert_close(env.rewards.compute(), expected * env.step_dt)
    assert expected[0] == 1.0


def test_the_policy_sees_position_angle_and_velocities():
    env = _env("cartpole-balance")
    env.sim.write("qpos", torch.tensor([0.5, 0.3]))
    env.sim.write("qvel", torch.tensor([-1.0, 2.0]))
    seen = env.observations.compute()["actor"][0]
    expected = torch.tensor([0.5, math.cos(0.3), math.sin(0.3), -1.0, 2.0])
    torch.testing.assert_close(seen, expected)


def test_balance_starts_upright_and_swingup_hanging_with_the_suites_noise():
    balance, swingup = _env("cartpole-balance", 500), _env("cartpole-swingup", 500)
    position, angle = balance.bind("qpos").abs().amax(dim=0).tolist()
    assert (position, angle) == (pytest.approx(0.1, rel=0.02), pytest.approx(0.034, rel=0.02))
    noises = [balance.bind("qvel"), swingup.bind("qvel")]
    noises.append(swingup.bind("qpos") - torch.tensor([0.0, math.pi]))
    for noise in noises:
        assert noise.std(dim=0).tolist() == pytest.approx([0.01, 0.01], rel=0.15)
        assert noise.mean(dim=0).tolist() == pytest.approx([0.0, 0.0], abs=0.002)
