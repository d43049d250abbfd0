"""Models that learn by autograd against rsl_rl's own PPO, and what they keep between steps."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO as RslPPO
from rsl_rl.models import MLPModel, RNNModel
from rsl_rl.storage import RolloutStorage
from rsl_rl_runner import move_on
from tensordict import TensorDict
from torch import Tensor
from waiting import RefuseWaiting

from simtrain import ActorCfg, CnnCfg, CriticCfg, PpoCfg
from simtrain.algorithms.learners.autograd import AutogradLearner
from simtrain.algorithms.learners.gaussian_mlp import GaussianMlpLearner
from simtrain.algorithms.ppo import PPO
from simtrain.errors import ConfigError
from simtrain.launch.rank import Rank

ALONE = Rank(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"), seed=0, threads=1)
ENVS, STEPS, ACTIONS = 6, 8, 2


class Twice(MLPModel):
    """A user's own network: sees each observation, and its square."""

    def get_latent(self, obs, masks=None, hidden_state=None):
        latent = super().get_latent(obs, masks, hidden_state)
        return torch.cat((latent, latent.square()), dim=-1)

    def _get_latent_dim(self):
        return 2 * self.obs_dim


class Remembers(RNNModel):
    """A user's own recurrent network; its sizes are those of the flags."""


class NeedsMore(MLPModel):
    def __init__(self, *args: Any, wanted: int, **more: Any) -> None:
        super().__init__(*args, **more)


KINDS: dict[str, dict[str, Any]] = {
    "mlp": {"distribution": "heteroscedastic", "std_type": "log"},
    "gru": {"rnn_num_layers": 2},
    "lstm": {},
    "cnn": {"obs_groups": ("actor", "camera")},
    f"{__name__}:Twice": {},
    f"{__name__}:Remembers": {"distribution": "beta"},
}


def _ppo(model: str, critic: str | None = None, *, num_envs=ENVS, **changes: Any) -> PPO:
    small = {"hidden_dims": (8,), "rnn_hidden_dim": 5, "cnn": CnnCfg((2, 3))}
    own = KINDS.get(model, {})
    shared = {name: own[name] for name in own if name in ("obs_groups", "rnn_num_layers")}
    cfg = PpoCfg(
        ActorCfg(model=model, init_std=0.7, **small, **own),
        CriticCfg(model=critic or model, **small, **shared),
        num_mini_batches=3,
        **changes,
    )
    torch.manual_seed(0)
    ppo = PPO(cfg, _obs(num_envs), ACTIONS, STEPS, ALONE)
    ppo.train_mode()
    return ppo


def _obs(num_envs: int = ENVS) -> TensorDict:
    groups = {"actor": torch.randn(num_envs, 3) + 1.0, "camera": torch.randn(num_envs, 1, 8, 6)}
    return TensorDict(groups, batch_size=[num_envs])


def _theirs(ours: PPO, **changes: Any) -> RslPPO:
    """rsl_rl's PPO with the same networks and settings."""
    actor, critic = copy.deepcopy(ours.actor), copy.deepcopy(ours.critic)
    storage = RolloutStorage("rl", ENVS, STEPS, _obs(), [ACTIONS])
    theirs = RslPPO(actor, critic, storage, num_mini_batches=3, **changes)
    for network in (actor, critic):
        network.reset()  # what ours has seen to find out shapes
    theirs.train_mode()
    return theirs


def _roll_out(ppo: RslPPO, seed: int) -> None:
    """Fill the storage with made-up transitions: episodes end in some places, one of them twice."""
    with torch.inference_mode():
        for step in range(STEPS + 1):
            torch.manual_seed(1000 * seed + step)
            obs = _obs()
            if step > 0:
                dones, time_outs = torch.zeros(2, ENVS, dtype=torch.bool)
                dones[1] = time_outs[1] = step == 3
                dones[3] = step in (2, 5)
                dones[5] = step == STEPS
                ppo.process_env_step(obs, torch.randn(ENVS), dones, {"time_outs": time_outs})
            if step < STEPS:
                ppo.act(obs)
        ppo.compute_returns(obs)
    move_on(ppo)


