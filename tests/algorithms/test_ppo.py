"""PPO against calculations by hand, against plain autograd, and against rsl_rl's own."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from rsl_rl.algorithms import PPO as RslPPO
from rsl_rl.storage import RolloutStorage
from rsl_rl_runner import move_on
from tensordict import TensorDict
from torch import Tensor

from simtrain import ActorCfg, CriticCfg, PpoCfg
from simtrain.algorithms.learners.losses import PolicyStd, Samples
from simtrain.algorithms.ppo import LOSSES, PPO
from simtrain.launch.rank import Rank

ALONE = Rank(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"), seed=0, threads=1)
ENVS, STEPS, OBS, ACTIONS = 4, 6, 3, 2


def _ppo(steps=STEPS, num_envs=ENVS, obs_size=OBS, normalize=True, hidden=(8,), **changes) -> PPO:
    cfg = PpoCfg(
        actor=ActorCfg(hidden_dims=hidden, obs_normalization=normalize, init_std=0.7),
        critic=CriticCfg(hidden_dims=hidden, obs_normalization=normalize),
        **changes,
    )
    ppo = PPO(cfg, _obs(torch.randn(num_envs, obs_size)), ACTIONS, steps, ALONE)
    ppo.train_mode()
    return ppo


def _obs(actor: Tensor) -> TensorDict:
    return TensorDict({"actor": actor}, batch_size=[len(actor)])


def _roll_out(ppo: RslPPO, seed: int) -> None:
    """Fill the storage with made-up transitions: one failure and one time-out among them."""
    torch.manual_seed(seed)
    with torch.inference_mode():
        obs = _obs(torch.randn(ENVS, OBS))
        for step in range(STEPS):
            ppo.act(obs)
            obs = _obs(2.0 * torch.randn(ENVS, OBS) + 1.0)
            dones, time_outs = torch.zeros(2, ENVS, dtype=torch.bool)
            dones[1] = time_outs[1] = step == 2
            dones[3] = step == 4
            ppo.process_env_step(obs, torch.randn(ENVS), dones, {"time_outs": time_outs})
        ppo.compute_returns(obs)
    move_on(ppo)


# Returns and advantages -------------------------------------------------------------------------


def _linear_ppo(**changes) -> PPO:
    """One environment, three steps; the value of a (positive) observation is itself."""
    ppo = _ppo(
        steps=3,
        num_envs=1,
        obs_size=1,
        normalize=False,
        hidden=(1,),
        gamma=0.5,
        lam=0.5,
        normalize_advantage_per_mini_batch=True,  # or the advantages would be normalized here
        **changes,
    )
    for parameter in ppo.critic.parameters():
        parameter.data.fill_(1.0 if parameter.ndim == 2 else 0.0)
    return ppo


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
    ppo = _linear_ppo()
    observed, rewards = [0.5, 1.0, 2.0, 4.0], [1.0, 2.0, 3.0]
    with torch.inference_mode():
        for step in range(3):
            ppo.act(_obs(torch.tensor([[observed[step]]])))
            ended = torch.tensor([step == end])
            extras = {"time_outs": ended & cut}
            obs = _obs(torch.tensor([[observed[step + 1]]]))
            ppo.process_env_step(obs, torch.tensor([rewards[step]]), ended, extras)
        ppo.compute_returns(obs)
    torch.testing.assert_close(ppo.storage.values.flatten(), torch.tensor(observed[:3]))
    torch.testing.assert_close(ppo.storage.advantages.flatten(), torch.tensor(advantages))
    returns = torch.tensor(advantages) + torch.tensor(observed[:3])
    torch.testing.assert_close(ppo.storage.returns.flatten(), returns)


def test_advantages_are_normalized_over_the_rollout():
    ppo = _ppo()
    _roll_out(ppo, seed=1)
    std, mean = torch.std_mean(ppo.storage.advantages)
    assert mean == pytest.approx(0.0, abs=1e-6)
    assert std == pytest.approx(1.0, abs=1e-6)


def test_advantages_are_normalized_in_each_mini_batch():
    ppo = _ppo(num_mini_batches=3, normalize_advantage_per_mini_batch=True)
    _roll_out(ppo, seed=1)
    ppo.update()
    assert len(ppo.learner.mini_batches) == 3
    for batch in ppo.learner.mini_batches:
        std, mean = torch.std_mean(batch.advantages)
        assert mean == pytest.approx(0.0, abs=1e-6)
        assert std == pytest.approx(1.0, abs=1e-6)


# Losses and gradients ---------------------------------------------------------------------------


def _samples(ppo: PPO, count=5) -> Samples:
    mean = torch.randn(count, ACTIONS)
    std = torch.tensor([0.9, 0.6])
    actions = mean + std * torch.randn_like(mean)
    return Samples(
        actor_input=torch.randn(count, OBS),
        critic_input=torch.randn(count, OBS),
        actions=actions,
        actions_log_prob=_log_prob(actions, mean, std).unsqueeze(1),
        values=torch.randn(count, 1),
        returns=torch.randn(count, 1),
        advantages=2.0 * torch.randn(count, 1) + 1.0,
        mean=mean,
        std=std,
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

        value, old, target = (
            network("critic", batch.critic_input[i]),
            batch.values[i],
            batch.returns[i],
        )
        errors = [(value - target) ** 2]
        if clip_value:
            near = old + (value - old).clamp(-clip, clip)
            errors.append((near - target) ** 2)
        value_loss.append(max(errors))

        old_mean, old_std = batch.mean[i], batch.std
        variance = old_std**2 + (old_mean - mean) ** 2
        divergence.append(((std / old_std).log() + variance / (2.0 * std**2) - 0.5).sum())
    entropy = (0.5 + 0.5 * math.log(2.0 * math.pi) + std.log()).sum()
    return (
        torch.stack(surrogate).mean(),
        torch.stack(value_loss).mean(),
        entropy,
        torch.stack(divergence).mean(),
    )


@pytest.mark.parametrize("clip_value", [True, False])
def test_losses_and_gradients_are_those_of_the_formulas(clip_value):
    ppo = _ppo(
        normalize=False,
        use_clipped_value_loss=clip_value,
        value_loss_coef=0.5,
        entropy_coef=0.03,
        max_grad_norm=1e9,
        schedule="fixed",
    )
    batch = _samples(ppo)
    named = {
        f"{name}.{key}": parameter
        for name in ("actor", "critic")
        for key, parameter in getattr(ppo, name).named_parameters()
    }
    copies = {key: p.detach().clone().requires_grad_() for key, p in named.items()}
    surrogate, value, entropy, kl = _by_hand(batch, copies, 0.2, clip_value)
    (surrogate + 0.5 * value - 0.03 * entropy).backward()

    losses = dict(zip(LOSSES, ppo.learn(batch), strict=True))
    torch.testing.assert_close(losses["surrogate"], surrogate)
    torch.testing.assert_close(losses["value"], value)
    torch.testing.assert_close(losses["entropy"], entropy)
    torch.testing.assert_close(losses["kl"], kl)
    for key, parameter in named.items():
        torch.testing.assert_close(parameter.grad, copies[key].grad, msg=key)


@pytest.mark.parametrize(("std_type", "std"), [("scalar", 0.7), ("log", 0.7), ("scalar", 2e6)])
def test_the_standard_deviation_gets_the_gradient_of_its_parameter(std_type, std):
    actor = ActorCfg(hidden_dims=(8,), std_type=std_type, init_std=std)
    ppo = PPO(PpoCfg(actor, schedule="fixed"), _obs(torch.randn(ENVS, OBS)), ACTIONS, STEPS, ALONE)
    distribution = ppo.actor.distribution
    distribution.update(torch.zeros(1, ACTIONS))
    torch.testing.assert_close(ppo.std, distribution.std[0].detach())
    (parameter,) = distribution.parameters()
    weights = torch.tensor([2.0, -3.0])
    (expected,) = torch.autograd.grad((weights * distribution.std).sum(), parameter)
    PolicyStd(distribution).backward(weights, ppo.std)
    torch.testing.assert_close(parameter.grad, expected)  # none beyond what rsl_rl clamps to


def test_the_standard_deviation_stays_in_its_range():
    actor = ActorCfg(hidden_dims=(8,), init_std=0.2, std_range=(0.15, 0.25))
    cfg = PpoCfg(actor, entropy_coef=-10.0, learning_rate=0.02, schedule="fixed")
    ppo = PPO(cfg, _obs(torch.randn(ENVS, OBS)), ACTIONS, STEPS, ALONE)
    batch = _samples(ppo)
    for _ in range(20):
        ppo.learn(batch)
    torch.testing.assert_close(ppo.std, torch.full((ACTIONS,), 0.15))


# Against rsl_rl ---------------------------------------------------------------------------------


def _theirs(ours: PPO, **changes) -> RslPPO:
    """rsl_rl's PPO with the same networks and settings."""
    theirs = RslPPO(
        copy.deepcopy(ours.actor),
        copy.deepcopy(ours.critic),
        RolloutStorage("rl", ENVS, STEPS, _obs(torch.zeros(ENVS, OBS)), [ACTIONS]),
        **changes,
    )
    theirs.train_mode()
    return theirs


