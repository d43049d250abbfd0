"""PPO against calculations by hand and against plain autograd; states and observed numbers."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from against_rsl_rl import ENVS, STEPS, copies, learn, make_ppo, roll_out
from tensordict import TensorDict
from torch import Tensor

from simtrain.algorithms.cfg import RndCfg
from simtrain.algorithms.learners.losses import PolicyStd, Samples
from simtrain.algorithms.ppo import (
    LOSSES,
    MAX_LEARNING_RATE,
    MIN_LEARNING_RATE,
    PPO,
    adapt_learning_rate,
)
from simtrain.algorithms.rollout import Rollout, estimate_advantages

ACTIONS = 2
OLD_STD = torch.tensor([0.9, 0.6])

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


def test_advantages_of_many_environments_are_those_of_the_definition():
    """Every fourth step ends an episode, and half of these are cuts."""
    rollout, last = _rollout(7, 33), torch.randn(33, 1)
    rollout.dones.bernoulli_(0.25)
    rollout.time_outs.bernoulli_(0.5).logical_and_(rollout.dones)
    rollout.rewards.normal_()
    rollout.values.normal_()
    estimate_advantages(rollout, last, 0.97, 0.9)
    names = ("rewards", "dones", "time_outs", "values", "advantages")
    rows = [getattr(rollout, name)[:, :, 0].double().numpy() for name in names]
    following, advantage = last[:, 0].double().numpy(), np.zeros(33)
    for reward, done, cut, value, estimated in reversed(list(zip(*rows, strict=True))):
        goes_on = 1.0 - done
        delta = reward + 0.97 * (goes_on * following + cut * value) - value
        advantage, following = delta + 0.97 * 0.9 * goes_on * advantage, value
        np.testing.assert_allclose(estimated, advantage, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("per_mini_batch", [False, True])
def test_advantages_are_normalized(per_mini_batch):
    ppo = make_ppo(normalize_advantage_per_mini_batch=per_mini_batch)
    learn(ppo, 1)
    batches = [batch.advantages for batch in ppo.learner.mini_batches]  # type: ignore[attr-defined]
    for advantages in batches if per_mini_batch else [ppo.storage.advantages]:
        std, mean = torch.std_mean(advantages)
        assert mean == pytest.approx(0.0, abs=1e-6)
        assert std == pytest.approx(1.0, abs=1e-6)


# Losses and gradients ---------------------------------------------------------------------------


def _samples(count: int = 5) -> Samples:
    mean = torch.randn(count, ACTIONS)
    actions = mean + OLD_STD * torch.randn_like(mean)
    return Samples(
        actor_input=torch.randn(count, 3),
        critic_input=torch.randn(count, 3),
        actions=actions,
        actions_log_prob=_log_prob(actions, mean, OLD_STD).unsqueeze(1),
        values=torch.randn(count, 1),
        returns=torch.randn(count, 1),
        advantages=2.0 * torch.randn(count, 1) + 1.0,
        mean=mean,
    )


def _log_prob(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    each = -0.5 * ((x - mean) / std) ** 2 - std.log() - 0.5 * math.log(2.0 * math.pi)
    return each.sum(dim=-1)


def _by_hand(
    batch: Samples, parameters: dict[str, Tensor], clip: float, clip_value: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Surrogate, value loss, entropy and divergence from the formulas, with loops over samples."""

    def network(name: str, x: Tensor) -> Tensor:
        p = {key.removeprefix(f"{name}."): value for key, value in parameters.items()}
        hidden = torch.nn.functional.elu(p["mlp.0.weight"] @ x + p["mlp.0.bias"])
        return p["mlp.2.weight"] @ hidden + p["mlp.2.bias"]

    advantages = batch.advantages.flatten()
    std = parameters["actor.distribution.std_param"]
    surrogate, value_loss, divergence = [], [], []
    for i in range(len(batch.actions)):
        mean = network("actor", batch.actor_input[i])
        ratio = (_log_prob(batch.actions[i], mean, std) - batch.actions_log_prob[i, 0]).exp()
        bounded = min(max(ratio, torch.tensor(1.0 - clip)), torch.tensor(1.0 + clip))
        surrogate.append(-min(ratio * advantages[i], bounded * advantages[i]))

        value, old = network("critic", batch.critic_input[i]), batch.values[i]
        target = batch.returns[i]
        errors = [(value - target) ** 2]
        if clip_value:
            near = old + (value - old).clamp(-clip, clip)
            errors.append((near - target) ** 2)
        value_loss.append(max(errors))

        variance = OLD_STD**2 + (batch.mean[i] - mean) ** 2
        divergence.append(((std / OLD_STD).log() + variance / (2.0 * std**2) - 0.5).sum())
    entropy = (0.5 + 0.5 * math.log(2.0 * math.pi) + std.log()).sum()
    return (
        torch.stack(surrogate).mean(),
        torch.stack(value_loss).mean(),
        entropy,
        torch.stack(divergence).mean(),
    )