@pytest.mark.parametrize("model", KINDS)
def test_an_update_is_that_of_rsl_rl(model):
    changes = {"max_grad_norm": 0.3, "normalize_advantage_per_mini_batch": model == "lstm"}
    ours = _ppo(model, **changes)
    assert type(ours.learner) is AutogradLearner
    theirs = _theirs(ours, **changes)
    # A GRU goes on from what it remembers. Beta draws, and a divergence near zero, turn on a bit.
    for iteration in range(2 if model == "gru" else 1):
        for ppo in (ours, theirs):
            _roll_out(ppo, seed=iteration)
        for name in ("actions", "values", "returns", "advantages", "actions_log_prob"):
            mine, other = getattr(ours.storage, name), getattr(theirs.storage, name)
            if name != "advantages" or not changes["normalize_advantage_per_mini_batch"]:
                torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5, msg=name)
        losses = []
        for ppo in (ours, theirs):
            torch.manual_seed(100 + iteration)  # the same permutation
            losses.append(ppo.update())
        for name, value in losses[1].items():
            assert losses[0][name] == pytest.approx(value, abs=1e-5), name
        assert ours.learning_rate == pytest.approx(theirs.learning_rate, rel=1e-5)
        for name in ("actor", "critic"):
            mine, other = getattr(ours, name).state_dict(), getattr(theirs, name).state_dict()
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=0.0)


def test_a_recurrent_policy_may_have_a_critic_that_remembers_nothing():
    ours = _ppo("gru", "mlp", normalize_advantage_per_mini_batch=False)
    theirs = _theirs(ours)
    for ppo in (ours, theirs):
        _roll_out(ppo, seed=0)
        ppo.update()
    for name in ("actor", "critic"):
        mine, other = getattr(ours, name).state_dict(), getattr(theirs, name).state_dict()
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=0.0)


def test_mlps_with_a_gaussian_of_one_standard_deviation_need_no_autograd():
    cfg = PpoCfg(ActorCfg((8,)), CriticCfg((8,)))
    ppo = PPO(cfg, _obs(), ACTIONS, STEPS, ALONE)
    assert type(ppo.learner) is GaussianMlpLearner
    assert type(_ppo("gru", "mlp").learner) is AutogradLearner


def test_what_is_remembered_ends_with_an_episode():
    ppo = _ppo("lstm")
    with torch.inference_mode():
        ppo.act(_obs())
        states = ppo.hidden_states()
        assert [tuple(state.shape) for state in states] == [(1, ENVS, 5)] * 4  # h and c of both
        assert all(state.abs().sum(dim=-1).all() for state in states)
        dones = torch.arange(ENVS) == 2
        places = [state.data_ptr() for state in states]
        ppo.process_env_step(_obs(), torch.zeros(ENVS), dones, {"time_outs": dones})
        for state in ppo.hidden_states():
            assert (state[0].abs().sum(dim=1) == 0).tolist() == dones.tolist()
        ppo.act(_obs())
    assert [state.data_ptr() for state in ppo.hidden_states()] == places


def test_the_value_after_a_rollout_is_not_remembered():
    ppo = _ppo("gru")
    _roll_out(ppo, seed=0)
    before = [state.clone() for state in ppo.hidden_states()]
    with torch.inference_mode():
        ppo.compute_returns(_obs())
    assert all(map(torch.equal, before, ppo.hidden_states()))


@pytest.mark.parametrize("model", ["lstm", "cnn"])
def test_a_state_with_what_is_remembered_goes_on_the_same_to_the_bit(model):
    first, second = _ppo(model), _ppo(model)
    for seed in range(2):
        _roll_out(first, seed)
        first.update()
    second.set_state(copy.deepcopy(first.state()))
    second.set_hidden_states([state.clone() for state in first.hidden_states()])
    results = []
    for ppo in (first, second):
        _roll_out(ppo, seed=5)
        torch.manual_seed(6)
        results.append((ppo.update(), [t.clone() for t in ppo.tensors()]))
    assert results[0][0] == results[1][0]
    assert all(map(torch.equal, results[0][1], results[1][1]))