VARIANTS = {
    "adaptive": {"schedule": "adaptive", "desired_kl": 0.01},
    "fixed": {"schedule": "fixed", "learning_rate": 3e-3},
    "value not clipped": {"use_clipped_value_loss": False},
    "advantages per mini-batch": {"normalize_advantage_per_mini_batch": True},
    "adamw, little gradients": {"optimizer": "adamw", "max_grad_norm": 0.05},
    "far from desired": {"desired_kl": 1e-4, "learning_rate": 5e-3},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_three_iterations_are_those_of_rsl_rl(variant):
    ours = _ppo(**VARIANTS[variant], num_mini_batches=3)
    theirs = _theirs(ours, **VARIANTS[variant], num_mini_batches=3)
    for iteration in range(3):
        for ppo in (ours, theirs):
            _roll_out(ppo, seed=iteration)
        for name in ("actions", "values", "returns", "advantages", "actions_log_prob"):
            mine, other = getattr(ours.storage, name), getattr(theirs.storage, name)
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5, msg=name)
        losses = []
        for ppo in (ours, theirs):
            torch.manual_seed(100 + iteration)  # the same permutation
            losses.append(ppo.update())
        for name, value in losses[1].items():
            assert losses[0][name] == pytest.approx(value, abs=1e-5), name
        assert ours.learning_rate == pytest.approx(theirs.learning_rate, rel=1e-5)
        for name in ("actor", "critic"):
            # Normalizers included: learned once an update, from the same observations.
            mine, other = getattr(ours, name).state_dict(), getattr(theirs, name).state_dict()
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=0.0)


