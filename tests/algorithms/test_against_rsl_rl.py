"""Updates and checkpoints are those of rsl_rl's own PPO: all kinds of networks and extensions."""

import copy
from typing import Any

import pytest
import torch
from against_rsl_rl import learn, make_ppo, reference, same_updates
from rsl_rl.models import MLPModel, RNNModel

from simtrain.algorithms.cfg import RndCfg, SymmetryCfg
from simtrain.algorithms.learners.autograd import AutogradLearner
from simtrain.algorithms.learners.gaussian_mlp import GaussianMlpLearner


class Twice(MLPModel):
    """A user's own network: sees each observation, and its square."""

    def get_latent(self, obs, masks=None, hidden_state=None):
        latent = super().get_latent(obs, masks, hidden_state)
        return torch.cat((latent, latent.square()), dim=-1)

    def _get_latent_dim(self):
        return 2 * self.obs_dim


class Remembers(RNNModel):
    """A user's own recurrent network; its sizes are those of the flags."""


SETTINGS = {
    "adaptive": {"schedule": "adaptive", "desired_kl": 0.01},
    "fixed": {"schedule": "fixed", "learning_rate": 3e-3},
    "value not clipped": {"use_clipped_value_loss": False},
    "advantages per mini-batch": {"normalize_advantage_per_mini_batch": True},
    "coefficients": {"value_loss_coef": 0.5, "entropy_coef": 0.03, "max_grad_norm": 1e9},
    "adamw, little gradients": {"optimizer": "adamw", "max_grad_norm": 0.05},
    "far from desired": {"desired_kl": 1e-4, "learning_rate": 5e-3},
}


@pytest.mark.parametrize("settings", SETTINGS)
def test_mlps_learn_without_autograd_what_rsl_rls_do(settings):
    ours = make_ppo(**SETTINGS[settings])
    assert type(ours.learner) is GaussianMlpLearner
    same_updates(ours, reference(ours, **SETTINGS[settings]), 3)


MODELS: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "mlp": ("mlp", None, {"distribution": "heteroscedastic", "std_type": "log"}),
    "gru": ("gru", None, {"rnn_num_layers": 2}),
    "lstm": ("lstm", None, {}),
    "cnn": ("cnn", None, {"obs_groups": ("actor", "camera")}),
    "own": (f"{__name__}:Twice", None, {}),
    "own that remembers": (f"{__name__}:Remembers", None, {"distribution": "beta"}),
    "critic that does not remember": ("gru", "mlp", {}),
}


@pytest.mark.parametrize("kind", MODELS)
def test_other_models_learn_by_autograd_what_rsl_rls_do(kind):
    model, critic, actor = MODELS[kind]
    changes = {"max_grad_norm": 0.3, "normalize_advantage_per_mini_batch": kind == "lstm"}
    groups = {"obs_groups": ("actor", "camera")} if kind == "cnn" else {}
    ours = make_ppo(model, critic, actor=actor, value=groups, **changes)
    assert type(ours.learner) is AutogradLearner
    # A GRU goes on from what it remembers. Beta draws, and a divergence near zero, turn on a bit.
    same_updates(ours, reference(ours, **changes), 2 if kind == "gru" else 1)


def with_images(env, obs, actions):
    """Written by hand, as a user of rsl_rl writes it."""
    if obs is not None:
        images = obs.clone()
        images["actor"] = obs["actor"][:, [2, 1, 0]] * torch.tensor([1.0, -1.0, 1.0])
        images["privileged"] = -obs["privileged"].flip(1)
        images["camera"] = obs["camera"].flip(3)
        obs = torch.cat((obs, images))
    return obs, None if actions is None else torch.cat((actions, -actions.flip(1)))


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize(("augment", "coef"), [(True, 0.0), (False, 0.5), (True, 0.5)])
def test_mirrored_samples_and_mirror_loss_are_those_of_rsl_rl(network, augment, coef):
    groups = ("actor", "camera") if network == "cnn" else ("actor",)
    own = {"actor": {"obs_groups": groups}, "value": {"obs_groups": ("privileged", *groups[1:])}}
    ours = make_ppo(network, **own, symmetry=SymmetryCfg(augment, coef))
    symmetry = {
        "env": None,
        "data_augmentation_func": with_images,
        "use_data_augmentation": augment,
        "use_mirror_loss": coef > 0.0,
        "mirror_loss_coeff": coef,
    }
    same_updates(ours, reference(ours, symmetry_cfg=symmetry), 3)
    assert "symmetry" in learn(ours, 3)


SCHEDULES = {
    "constant": {},
    "linear": {"initial_step": 3, "final_step": 10, "final_value": 0.1},
    "step": {"final_step": 8, "final_value": 0.2},
}


def make_curious(schedule: str = "constant", **changes: Any):
    """Ours and rsl_rl's with random network distillation."""
    both = {"state_normalization": True, "reward_normalization": True, "weight": 0.5}
    sizes = {"num_outputs": 3, "predictor_hidden_dims": (7,), "target_hidden_dims": (64,)}
    both |= sizes | changes
    times = SCHEDULES[schedule]
    rnd = RndCfg(obs_groups=("where", "actor"), weight_schedule=schedule, **times, **both)
    # One mini-batch, for the predictor has mini-batches of its own.
    ours = make_ppo(rnd=rnd, num_mini_batches=1)
    groups = {"num_states": 5, "obs_groups": {"rnd_state": ["where", "actor"]}}
    theirs = {**groups, **both, "weight_schedule": {"mode": schedule, **times}}
    return ours, reference(ours, rnd_cfg=theirs, num_mini_batches=1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_intrinsic_rewards_are_those_of_rsl_rl(schedule):
    same_updates(*make_curious(schedule), 3)  # type: ignore[call-arg]


def test_the_intrinsic_reward_is_reported_and_falls_where_nothing_is_new():
    ppo, _ = make_curious(state_normalization=False, reward_normalization=False)
    ppo.rnd.optimizer.lr.fill_(1e-2)
    rewards = [learn(ppo, 0)["Rnd/mean_intrinsic_reward"] for _ in range(30)]
    assert 0.0 < rewards[-1] < 0.5 * rewards[0]


def test_each_goes_on_from_the_others_checkpoint():
    ours = make_ppo()
    theirs = reference(ours)
    saved = []
    for ppo in (ours, theirs):
        learn(ppo, 0)
        saved.append(copy.deepcopy(ppo.save()))
    (group,) = saved[0]["optimizer_state_dict"]["param_groups"]
    assert type(group["lr"]) is float  # for rsl_rl's optimizer; ours has a tensor on the device
    ours.load(saved[1], None, True)
    theirs.load(saved[0], None, True)
    same_updates(ours, theirs, 2)


def test_checkpoints_with_random_network_distillation_load_in_rsl_rl():
    ours, theirs = make_curious()
    learn(ours, 0)
    saved = copy.deepcopy(ours.save())
    assert saved.keys() == theirs.save().keys() > make_ppo().save().keys()
    theirs.load(saved, None, True)
    torch.testing.assert_close(theirs.rnd.state_dict(), ours.rnd.state_dict(), rtol=0, atol=0)
    assert theirs.rnd.optimizer.state_dict()["state"][0]["step"] == 5


def test_a_critic_sees_its_own_group_if_there_is_one():
    assert make_ppo(value={"obs_groups": ("privileged",)}).critic.obs_dim == 2
    assert make_ppo(value={"obs_groups": ("nowhere",)}).critic.obs_dim == 3
