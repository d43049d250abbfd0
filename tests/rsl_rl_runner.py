"""rsl_rl's own runner around an environment of ours, and what makes its PPO comparable."""

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.runners import OnPolicyRunner

from simtrain.env.env import Env


def rsl_rl_runner(env: Env, *, steps: int, hidden_dims: tuple[int, ...]) -> OnPolicyRunner:
    network = {
        "class_name": "MLPModel",
        "hidden_dims": list(hidden_dims),
        "activation": "elu",
        "obs_normalization": True,
    }
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0}
    cfg = {
        "num_steps_per_env": steps,
        "save_interval": 100,
        "obs_groups": {"actor": ["actor"], "critic": ["actor"]},
        "algorithm": {"class_name": "PPO"},
        "actor": {**network, "distribution_cfg": gaussian},
        "critic": dict(network),
    }
    return OnPolicyRunner(env, cfg)


def move_on(ppo: PPO) -> None:
    """Change the policy a little, in place, after its rollout.

    The divergence from the policy that collected the samples is else rounding error in the first
    mini-batch, and its sign decides the learning rate.
    """
    with torch.no_grad():
        for parameter in ppo.actor.parameters():
            parameter.mul_(1.01)