def test_the_divergence_that_is_aimed_at_goes_to_its_end_in_equal_steps():
    rates = []
    for progress, aim in ((0.0, 1e-4), (0.5, 1e-2), (1.0, 1.99e-2)):
        changing, constant = _ppo(desired_kl=1e-4, desired_kl_end=1.99e-2), _ppo(desired_kl=aim)
        constant.load(changing.save())
        for ppo in (changing, constant):
            _roll_out(ppo, seed=0)
            torch.manual_seed(1)
        changing.update(progress=progress)
        torch.manual_seed(1)
        constant.update()
        assert changing.learning_rate == constant.learning_rate
        for mine, other in zip(changing.tensors(), constant.tensors(), strict=True):
            assert torch.equal(mine, other)
        rates.append(changing.learning_rate)
    assert rates == sorted(set(rates))


# Observation statistics, checkpoints -----------------------------------------------


def test_observation_statistics_are_learned_once_an_update():
    ppo = _ppo()
    _roll_out(ppo, seed=0)
    assert ppo.actor.obs_normalizer.count == 0
    observed = ppo.storage.observations["actor"].flatten(0, 1).clone()
    ppo.update()
    for network in (ppo.actor, ppo.critic):
        assert network.obs_normalizer.count == ENVS * STEPS
        torch.testing.assert_close(network.obs_normalizer.mean, observed.mean(dim=0))
        std = observed.std(dim=0, unbiased=False)
        torch.testing.assert_close(network.obs_normalizer.std, std)


def test_a_checkpoint_continues_as_if_nothing_had_happened(tmp_path):
    first, second = _ppo(), _ppo()
    for seed in range(2):
        _roll_out(first, seed)
        first.update()
    torch.save(first.save(), tmp_path / "model.pt")
    assert second.load(torch.load(tmp_path / "model.pt", weights_only=True))
    assert second.learning_rate == first.learning_rate
    for ppo in (first, second):
        _roll_out(ppo, seed=3)
        torch.manual_seed(4)
        ppo.losses_of_update = ppo.update()
    assert first.losses_of_update == second.losses_of_update
    for name in ("actor", "critic"):
        first_state, second_state = (
            getattr(first, name).state_dict(),
            getattr(second, name).state_dict(),
        )
        for key, value in first_state.items():
            assert torch.equal(value, second_state[key]), key


def test_a_checkpoint_holds_plain_numbers_for_rsl_rls_optimizer():
    ppo = _ppo(learning_rate=2e-3)
    (group,) = ppo.save()["optimizer_state_dict"]["param_groups"]
    assert group["lr"] == pytest.approx(2e-3)
    assert type(group["lr"]) is float
    # What was saved is not what goes on: the optimizer's own rate is still a tensor on the device.
    assert isinstance(ppo.optimizer.param_groups[0]["lr"], Tensor)


def test_rsl_rls_optimizer_goes_on_from_a_checkpoint_and_ours_from_its():
    ours = _ppo(num_mini_batches=3)
    theirs = _theirs(ours, num_mini_batches=3)
    for ppo in (ours, theirs):
        _roll_out(ppo, seed=1)
        torch.manual_seed(2)
        ppo.update()
    again = _ppo(num_mini_batches=3)
    again.load(theirs.save())
    theirs.load(copy.deepcopy(ours.save()), None, True)
    for ppo in (ours, theirs, again):
        _roll_out(ppo, seed=3)
        torch.manual_seed(4)
        ppo.update()
    for ppo in (theirs, again):
        for mine, other in zip(ours.actor.parameters(), ppo.actor.parameters(), strict=True):
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=0.0)


