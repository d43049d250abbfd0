"""Mirrored samples and mirror loss, against rsl_rl's own PPO with the same symmetry."""

from __future__ import annotations

import copy

import pytest
import torch
from rsl_rl.algorithms import PPO as RslPPO
from rsl_rl.storage import RolloutStorage
from rsl_rl_runner import move_on
from tensordict import TensorDict

from simtrain import ActorCfg, CriticCfg, PpoCfg
from simtrain.algorithms.cfg import CnnCfg, SymmetryCfg
from simtrain.algorithms.ppo import PPO
from simtrain.algorithms.symmetry import MirrorMap, MirrorMaps
from simtrain.launch.rank import Rank

ALONE = Rank(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"), seed=0, threads=1)
ENVS, STEPS, ACTIONS = 6, 5, 2
SIDES = (1, 4, 6)  # channels, rows and columns of an image
SPREAD = torch.tensor([0.1, 1.0, 5.0])  # so that each entry's normalization is another


def _map(index, sign) -> MirrorMap:
    return MirrorMap(torch.tensor(index), torch.tensor(sign))


def _mirror() -> MirrorMaps:
    points = torch.arange(SIDES[1] * SIDES[2]).view(SIDES[1:]).flip(1).flatten().tolist()
    groups = {
        "actor": _map([2, 1, 0], [1.0, -1.0, 1.0]),
        "critic": _map([1, 0], [-1.0, -1.0]),
        "camera": _map(points, [1.0] * len(points)),
    }
    return MirrorMaps(groups, _map([1, 0], [-1.0, -1.0]))


def _observed() -> TensorDict:
    groups = {
        "actor": SPREAD * (torch.randn(ENVS, 3) + 1.0),
        "critic": torch.randn(ENVS, 2) - 2.0,
        "camera": torch.randn(ENVS, *SIDES),
    }
    return TensorDict(groups, batch_size=[ENVS])


def _with_images(env, obs, actions):
    """Written by hand, as a user of rsl_rl writes it."""
    if obs is not None:
        images = obs.clone()
        images["actor"] = obs["actor"][:, [2, 1, 0]] * torch.tensor([1.0, -1.0, 1.0])
        images["critic"] = -obs["critic"].flip(1)
        images["camera"] = obs["camera"].flip(3)
        obs = torch.cat((obs, images))
    return obs, None if actions is None else torch.cat((actions, -actions.flip(1)))


def _pair(network: str, symmetry: SymmetryCfg, **changes) -> tuple[PPO, RslPPO]:
    """Ours and rsl_rl's, with the same networks and settings."""
    groups = {"mlp": ("actor",), "cnn": ("actor", "camera")}[network]
    more = {"model": network, "hidden_dims": (8,), "cnn": CnnCfg(output_channels=(3,))}
    cfg = PpoCfg(
        ActorCfg(**more, obs_groups=groups, init_std=0.7),
        CriticCfg(**more, obs_groups=("critic", *groups[1:])),
        symmetry=symmetry,
        num_mini_batches=2,
        **changes,
    )
    ours = PPO(cfg, _observed(), ACTIONS, STEPS, ALONE, mirror=_mirror())
    symmetry_cfg = {
        "env": None,
        "data_augmentation_func": _with_images,
        "use_data_augmentation": symmetry.augment,
        "use_mirror_loss": symmetry.mirror_loss_coef > 0.0,
        "mirror_loss_coeff": symmetry.mirror_loss_coef,
    }
    theirs = RslPPO(
        copy.deepcopy(ours.actor),
        copy.deepcopy(ours.critic),
        RolloutStorage("rl", ENVS, STEPS, _observed(), [ACTIONS]),
        num_mini_batches=2,
        symmetry_cfg=symmetry_cfg,
        **changes,
    )
    for ppo in (ours, theirs):
        ppo.train_mode()
    return ours, theirs


def _learn(ppo: RslPPO, seed: int) -> dict[str, float]:
    """Collect a made-up rollout and learn from it."""
    torch.manual_seed(seed)
    with torch.inference_mode():
        obs = _observed()
        for step in range(STEPS):
            ppo.act(obs)
            obs = _observed()
            dones, time_outs = torch.zeros(2, ENVS, dtype=torch.bool)
            dones[1] = time_outs[1] = step == 2
            ppo.process_env_step(obs, torch.randn(ENVS), dones, {"time_outs": time_outs})
        ppo.compute_returns(obs)
    move_on(ppo)
    torch.manual_seed(seed)  # the same permutation
    return ppo.update()


WAYS = {
    "mirrored samples": SymmetryCfg(augment=True),
    "mirror loss": SymmetryCfg(mirror_loss_coef=0.5),
    "both": SymmetryCfg(augment=True, mirror_loss_coef=0.5),
}


@pytest.mark.parametrize("network", ["mlp", "cnn"])
@pytest.mark.parametrize("way", WAYS)
def test_three_iterations_are_those_of_rsl_rl(network, way):
    ours, theirs = _pair(network, WAYS[way])
    for iteration in range(3):
        losses = [_learn(ppo, seed=iteration) for ppo in (ours, theirs)]
        assert set(losses[1]) == {"value", "surrogate", "entropy", "symmetry"} < set(losses[0])
        for name, value in losses[1].items():
            assert losses[0][name] == pytest.approx(value, abs=1e-5), name
        assert ours.learning_rate == pytest.approx(theirs.learning_rate, rel=1e-5)
        for name in ("actor", "critic"):
            mine, other = getattr(ours, name).state_dict(), getattr(theirs, name).state_dict()
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=0.0)
