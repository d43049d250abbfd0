"""Advantages: the kernel, PyTorch and a plain loop agree, over ends and cuts of episodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from simtrain.algorithms.advantage_kernel import KernelEstimator
from simtrain.algorithms.ppo import make_estimator
from simtrain.algorithms.rollout import Rollout, estimate_by_steps

GAMMA, LAM = 0.97, 0.9
CPU = torch.device("cpu")


def make_rollout(steps: int, envs: int) -> Rollout:
    obs = TensorDict({"actor": torch.zeros(envs, 1)}, batch_size=[envs])
    return Rollout(obs, 1, steps, {}, CPU)


def random_rollout(steps: int = 7, envs: int = 33) -> tuple[Rollout, torch.Tensor]:
    """Every fourth step ends an episode, and half of these are cuts; and the last values."""
    rollout = make_rollout(steps, envs)
    rollout.dones.bernoulli_(0.25)
    rollout.time_outs.bernoulli_(0.5).logical_and_(rollout.dones)
    rollout.rewards.normal_()
    rollout.values.normal_()
    return rollout, torch.randn(envs, 1)


def by_hand(rollout: Rollout, last: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The definition, environment by environment, in double precision."""
    rewards, dones, cuts, values = (
        getattr(rollout, name)[:, :, 0].double().numpy()
        for name in ("rewards", "dones", "time_outs", "values")
    )
    advantages = np.zeros_like(rewards)
    for env in range(rewards.shape[1]):
        following, advantage = float(last[env, 0]), 0.0
        for step in reversed(range(len(rewards))):
            value = values[step, env]
            target = rewards[step, env]
            if cuts[step, env]:
                target += GAMMA * value
            if dones[step, env]:
                advantage = target - value
            else:
                advantage = target + GAMMA * following - value + GAMMA * LAM * advantage
            advantages[step, env] = advantage
            following = value
    return advantages, advantages + values


@pytest.mark.parametrize("estimator", ["steps", "kernel"])
@pytest.mark.usefixtures("fast_compilation")
def test_advantages_are_those_of_the_definition(estimator: str) -> None:
    estimate = estimate_by_steps if estimator == "steps" else KernelEstimator(CPU)
    rollout, last = random_rollout()
    assert rollout.time_outs.any()
    assert (rollout.dones.bool() & ~rollout.time_outs).any()
    estimate(rollout, last, GAMMA, LAM)
    expected = by_hand(rollout, last)
    for found, wanted in zip((rollout.advantages, rollout.returns), expected, strict=True):
        np.testing.assert_allclose(found[:, :, 0].numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_an_episode_of_one_step_knows_its_reward_alone() -> None:
    rollout = make_rollout(1, 1)
    rollout.rewards.fill_(3.0)
    rollout.values.fill_(10.0)
    rollout.dones.fill_(1)
    rollout.time_outs.fill_(True)
    make_estimator(CPU)(rollout, torch.full((1, 1), 99.0), 0.5, 1.0)
    assert (rollout.advantages.item(), rollout.returns.item()) == (-2.0, 8.0)