def test_an_optimizers_state_of_other_networks_is_refused():
    ppo, other = _ppo(), _ppo(hidden=(9,))
    _roll_out(other, seed=1)
    other.update()
    optimizer = other.save()["optimizer_state_dict"]
    with pytest.raises(RuntimeError, match="networks of other shapes"):
        ppo.load({**ppo.save(), "optimizer_state_dict": optimizer})


def test_a_critic_sees_its_own_group_if_there_is_one():
    obs = TensorDict({"actor": torch.zeros(2, 3), "critic": torch.zeros(2, 5)}, batch_size=[2])
    ppo = PPO(PpoCfg(), obs, ACTIONS, STEPS, ALONE)
    assert (ppo.actor.obs_dim, ppo.critic.obs_dim) == (3, 5)
    assert _ppo().critic.obs_dim == OBS


def test_a_remainder_of_the_rollout_is_left_out_of_the_mini_batches():
    batches = list(_samples(_ppo(), count=7).mini_batches(3))
    assert [len(batch.actions) for batch in batches] == [2, 2, 2]


# Gradients that are not finite ------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_steps_without_finite_gradients_are_skipped_and_counted(optimizer):
    ppo = _ppo(optimizer=optimizer, num_learning_epochs=1, num_mini_batches=2)
    _roll_out(ppo, seed=1)
    ppo.update()
    assert ppo.skipped_steps == 0
    _roll_out(ppo, seed=2)
    before = copy.deepcopy(ppo.state())
    ppo.storage.returns.fill_(1e30)  # its square is infinite
    losses = ppo.update()
    assert ppo.skipped_steps == 2
    assert losses["value"] == math.inf
    after = ppo.state()
    for name, value in before["actor_state_dict"].items():
        if "normalizer" not in name:
            assert torch.equal(value, after["actor_state_dict"][name]), name
    for i, moments in before["optimizer_state_dict"]["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, after["optimizer_state_dict"]["state"][i][name]), name
    _roll_out(ppo, seed=3)
    ppo.update()
    assert ppo.skipped_steps == 0
    weights = ppo.state()["actor_state_dict"]["mlp.0.weight"]
    assert weights.isfinite().all()
    assert not torch.equal(weights, before["actor_state_dict"]["mlp.0.weight"])


def test_a_state_goes_on_the_same_and_may_leave_out_the_learning_rate():
    first = _ppo()
    _roll_out(first, seed=1)
    first.update()
    saved = copy.deepcopy(first.state())
    results = []
    trained = _ppo()  # moments that it has already are replaced
    _roll_out(trained, seed=5)
    trained.update()
    for ppo in (first, trained, _ppo()):
        if ppo is not first:
            ppo.set_state(saved, learning_rate=len(results) == 1)
        rate = float(ppo.state()["optimizer_state_dict"]["param_groups"][0]["lr"])
        _roll_out(ppo, seed=2)
        results.append((rate, ppo.update(), [t.clone() for t in ppo.tensors()]))
    (rate, losses, tensors), (same_rate, same_losses, same_tensors), (new_rate, *_) = results
    assert (same_rate, same_losses) == (rate, losses)
    assert all(torch.equal(a, b) for a, b in zip(tensors, same_tensors, strict=True))
    assert new_rate == pytest.approx(1e-3)
    assert rate != new_rate


def test_a_state_is_loaded_into_the_tensors_that_are_there():
    ppo, fresh = _ppo(), _ppo().state()
    _roll_out(ppo, seed=1)
    ppo.update()
    trained = copy.deepcopy(ppo.state())
    places = [tensor.data_ptr() for tensor in (*ppo.update_state(), *ppo.tensors())]
    for state in (fresh, trained):
        ppo.set_state(state)
        assert [t.data_ptr() for t in (*ppo.update_state(), *ppo.tensors())] == places
        for i, moments in state["optimizer_state_dict"]["state"].items():
            for name, value in moments.items():
                now = ppo.state()["optimizer_state_dict"]["state"][i][name]
                assert torch.equal(now, value), name


def test_a_state_from_before_the_first_step_begins_without_moments():
    ppo = _ppo()
    _roll_out(ppo, seed=1)
    ppo.update()
    optimizer = {**ppo.state()["optimizer_state_dict"], "state": {}}  # as Adam has it there
    ppo.set_state({**ppo.state(), "optimizer_state_dict": optimizer})
    for moments in ppo.state()["optimizer_state_dict"]["state"].values():
        assert not any(value.any() for value in moments.values())
