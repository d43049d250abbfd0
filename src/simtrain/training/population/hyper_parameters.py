"""Which numbers of a configuration evolve, from the flags of a population. Imports no torch."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any, cast

from simtrain.config.metric_tags import evaluation_names
from simtrain.config.train import TrainConfig
from simtrain.config.tree import POPULATION, leaves, with_overrides
from simtrain.errors import ConfigError, did_you_mean, flag
from simtrain.limits import field_default
from simtrain.training.population.evolution import SCALES, HyperParameter, Scale, Values

_PPO = (
    *("desired_kl", "learning_rate", "entropy_coef", "clip_param", "num_learning_epochs"),
    *("gamma", "lam", "value_loss_coef", "max_grad_norm"),
)
"""Settings of PPO that an update reads anew; others shape networks and buffers."""
_DEFAULTS = (
    HyperParameter("ppo.desired-kl", 0.003, 0.05, "log"),
    HyperParameter("ppo.learning-rate", 1e-4, 3e-3, "log"),
    HyperParameter("ppo.entropy-coef", 1e-4, 0.03, "log"),
    HyperParameter("ppo.clip-param", 0.1, 0.3, "log"),
    HyperParameter("ppo.num-learning-epochs", 2, 8, is_whole=True),
    HyperParameter("ppo.gamma", 0.95, 0.998, "complement"),
    HyperParameter("ppo.lam", 0.9, 0.99, "complement"),
)


def check_population_flags(config: TrainConfig) -> None:
    """Raise ConfigError for flags of a population that cannot be."""
    if config.population is None:
        for name in POPULATION:
            if (value := getattr(config, name)) != field_default(TrainConfig, name):
                text = f"{flag(name)} is {value}, and it is for a population"
                raise ConfigError(f"{text}; add --population, the number of its members")
        return
    if config.cpu_workers != 1:
        text = f"--cpu-workers is {config.cpu_workers}; the ranks of a population follow from"
        raise ConfigError(f"{text} --population and --ranks-per-member")
    if not any(config.population_mutations):
        raise ConfigError("--population-mutations is 0 0 0 0; one frequency must be above 0")
    fitness_of(config)
    hyper_parameters(config)


def fitness_of(config: TrainConfig) -> tuple[str, float]:
    """The estimate of an evaluation that members are selected by, and the sign that makes more of
    it better; ConfigError if the task has no such metric."""
    name, _, direction = config.population_fitness.partition(":")
    names = evaluation_names(config.env)
    text = f"--population-fitness is {config.population_fitness!r}"
    if name not in names:
        raise ConfigError(f"{text}; evaluations of the task give {', '.join(names)}")
    if direction not in ("", "max", "min"):
        raise ConfigError(f"{text}; after the colon stands max or min")
    return name, -1.0 if direction == "min" else 1.0


def hyper_parameters(config: TrainConfig) -> tuple[HyperParameter, ...]:
    """The numbers that evolve; ConfigError if one is none, is fixed, or has impossible bounds."""
    if not config.population_mutate:
        unused = "learning-rate" if config.ppo.schedule == "adaptive" else "desired-kl"
        return tuple(default for default in _DEFAULTS if default.flag != f"ppo.{unused}")
    parameters = {}
    for words in config.population_mutate:
        parameter = _parse(config, words)
        if parameter.flag in parameters:
            raise ConfigError(f"--population-mutate names {parameter.flag} twice")
        parameters[parameter.flag] = parameter
    return tuple(parameters.values())


def values_of(config: TrainConfig, parameters: tuple[HyperParameter, ...]) -> Values:
    """The configuration's own values of hyper-parameters."""
    numbers = _numbers(config)
    return {parameter.flag: numbers[parameter.flag][1] for parameter in parameters}


def term_parameter(config: TrainConfig, name: str) -> tuple[str, str]:
    """The term, as ``rewards.upright``, and its parameter that an ``env.`` flag sets."""
    path = _numbers(config)[name][0]
    return ".".join(path[1:3]), path[-1]


def _numbers(config: TrainConfig) -> dict[str, tuple[tuple[str, ...], float]]:
    """The numbers of the task and of PPO by their flags without dashes, with their places."""
    return {
        flag(*path).removeprefix("--"): (path, value)
        for path, value in leaves(config).items()
        if path[0] in ("ppo", "env") and type(value) in (int, float)
    }


def _parse(config: TrainConfig, words: tuple[str, ...]) -> HyperParameter:
    text = f"--population-mutate {' '.join(words)}"
    if not 3 <= len(words) <= 4:
        raise ConfigError(f"{text}: give a flag, two bounds and, if need be, a scale")
    name, numbers = words[0].removeprefix("--").replace("_", "-"), _numbers(config)
    if name not in numbers:
        near = did_you_mean(name, numbers)
        raise ConfigError(f"{text}: no number of the task is called so{near}")
    path, value = numbers[name]
    if not _is_changeable(config, path):
        raise ConfigError(f"{text}: {name} is fixed once environments and networks are built")
    try:
        low, high = float(words[1]), float(words[2])
    except ValueError:
        raise ConfigError(f"{text}: its bounds must be numbers") from None
    scale = words[3] if len(words) == 4 else "linear"
    if scale not in SCALES:
        raise ConfigError(f"{text}: the scale must be one of {', '.join(SCALES)}")
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"{text}: the first bound must be below the second")
    if (scale == "log" and low <= 0.0) or (scale == "complement" and high >= 1.0):
        allowed = "greater than 0" if scale == "log" else "below 1"
        raise ConfigError(f"{text}: with the scale {scale} its bounds must be {allowed}")
    is_whole = type(value) is int
    if is_whole and math.ceil(low) >= math.floor(high):
        raise ConfigError(f"{text}: no two whole numbers lie between its bounds")
    for bound in (low, high):
        try:
            changed = with_overrides(config, {name: int(bound) if is_whole else bound})
            replace(changed, population=None).check()
        except ConfigError as error:
            raise ConfigError(f"{text}: {error}") from error
    return HyperParameter(name, low, high, cast(Scale, scale), is_whole)


def _is_changeable(config: TrainConfig, path: tuple[str, ...]) -> bool:
    if path[0] == "ppo":
        return len(path) == 2 and path[1] in _PPO
    if len(path) == 4 and path[1] == "rewards" and path[3] == "weight":
        return True
    if len(path) != 5 or path[3] != "params":
        return False
    term: Any = getattr(config.env, path[1])[path[2]]
    return not inspect.isclass(getattr(term, "func", type))