def test_gradients_stay_in_the_flat_buffer_and_an_infinite_one_skips_the_step():
    ppo = _ppo("gru", num_learning_epochs=1)
    places = [parameter.grad.data_ptr() for parameter in ppo.actor.parameters()]
    _roll_out(ppo, seed=0)
    before = [parameter.clone() for parameter in ppo.actor.parameters()]
    ppo.storage.returns.fill_(1e30)  # its square is infinite
    ppo.update()
    assert ppo.skipped_steps == 3
    assert all(map(torch.equal, before, ppo.actor.parameters()))
    assert [parameter.grad.data_ptr() for parameter in ppo.actor.parameters()] == places
    assert ppo.gradients.buffer.abs().sum() > 0


@pytest.mark.parametrize("model", ["gru", "cnn"])
def test_a_step_does_not_wait_for_the_device(model):
    ppo = _ppo(model)
    obs, dones, rewards = _obs(), torch.arange(ENVS) == 2, torch.randn(ENVS)
    with torch.inference_mode(), RefuseWaiting():
        ppo.begin_rollout()
        transition = ppo.storage.transitions[0]
        ppo.act_in(obs, transition)
        ppo.record(transition, rewards, dones, dones)
    if model == "cnn":  # a recurrent one's trajectories depend on the data
        _roll_out(ppo, seed=0)
        with RefuseWaiting():
            ppo.learner.shuffle()
            ppo.learn_mini_batch(0)


def test_autograds_graph_is_let_go_after_a_mini_batch():
    ppo = _ppo("cnn")
    _roll_out(ppo, seed=0)
    ppo.update()
    assert not ppo.actor.output_mean.requires_grad
    assert not ppo.actor.output_std.requires_grad


REFUSED = {
    "cnn": ("actor", "cnn, and the observations in actor are flat; it needs a group"),
    "mlp": ("camera", r"mlp, and camera has shape \(1, 8, 6\); images need a cnn"),
    "gru": ("camera", "gru, and camera has shape"),
    f"{__name__}:Nothing": ("actor", "cannot be found: module .* has no attribute 'Nothing'"),
    f"{__name__}:NeedsMore": ("actor", "it cannot be made: .* 'wanted'"),
    f"{__name__}:_obs": ("actor", "is no class derived from rsl_rl.models.MLPModel"),
}


@pytest.mark.parametrize("model", REFUSED)
def test_a_model_that_does_not_fit_is_refused_by_name(model):
    group, message = REFUSED[model]
    cfg = PpoCfg(ActorCfg(model=model, obs_groups=(group,)))
    with pytest.raises(ConfigError, match=f"--ppo.actor.model .*{message}"):
        PPO(cfg, _obs(), ACTIONS, STEPS, ALONE)


def test_a_kernel_larger_than_the_image_is_refused():
    cnn = CnnCfg((2,), kernel_size=(9,), padding="none")
    cfg = PpoCfg(ActorCfg(model="cnn", obs_groups=("camera",), cnn=cnn))
    with pytest.raises(
        ConfigError, match=r"is cnn, and it cannot be made: .* Kernel size: \(9 x 9"
    ):
        PPO(cfg, _obs(), ACTIONS, STEPS, ALONE)


def test_statistics_are_of_the_flat_observations():
    ppo = _ppo("cnn")
    _roll_out(ppo, seed=0)
    seen: Tensor = ppo.storage.observations["actor"].flatten(0, 1).clone()
    ppo.update()
    torch.testing.assert_close(ppo.actor.obs_normalizer.mean, seen.mean(dim=0))
    only_images = ActorCfg((8,), model="cnn", obs_groups=("camera",))
    ppo = PPO(PpoCfg(only_images, CriticCfg((8,), obs_groups=("actor",))), _obs(), 2, 8, ALONE)
    assert not ppo.actor.obs_normalization