@pytest.mark.parametrize("clip_value", [True, False])
def test_losses_and_gradients_are_those_of_the_formulas(clip_value):
    ppo = make_ppo(
        actor={"obs_normalization": False},
        value={"obs_normalization": False},
        use_clipped_value_loss=clip_value,
        value_loss_coef=0.5,
        entropy_coef=0.03,
        max_grad_norm=1e9,
        schedule="fixed",
    )
    batch = _samples()
    ppo.begin_rollout()
    ppo.learner._rollout_std.copy_(OLD_STD)  # type: ignore[attr-defined]
    named = {
        f"{name}.{key}": parameter
        for name in ("actor", "critic")
        for key, parameter in getattr(ppo, name).named_parameters()
    }
    clones = {key: p.detach().clone().requires_grad_() for key, p in named.items()}
    surrogate, value, entropy, kl = _by_hand(batch, clones, 0.2, clip_value)
    (surrogate + 0.5 * value - 0.03 * entropy).backward()
    losses = dict(zip(LOSSES, ppo.learn(batch), strict=True))
    expected = {"surrogate": surrogate, "value": value, "entropy": entropy, "kl": kl}
    torch.testing.assert_close(losses, expected)
    for key, parameter in named.items():
        torch.testing.assert_close(parameter.grad, clones[key].grad, msg=key)


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
    ppo.begin_rollout()
    for _ in range(20):
        ppo.learn(_samples())
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


def test_the_divergence_that_is_aimed_at_goes_to_its_end_in_equal_steps():
    rates = []
    for progress, aim in ((0.0, 1e-4), (0.5, 1e-2), (1.0, 1.99e-2)):
        changing = make_ppo(desired_kl=1e-4, desired_kl_end=1.99e-2)
        constant = make_ppo(desired_kl=aim)
        for ppo in (changing, constant):
            roll_out(ppo, seed=0)
            torch.manual_seed(1)
            ppo.update(progress=progress)
        assert changing.learning_rate == constant.learning_rate
        assert all(map(torch.equal, changing.tensors(), constant.tensors()))
        rates.append(changing.learning_rate)
    assert rates == sorted(set(rates))


def test_a_remainder_of_the_rollout_is_left_out_of_the_mini_batches():
    batches = make_ppo(num_mini_batches=5).learner.mini_batches  # type: ignore[attr-defined]
    assert [len(batch.actions) for batch in batches] == [ENVS * STEPS // 5] * 5


# Observation statistics, states -----------------------------------------------------------------


def test_observation_statistics_are_learned_once_an_update():
    groups = {"obs_groups": ("actor", "camera")}
    ppo = make_ppo("cnn", "mlp", actor=groups, value={"obs_groups": ("actor",)})
    roll_out(ppo, seed=0)
    assert ppo.actor.obs_normalizer.count == 0
    flat = ppo.storage.observations["actor"].flatten(0, 1).clone()
    ppo.update()
    for network in (ppo.actor, ppo.critic):
        assert network.obs_normalizer.count == ENVS * STEPS
        torch.testing.assert_close(network.obs_normalizer.mean, flat.mean(dim=0))
        torch.testing.assert_close(network.obs_normalizer.std, flat.std(dim=0, unbiased=False))


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
