"""PPO of this package and rsl_rl's own, with the same networks, on the same made-up rollouts."""

import copy
from typing import Any

import pytest
import torch
from rsl_rl.algorithms import PPO as RslPPO
from rsl_rl.storage import RolloutStorage
from rsl_rl_runner import move_on
from tensordict import TensorDict
from torch import Tensor

from simtrain import ActorCfg, CnnCfg, CriticCfg, PpoCfg
from simtrain.algorithms.algorithm import MiniBatchAlgorithm
from simtrain.algorithms.ppo import PPO
from simtrain.algorithms.symmetry import MirrorMap, MirrorMaps
from simtrain.launch.rank import Rank

ALONE = Rank(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"), seed=0, threads=1)
ENVS, STEPS, ACTIONS = 6, 6, 2
SIDES = (1, 4, 6)  # channels, rows and columns of an image
SPREAD = torch.tensor([0.1, 1.0, 5.0])  # so that each entry's normalization is another


def observed(num_envs: int = ENVS) -> TensorDict:
    """Observations of `num_envs`: three groups of numbers, and images."""
    groups = {
        "actor": SPREAD * (torch.randn(num_envs, 3) + 1.0),
        "privileged": torch.randn(num_envs, 2) - 2.0,
        "where": 2.0 * torch.randn(num_envs, 2) + 1.0,
        "camera": torch.randn(num_envs, *SIDES),
    }
    return TensorDict(groups, batch_size=[num_envs])


def _map(index: list[int], sign: list[float]) -> MirrorMap:
    return MirrorMap(torch.tensor(index), torch.tensor(sign))


def mirror_maps() -> MirrorMaps:
    points = torch.arange(SIDES[1] * SIDES[2]).view(SIDES[1:]).flip(1).flatten().tolist()
    groups = {
        "actor": _map([2, 1, 0], [1.0, -1.0, 1.0]),
        "privileged": _map([1, 0], [-1.0, -1.0]),
        "where": _map([0, 1], [1.0, 1.0]),
        "camera": _map(points, [1.0] * len(points)),
    }
    return MirrorMaps(groups, _map([1, 0], [-1.0, -1.0]))


def make_ppo(
    model: str = "mlp",
    critic: str | None = None,
    *,
    actor: dict[str, Any] | None = None,
    value: dict[str, Any] | None = None,
    **changes: Any,
) -> PPO:
    """Small networks; `actor` and `value` are changes of their settings, `changes` of PPO's."""
    small = {"hidden_dims": (8,), "rnn_hidden_dim": 5, "cnn": CnnCfg((2, 3))}
    cfg = PpoCfg(
        ActorCfg(**{"model": model, "init_std": 0.7, **small, **(actor or {})}),
        CriticCfg(**{"model": critic or model, **small, **(value or {})}),
        **{"num_mini_batches": 3, **changes},
    )
    torch.manual_seed(0)
    ppo = PPO(cfg, observed(), ACTIONS, STEPS, ALONE, mirror=mirror_maps())
    ppo.train_mode()
    return ppo


def reference(ours: PPO, **changes: Any) -> RslPPO:
    """rsl_rl's PPO with the same networks."""
    actor, critic = copy.deepcopy(ours.actor), copy.deepcopy(ours.critic)
    storage = RolloutStorage("rl", ENVS, STEPS, observed(), [ACTIONS])
    theirs = RslPPO(actor, critic, storage, **{"num_mini_batches": 3, **changes})
    for network in (actor, critic):
        network.reset()  # what ours has seen to find out shapes
    if ours.rnd is not None:
        theirs.rnd.load_state_dict(ours.rnd.state_dict())
    theirs.train_mode()
    return theirs


def act(algorithm: Any, obs: TensorDict) -> None:
    """Act on `obs` as training does, or as rsl_rl's runner does."""
    if not isinstance(algorithm, MiniBatchAlgorithm):
        algorithm.act(obs)
        return
    if algorithm.storage.step == 0:
        algorithm.begin_rollout()
    algorithm.act_in(obs, algorithm.storage.transitions[algorithm.storage.step])


def record(
    algorithm: Any, obs: TensorDict, rewards: Tensor, dones: Tensor, time_outs: Tensor
) -> None:
    """Record what the actions led to, in the same two ways."""
    if not isinstance(algorithm, MiniBatchAlgorithm):
        algorithm.process_env_step(obs, rewards, dones, {"time_outs": time_outs})
        return
    transition = algorithm.storage.transitions[algorithm.storage.step]
    algorithm.record(transition, rewards, dones, time_outs)
    algorithm.storage.step += 1


def roll_out(ppo: RslPPO, seed: int) -> None:
    """Fill the storage with made-up transitions: episodes end in some places, one of them twice."""
    torch.manual_seed(seed)
    with torch.inference_mode():
        obs = observed()
        for step in range(STEPS):
            act(ppo, obs)
            obs = observed()
            dones, time_outs = torch.zeros(2, ENVS, dtype=torch.bool)
            dones[1] = time_outs[1] = step == 2
            dones[3] = step in (1, 4)
            dones[5] = step == STEPS - 1
            record(ppo, obs, torch.randn(ENVS), dones, time_outs)
        ppo.compute_returns(obs)
    move_on(ppo)


def learn(ppo: RslPPO, seed: int) -> dict[str, float]:
    """The losses of a rollout's update."""
    roll_out(ppo, seed)
    torch.manual_seed(100 + seed)  # the same permutation
    losses: dict[str, float] = ppo.update()
    return losses


def same_updates(ours: PPO, theirs: RslPPO, iterations: int) -> None:
    """Assert that rollouts, losses, rates, networks and last gradients are the same after each."""
    names = ["actions", "values", "returns", "actions_log_prob"]
    if not ours.normalize_advantage_per_mini_batch:
        names.append("advantages")
    for iteration in range(iterations):
        losses = [learn(ppo, iteration) for ppo in (ours, theirs)]
        for name in names:
            mine, other = getattr(ours.storage, name), getattr(theirs.storage, name)
            torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5, msg=name)
        for name, value in losses[1].items():
            assert losses[0][name] == pytest.approx(value, rel=1e-5, abs=1e-5), name
        assert ours.learning_rate == pytest.approx(theirs.learning_rate, rel=1e-5)
        for name in ("actor", "critic", *(["rnd"] if theirs.rnd else [])):
            # Normalizers included: learned once an update, from the same observations.
            pair = getattr(ours, name).state_dict(), getattr(theirs, name).state_dict()
            torch.testing.assert_close(*pair, atol=1e-5, rtol=1e-5)
        for name in ("actor", "critic"):
            parameters = (getattr(ppo, name).parameters() for ppo in (ours, theirs))
            gradients = [[parameter.grad for parameter in each] for each in parameters]
            torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-3)


def copies(tensors: list[Tensor]) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors]
