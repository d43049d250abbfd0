"""Random network distillation against rsl_rl's own, and what it keeps."""

from __future__ import annotations

import copy

import pytest
import torch
from rsl_rl.algorithms import PPO as RslPPO
from rsl_rl.storage import RolloutStorage
from rsl_rl_runner import move_on
from tensordict import TensorDict

from simtrain import ActorCfg, CriticCfg, PpoCfg
from simtrain.algorithms.cfg import RndCfg
from simtrain.algorithms.ppo import PPO
from simtrain.launch.rank import Rank

ALONE = Rank(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"), seed=0, threads=1)
ENVS, STEPS, ACTIONS = 4, 6, 2
RND = RndCfg(weight=0.5, obs_groups=("where", "actor"), num_outputs=3, predictor_hidden_dims=(7,))
RND.state_normalization = RND.reward_normalization = True


def observed() -> TensorDict:
    random = {"actor": torch.randn(ENVS, 3), "where": 2.0 * torch.randn(ENVS, 2) + 1.0}
    return TensorDict(random, batch_size=[ENVS])


def make(**changes) -> PPO:
    small = {"hidden_dims": (8,)}
    rnd = RndCfg(**{**vars(RND), **changes})
    # One mini-batch, for the predictor has mini-batches of its own.
    cfg = PpoCfg(ActorCfg(**small), CriticCfg(**small), rnd, num_mini_batches=1)
    ppo = PPO(cfg, observed(), ACTIONS, STEPS, ALONE)
    ppo.train_mode()
    return ppo


def reference(ours: PPO, cfg: dict) -> RslPPO:
    """rsl_rl's PPO with the same networks."""
    storage = RolloutStorage("rl", ENVS, STEPS, observed(), [ACTIONS])
    models = copy.deepcopy(ours.actor), copy.deepcopy(ours.critic)
    sizes = {"num_states": 5, "obs_groups": {"rnd_state": ["where", "actor"]}, "num_outputs": 3}
    dims = {"predictor_hidden_dims": [7], "target_hidden_dims": [64]}
    both = {"state_normalization": True, "reward_normalization": True}
    rnd = {**sizes, **dims, **both, "weight": 0.5, **cfg}
    theirs = RslPPO(*models, storage, num_mini_batches=1, rnd_cfg=rnd)
    theirs.rnd.load_state_dict(ours.rnd.state_dict())
    theirs.train_mode()
    return theirs


def roll_out(ppo: RslPPO, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.inference_mode():
        obs = observed()
        for step in range(STEPS):
            ppo.act(obs)
            obs = observed()
            dones = torch.zeros(ENVS, dtype=torch.bool)
            dones[1] = step == 2
            ppo.process_env_step(obs, torch.randn(ENVS), dones, {"time_outs": dones})
        ppo.compute_returns(obs)
    move_on(ppo)


SCHEDULES = {
    "constant": ({}, {}),
    "linear": (
        {"weight_schedule": "linear", "initial_step": 3, "final_step": 10, "final_value": 0.1},
        {"mode": "linear", "initial_step": 3, "final_step": 10, "final_value": 0.1},
    ),
    "step": (
        {"weight_schedule": "step", "final_step": 8, "final_value": 0.2},
        {"mode": "step", "final_step": 8, "final_value": 0.2},
    ),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_three_iterations_are_those_of_rsl_rl(schedule):
    changes, params = SCHEDULES[schedule]
    ours = make(**changes)
    theirs = reference(ours, {"weight_schedule": params} if params else {})
    for iteration in range(3):
        for ppo in (ours, theirs):
            roll_out(ppo, iteration)
        for name in ("returns", "advantages"):
            pair = getattr(ours.storage, name), getattr(theirs.storage, name)
            torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-5, msg=name)
        mine, losses = ours.update(), theirs.update()
        for name, value in losses.items():
            assert mine[name] == pytest.approx(value, abs=1e-5), name
        pairs = ours.rnd.state_dict(), theirs.rnd.state_dict()
        for name, tensor in pairs[1].items():
            torch.testing.assert_close(pairs[0][name], tensor, atol=1e-5, rtol=1e-5, msg=name)


def test_the_intrinsic_reward_is_reported_and_falls_where_nothing_is_new():
    ppo = make(state_normalization=False, reward_normalization=False, learning_rate=1e-2)
    rewards = []
    for _ in range(30):
        roll_out(ppo, 0)
        rewards.append(ppo.update()["Rnd/mean_intrinsic_reward"])
    assert 0.0 < rewards[-1] < 0.5 * rewards[0]


def test_it_goes_on_from_its_state_bit_for_bit():
    whole, other = make(), make()
    roll_out(whole, 0)
    whole.update()
    other.set_state(copy.deepcopy(whole.state()))
    other.set_hidden_states([tensor.clone() for tensor in whole.hidden_states()])
    for ppo in (whole, other):
        roll_out(ppo, 1)
    assert torch.equal(whole.storage.returns, other.storage.returns)
    losses = []
    for ppo in (whole, other):
        torch.manual_seed(2)  # the same permutations
        losses.append(ppo.update())
    assert losses[0] == losses[1]
    assert all(map(torch.equal, whole.tensors(), other.tensors()))


def test_checkpoints_have_rsl_rls_keys_and_load_there():
    ours = make()
    theirs = reference(ours, {})
    roll_out(ours, 0)
    ours.update()
    theirs.load(copy.deepcopy(ours.save()), None, strict=True)
    for name, tensor in theirs.rnd.state_dict().items():
        assert torch.equal(tensor, ours.rnd.state_dict()[name])
    assert theirs.rnd.optimizer.state_dict()["state"][0]["step"] == 5


def test_without_it_nothing_is_kept():
    ppo = make(weight=0.0)
    assert ppo.rnd is None
    assert ppo.save().keys() == {
        "actor_state_dict",
        "critic_state_dict",
        "optimizer_state_dict",
    }
