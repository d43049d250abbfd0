"""Parts of PPO against calculations by hand, and its states."""

import copy
import math

import pytest
import torch
from against_rsl_rl import ENVS, STEPS, copies, learn, make_ppo, roll_out
from tensordict import TensorDict

from simtrain.algorithms.cfg import RndCfg
from simtrain.algorithms.learners.losses import PolicyStd
from simtrain.algorithms.ppo import (
    MAX_LEARNING_RATE,
    MIN_LEARNING_RATE,
    PPO,
    adapt_learning_rate,
)
from simtrain.algorithms.rollout import Rollout, estimate_advantages

ACTIONS = 2

# Returns and advantages -------------------------------------------------------------------------


def _rollout(steps: int, envs: int) -> Rollout:
    obs = TensorDict({"actor": torch.zeros(envs, 1)}, batch_size=[envs])
    return Rollout(obs, 1, steps, {}, torch.device("cpu"))


CASES = {
    # deltas 1 + 0.5 * 1 - 0.5, 2 + 0.5 * 2 - 1, 3 + 0.5 * 4 - 2; each adds 0.25 of the next sum
    "an episode that goes on": (None, False, [1.6875, 2.75, 3.0]),
    # the second delta is 2 - 1, and nothing of what follows
    "an episode that fails at the second step": (1, False, [1.25, 1.0, 3.0]),
    # the second delta is 2 + 0.5 * 1 - 1: its own value stands in for what would have followed
    "an episode that is cut at the second step": (1, True, [1.375, 1.5, 3.0]),
    "an episode that is cut at the last step": (2, True, [1.625, 2.5, 2.0]),
}


@pytest.mark.parametrize("case", CASES)
def test_advantages_and_returns_are_those_calculated_by_hand(case):
    end, cut, advantages = CASES[case]
    rollout = _rollout(3, 1)
    values = torch.tensor([0.5, 1.0, 2.0])
    rollout.values.copy_(values.view(3, 1, 1))
    rollout.rewards.copy_(torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1))
    if end is not None:
        rollout.dones[end], rollout.time_outs[end] = 1, cut
    estimate_advantages(rollout, torch.tensor([[4.0]]), 0.5, 0.5)
    torch.testing.assert_close(rollout.advantages.flatten(), torch.tensor(advantages))
    torch.testing.assert_close(rollout.returns.flatten(), torch.tensor(advantages) + values)


# Standard deviation and learning rate -----------------------------------------------------------


@pytest.mark.parametrize(("std_type", "std"), [("scalar", 0.7), ("log", 0.7), ("scalar", 2e6)])
def test_the_standard_deviation_gets_the_gradient_of_its_parameter(std_type, std):
    ppo = make_ppo(actor={"std_type": std_type, "init_std": std})
    distribution = ppo.actor.distribution
    distribution.update(torch.zeros(1, ACTIONS))
    torch.testing.assert_close(ppo.std, distribution.std[0].detach())
    (parameter,) = distribution.parameters()
    weights = torch.tensor([2.0, -3.0])
    (expected,) = torch.autograd.grad((weights * distribution.std).sum(), parameter)
    PolicyStd(distribution).backward(weights, ppo.std)
    torch.testing.assert_close(parameter.grad, expected)  # none beyond what rsl_rl clamps to


def test_the_standard_deviation_stays_in_its_range():
    actor = {"init_std": 0.2, "std_range": (0.15, 0.25)}
    ppo = make_ppo(actor=actor, entropy_coef=-10.0, learning_rate=0.02, schedule="fixed")
    for seed in range(2):
        learn(ppo, seed)
    torch.testing.assert_close(ppo.std, torch.full((ACTIONS,), 0.15))


@pytest.mark.parametrize(
    ("kl", "before", "after"),
    [
        (0.03, 1e-3, 1e-3 / 1.5),
        (0.004, 1e-3, 1.5e-3),
        (0.01, 1e-3, 1e-3),
        (0.0, 1e-3, 1e-3),
        (0.03, 1.2e-5, MIN_LEARNING_RATE),
        (0.004, 9e-3, MAX_LEARNING_RATE),
    ],
)
def test_the_learning_rate_follows_the_divergence(kl, before, after):
    rate = torch.tensor(before)
    adapt_learning_rate(rate, torch.tensor(kl), desired_kl=torch.tensor(0.01))
    assert float(rate) == pytest.approx(after)


