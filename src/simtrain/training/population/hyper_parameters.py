"""Which numbers of a configuration evolve, from the flags of a population. Imports no torch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import getitem
from typing import Any, cast

from simtrain.config.metric_tags import evaluation_names
from simtrain.config.train import TrainConfig
from simtrain.config.tree import as_plain, leaves, overlay
from simtrain.errors import ConfigError, did_you_mean, flag
from simtrain.training.population.evolution import (
    MUTATIONS,
    SCALES,
    HyperParameter,
    Mutation,
    Scale,
    Selection,
    Values,
)

_PPO = (
    *("desired_kl", "learning_rate", "entropy_coef", "clip_param", "num_learning_epochs"),
    *("gamma", "lam", "value_loss_coef", "max_grad_norm"),
)
"""Settings of PPO that an update reads anew; others shape networks and buffers."""
_DEFAULTS = {
    "ppo.desired-kl": HyperParameter("ppo.desired-kl", 0.003, 0.05, "log"),
    "ppo.learning-rate": HyperParameter("ppo.learning-rate", 1e-4, 3e-3, "log"),
    "ppo.entropy-coef": HyperParameter("ppo.entropy-coef", 1e-4, 0.03, "log"),
    "ppo.clip-param": HyperParameter("ppo.clip-param", 0.1, 0.3, "log"),
    "ppo.num-learning-epochs": HyperParameter("ppo.num-learning-epochs", 2, 8, is_whole=True),
    "ppo.gamma": HyperParameter("ppo.gamma", 0.95, 0.998, "complement"),
    "ppo.lam": HyperParameter("ppo.lam", 0.9, 0.99, "complement"),
}


def check_population_flags(config: TrainConfig) -> None:
    """Raise ConfigError for flags of a population that cannot be."""
    if config.population is None:
        if config.ranks_per_member != 1:
            text = f"--ranks-per-member {config.ranks_per_member} is of a population"
            raise ConfigError(f"{text}; add --population, the number of its members")
        return
    if config.population < 2:
        raise ConfigError(f"--population is {config.population}; it must be 2 or more")
    if config.cpu_workers != 1:
        text = f"--cpu-workers is {config.cpu_workers}; the ranks of a population follow from"
        raise ConfigError(f"{text} --population and --ranks-per-member")
    if not 0.0 < config.population_share <= 0.5:
        text = f"--population-share is {config.population_share}"
        raise ConfigError(f"{text}; it must be greater than 0 and at most 0.5")
    weights = config.population_mutations
    if min(weights) < 0.0 or not 0.0 < sum(weights) < math.inf:
        text = f"--population-mutations is {' '.join(map(str, weights))}"
        raise ConfigError(f"{text}; give four frequencies of 0 or more, not all 0")
    fitness_of(config)
    hyper_parameters(config)


def selection_of(config: TrainConfig) -> Selection:
    """How members are selected."""
    return Selection(
        kind=config.population_selection,
        size=config.population_tournament_size,
        share=config.population_share,
        grace=config.population_grace,
    )


def mutations_of(config: TrainConfig) -> dict[Mutation, float]:
    """The relative frequency of each mutation."""
    return dict(zip(MUTATIONS, config.population_mutations, strict=True))


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
    if config.population_mutate:
        found = [_parse(config, words) for words in config.population_mutate]
        names = [each.flag for each in found]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"--population-mutate names {name} twice")
        return tuple(found)
    unused = "learning-rate" if config.ppo.schedule == "adaptive" else "desired-kl"
    return tuple(each for name, each in _DEFAULTS.items() if name != f"ppo.{unused}")


def values_of(config: TrainConfig, which: tuple[HyperParameter, ...]) -> Values:
    """The configuration's own values of hyper-parameters."""
    numbers = _numbers(config)
    return {each.flag: numbers[each.flag][1] for each in which}


def with_values(config: TrainConfig, values: Mapping[str, Any]) -> TrainConfig:
    """A copy of the configuration with other values, by flags without dashes."""
    plain = as_plain(config)
    for name, value in values.items():
        path = _numbers(config)[name][0]
        reduce(getitem, path[:-1], plain)[path[-1]] = value
    return overlay(config, plain)


def term_parameter(config: TrainConfig, name: str) -> tuple[str, str]:
    """The term, as ``rewards.upright``, and its parameter that an ``env.`` flag sets."""
    path = _numbers(config)[name][0]
    return ".".join(path[1:3]), path[-1]


def _numbers(config: TrainConfig) -> dict[str, tuple[tuple[str, ...], float]]:
    """All numbers of the configuration by their flags without dashes, with their places."""
    kinds = (int, float)
    return {
        flag(*path).removeprefix("--"): (path, value)
        for path, value in leaves(config).items()
        if type(value) in kinds
    }


def _parse(config: TrainConfig, words: tuple[str, ...]) -> HyperParameter:
    text = f"--population-mutate {' '.join(words)}"
    if not 3 <= len(words) <= 4:
        raise ConfigError(f"{text}: give a flag, two bounds and, if need be, a scale")
    name = words[0].removeprefix("--").replace("_", "-")
    numbers = {
        key: found for key, found in _numbers(config).items() if _root(key) in ("ppo", "env")
    }
    if name not in numbers:
        raise ConfigError(
            f"{text}: no number of the task is called so{did_you_mean(name, numbers)}"
        )
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
    whole = type(value) is int
    result = HyperParameter(name, low, high, cast(Scale, scale), is_whole=whole)
    for bound in (low, high):
        changed = with_values(config, {name: int(bound) if whole else bound})
        try:
            replace(changed, population=None).check()
        except ConfigError as error:
            raise ConfigError(f"{text}: {error}") from error
    return result


def _root(name: str) -> str:
    return name.split(".", 1)[0]


def _is_changeable(config: TrainConfig, path: tuple[str, ...]) -> bool:
    if path[0] == "ppo":
        return len(path) == 2 and path[1] in _PPO
    if len(path) == 4 and path[1] == "rewards" and path[3] == "weight":
        return True
    if len(path) != 5 or path[3] != "params":
        return False
    term: Any = getattr(config.env, path[1])[path[2]]
    return not inspect.isclass(getattr(term, "func", type))
