"""rsl_rl's own runner around an environment of ours."""

from pathlib import Path

from rsl_rl.runners import OnPolicyRunner

from simtrain.env.env import Env


def rsl_rl_runner(
    env: Env, *, steps: int, hidden_dims: tuple[int, ...], log_dir: Path | None = None
) -> OnPolicyRunner:
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
    return OnPolicyRunner(env, cfg, log_dir=None if log_dir is None else str(log_dir))