@pytest.mark.parametrize("kind", ["mlp", "lstm"])
@pytest.mark.parametrize(
    ("name", "values"), [("desired_kl", (1e-4, 1e-2, 1.99e-2)), ("entropy_coef", (0.0, 0.5, 1.0))]
)
def test_a_setting_goes_to_its_end_in_equal_steps(name, values, kind):
    results = []
    for progress, value in zip((0.0, 0.5, 1.0), values, strict=True):
        changing = make_ppo(kind, **{name: values[0], f"{name}_end": values[2]})
        constant = make_ppo(kind, **{name: value})
        for ppo in (changing, constant):
            roll_out(ppo, seed=0)
            torch.manual_seed(1)
            ppo.update(progress=progress)
        assert changing.learning_rate == constant.learning_rate
        assert all(map(torch.equal, changing.tensors(), constant.tensors()))
        results.append(changing.std.mean() if name == "entropy_coef" else changing.learning_rate)
    assert results == sorted(set(results))


def test_a_remainder_of_the_rollout_is_left_out_of_the_mini_batches():
    batches = make_ppo(num_mini_batches=5).learner.mini_batches  # type: ignore[attr-defined]
    assert [len(batch.actions) for batch in batches] == [ENVS * STEPS // 5] * 5


STATES = {
    "mlp": {},
    "lstm": {},
    "cnn": {"actor": {"obs_groups": ("actor", "camera")}, "value": {"obs_groups": ("camera",)}},
    "rnd": {"rnd": RndCfg(0.5, state_normalization=True, reward_normalization=True)},
}


def _make(kind: str) -> PPO:
    return make_ppo("mlp" if kind == "rnd" else kind, **STATES[kind])


@pytest.mark.parametrize("kind", STATES)
def test_a_state_goes_on_the_same_to_the_bit(kind):
    first, second = _make(kind), _make(kind)
    learn(second, 5)  # moments that it has already are replaced
    learn(first, 1)
    second.set_state(copy.deepcopy(first.state()))
    second.set_hidden_states(copies(first.hidden_states()))
    assert second.learning_rate == first.learning_rate
    assert learn(first, 2) == learn(second, 2)
    assert all(map(torch.equal, first.tensors(), second.tensors()))
    assert all(map(torch.equal, first.hidden_states(), second.hidden_states()))


def test_a_state_may_leave_out_the_learning_rate_and_is_loaded_in_place():
    ppo, fresh = make_ppo(), make_ppo()
    learn(ppo, 1)
    assert ppo.learning_rate != fresh.learning_rate
    places = [tensor.data_ptr() for tensor in (*fresh.update_state(), *fresh.tensors())]
    fresh.set_state(ppo.state(), learning_rate=False)
    assert fresh.learning_rate == pytest.approx(1e-3)
    assert [t.data_ptr() for t in (*fresh.update_state(), *fresh.tensors())] == places


@pytest.mark.parametrize(
    ("model", "optimizer"), [("mlp", "adam"), ("mlp", "adamw"), ("gru", "adam")]
)
def test_steps_without_finite_gradients_are_skipped_and_counted(model, optimizer):
    ppo = make_ppo(model, optimizer=optimizer, num_learning_epochs=1)
    learn(ppo, 1)
    assert ppo.skipped_steps == 0
    roll_out(ppo, seed=2)
    before = copies(ppo.update_state())
    ppo.storage.returns.fill_(1e30)  # its square is infinite
    assert ppo.update()["value"] == math.inf
    assert ppo.skipped_steps == 3
    parameters, *_, step, mean, square = ppo.update_state()[:-1]
    assert torch.equal(parameters, before[0])
    assert all(map(torch.equal, (step, mean, square), before[-4:-1]))
    learn(ppo, 3)
    assert ppo.skipped_steps == 0
    assert parameters.isfinite().all()
    assert not torch.equal(parameters, before[0])
