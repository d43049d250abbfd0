"""Advantages: the kernel, PyTorch and a plain loop agree, over ends and cuts of episodes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from simtrain.algorithms.advantage_kernel import KernelEstimator
from simtrain.algorithms.advantages import estimate_by_steps, make_estimator
from simtrain.algorithms.rollout import Outcome

GAMMA, LAM = 0.97, 0.9


def random_outcome(steps: int = 7, envs: int = 33) -> tuple[Outcome, torch.Tensor]:
    """Every fourth step ends an episode, and half of these are cuts."""
    dones = torch.rand(steps, envs, 1) < 0.25
    cuts = dones & (torch.rand(steps, envs, 1) < 0.5)
    rewards, values = torch.randn(2, steps, envs, 1)
    return Outcome(rewards, dones.byte(), cuts, values), torch.randn(envs, 1)


def by_hand(outcome: Outcome, last: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The definition, environment by environment, in double precision."""
    rewards, dones, cuts, values = (
        getattr(outcome, name)[:, :, 0].double().numpy()
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
    device = torch.device("cpu")
    estimate = estimate_by_steps if estimator == "steps" else KernelEstimator(device)
    outcome, last = random_outcome()
    assert outcome.time_outs.any()
    assert (outcome.dones.bool() & ~outcome.time_outs).any()
    advantages, returns = torch.full((2, 7, 33, 1), torch.nan)
    estimate(outcome, last, gamma=GAMMA, lam=LAM, advantages=advantages, returns=returns)
    expected = by_hand(outcome, last)
    for found, wanted in zip((advantages, returns), expected, strict=True):
        np.testing.assert_allclose(found[:, :, 0].numpy(), wanted, rtol=1e-4, atol=1e-5)


def test_an_episode_of_one_step_knows_its_reward_alone() -> None:
    one = torch.ones(1, 1, 1)
    outcome = Outcome(3.0 * one, one.byte(), one.bool(), 10.0 * one)
    advantages, returns = torch.zeros(2, 1, 1, 1)
    estimate = make_estimator(torch.device("cpu"))
    last = torch.full((1, 1), 99.0)
    estimate(outcome, last, gamma=0.5, lam=1.0, advantages=advantages, returns=returns)
    assert (advantages.item(), returns.item()) == (-2.0, 8.0)
