"""The numbers that a configuration may have: one table for all commands, and its check.

Bounds are far from all that makes sense; beyond them numbers overflow, memory ends or a step takes
hours. Numbers without bounds here are whole and at least 1, or finite.
"""

import math
from collections.abc import Iterator
from typing import Any

from simtrain.config.tree import leaves
from simtrain.errors import ConfigError, flag

_MOST, _LARGEST_FLOAT32 = 10**15, 3e38
_COUNT, _SECONDS, _FRACTION = (1, 10**6), (1e-3, 1e6), (0.0, 1.0)
_BOUNDS: dict[str, tuple[float, float]] = {
    "num_envs": (1, 2**24),
    "num_steps_per_env": (1, 10**5),
    "seed": (0, 2**32 - 1),
    "max_restarts": (0, 10**6),
    "gpu_ids": (0, 10**6),
    "population": (1, 1024),
    "ranks_per_member": (1, 1024),
    "population_warm_up": (0, 10**9),
    "population_grace": (0, 10**9),
    "population_mutations": (0.0, 1e9),
    "eval_episodes": _COUNT,
    "episodes": _COUNT,
    "repetitions": _COUNT,
    "seeds": (1, 1000),
    "video_length": _COUNT,
    "ranks": (1, 1024),
    "port": (0, 65_535),
    "collective_timeout": _SECONDS,
    "grace_seconds": _SECONDS,
    "seconds": (1e-3, 86_400.0),
    "speed": (1e-4, 1e4),
    "fps": (1.0, 1e4),
    "output_fps": (1.0, 1e4),
    "skip": (0.0, 86_400.0),
    "tolerance": (0.0, 0.999),
    "verify_threshold": _FRACTION,
    # PPO
    "hidden_dims": (1, 2**16),
    "num_learning_epochs": (1, 1000),
    "num_mini_batches": (1, 10**5),
    "learning_rate": (1e-12, 1e3),
    "learning_rate_end": (1e-12, 1e3),
    "desired_kl": (1e-12, 1e6),
    "desired_kl_end": (1e-12, 1e6),
    "initial_step": (0, 10**12),
    "final_step": (0, 10**12),
    "predictor_hidden_dims": (1, 2**16),
    "target_hidden_dims": (1, 2**16),
    "gamma": _FRACTION,
    "lam": _FRACTION,
    "clip_param": (1e-6, 1e6),
    "mirror_loss_coef": (0.0, 1e6),
    "max_grad_norm": (1e-12, 1e12),
    "init_std": (1e-12, 1e12),
    "std_range": (1e-12, 1e12),
    "action_range": (-1e9, 1e9),
    "rnn_hidden_dim": (1, 2**16),
    "rnn_num_layers": (1, 64),
    "output_channels": (1, 2**16),
    "kernel_size": (1, 1024),
    # tasks
    "timestep": (1e-6, 100.0),
    "decimation": (1, 10_000),
    "episode_length_s": (1e-6, 1e7),
    "history_length": (0, 1000),
    "delay_min_lag": (0, 10_000),
    "delay_max_lag": (0, 10_000),
    "delay_hold_prob": _FRACTION,
    "delay_update_period": (0, 10**9),
    "stiffness": (0.0, 1e12),
    "damping": (0.0, 1e12),
    "effort_limit": (0.0, 1e12),
    "saturation_effort": (1e-9, 1e12),
    "velocity_limit": (1e-9, 1e12),
    "history_steps": (0, 1000),
    "rate_limit": (1e-9, 1e12),
    "acceleration_limit": (1e-9, 1e12),
    "interval_range_s": (0.0, 1e9),
    "after_steps": (0, 10**12),
    "resampling_time_range": (0.0, 1e9),
    "iterations": (1, 10_000),
    "ls_iterations": (1, 10_000),
    "max_contacts": _COUNT,
    "max_constraints": (1, 10**7),
    "num_levels": (1, 1000),
    "num_columns": (1, 1000),
    "tile_size": (1e-2, 1e4),
    "resolution": (1e-3, 1e3),
    "border_width": (0.0, 1e4),
    "max_initial_level": (0, 1000),
    "proportion": (0.0, 1e6),
    # bounds of actions and observations, which may be open
    "clip": (-math.inf, math.inf),
}
_RANGES = (
    "clip",
    "std_range",
    "action_range",
    "interval_range_s",
    "resampling_time_range",
)  # low and high


def check_bounds(config: object, *where: str) -> None:
    """Raise ConfigError for a number of `config`, whose flag is `where`, out of its bounds."""
    for path, value in leaves(config).items():
        shown, name, is_param = flag(*where, *path), path[-1], "params" in path
        # A task's own classes may have any whole numbers.
        count = (1 if (*where, *path)[0] != "env" else -_MOST, _MOST)
        for number in _numbers(value):
            default = count if type(number) is int else (-_LARGEST_FLOAT32, _LARGEST_FLOAT32)
            low, high = default if is_param else _BOUNDS.get(name, default)
            if type(number) is float and not math.isfinite(number) and number not in (low, high):
                raise ConfigError(f"{shown} is {number}; it must be a finite number")
            if not low <= number <= high:
                allowed = f"{low:g} or more" if number < low else f"{high:.12g} or less"
                raise ConfigError(f"{shown} is {_text(number)}; it must be {allowed}")
        if name in _RANGES and not is_param and isinstance(value, tuple) and value[0] > value[1]:
            order = "the first must not be greater than the second"
            raise ConfigError(f"{shown} is {value[0]} {value[1]}; {order}")


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _numbers(item)


def _text(number: float) -> str:
    long = type(number) is int and abs(number) >= 10**30
    return "a number of more than 30 digits" if long else str(number)
