"""The networks of a task: rsl_rl's models, made as the configuration says."""

from typing import Any

from rsl_rl.models import MLPModel
from tensordict import TensorDict

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


def update_normalization(network: MLPModel, obs: TensorDict) -> None:
    """Learn means and standard deviations of observations, in place."""
    if network.obs_normalization:
        normalizer = network.obs_normalizer
        std = normalizer.get_buffer("_std")  # rsl_rl makes another, which a graph would not see
        network.update_normalization(obs)
        normalizer.register_buffer("_std", std.copy_(normalizer.get_buffer("_std")))


def _network(cfg: ActorCfg | CriticCfg) -> dict[str, Any]:
    return {n: getattr(cfg, n) for n in ("hidden_dims", "activation", "obs_normalization")}
