"""The networks of a task: rsl_rl's models, made as the configuration says."""

from typing import Any

import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict

from simtrain.launch.rank import Rank
from simtrain.ppo_cfg import ActorCfg, CriticCfg, PpoCfg


def make_actor(cfg: ActorCfg, obs: TensorDict, num_actions: int) -> MLPModel:
    """The policy network."""
    spread = {"init_std": cfg.init_std, "std_type": cfg.std_type, "std_range": cfg.std_range}
    gaussian = {"class_name": "GaussianDistribution", **spread}
    groups = {"actor": list(cfg.obs_groups)}
    return MLPModel(obs, groups, "actor", num_actions, **_network(cfg), distribution_cfg=gaussian)


def make_critic(cfg: PpoCfg, obs: TensorDict) -> MLPModel:
    """The value network; without its groups of observations it sees those of the policy."""
    there = set(cfg.critic.obs_groups) <= set(obs.keys())
    groups = list(cfg.critic.obs_groups if there else cfg.actor.obs_groups)
    return MLPModel(obs, {"critic": groups}, "critic", 1, **_network(cfg.critic))


def update_normalization(network: MLPModel, obs: TensorDict, rank: Rank) -> None:
    """Learn means and standard deviations of observations, of all ranks, in place.

    rsl_rl's own update would sum over all processes there are, whatever they train.
    """
    if not network.obs_normalization:
        return
    x = torch.cat([obs[group] for group in network.obs_groups], dim=-1)
    buffers = dict(network.obs_normalizer.named_buffers())
    mean, var, std, seen = (buffers[name] for name in ("_mean", "_var", "_std", "count"))
    number = torch.full_like(seen, len(x))
    new_var = torch.var(x, dim=0, correction=0, keepdim=True)
    new_mean = torch.mean(x, dim=0, keepdim=True)
    if rank.world_size > 1:
        # First the mean of all, then the variances around it (Chan, Golub and LeVeque, 1983).
        own_mean = new_mean
        rank.all_reduce(number)
        new_mean = rank.all_reduce(own_mean * len(x)) / number
        new_var = rank.all_reduce(len(x) * (new_var + (own_mean - new_mean).square())) / number
    seen += number
    rate = number / seen
    difference = new_mean - mean
    mean += rate * difference
    var += rate * (new_var - var + difference * (new_mean - mean))
    torch.sqrt(var, out=std)


def _network(cfg: ActorCfg | CriticCfg) -> dict[str, Any]:
    return {n: getattr(cfg, n) for n in ("hidden_dims", "activation", "obs_normalization")}
