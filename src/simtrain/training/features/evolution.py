"""Evolution of a population: the numbers that evolve, selection and mutation, as pure functions.

All members compute the same decisions from the same gathered candidates, so that none has to send
them. Population-based training is that of Jaderberg et al., 2017
(https://arxiv.org/abs/1711.09846), the tournament that of AgileRL. Imports no torch, so that wrong
flags are reported at once.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

import numpy as np

from simtrain.config.train import TrainConfig
from simtrain.config.tree import POPULATION, with_overrides
from simtrain.errors import ConfigError, did_you_mean, flag
from simtrain.limits import field_default, leaves
from simtrain.training.features.conditions import evaluation_names

if TYPE_CHECKING:
    from simtrain.training.evaluator import Estimate

Scale = Literal["linear", "log", "complement"]
Mutation = Literal["none", "hyper_parameters", "parameters", "architecture"]
MUTATIONS = get_args(Mutation)
SCALES: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "linear": (lambda value: value, lambda value: value),
    "log": (math.log, math.exp),
    "complement": (lambda value: math.log(1.0 - value), lambda x: 1.0 - math.exp(x)),
}
"""Scale -> the function of a value that is drawn uniformly, and its inverse."""
FACTOR = 1.2
"""A mutated hyper-parameter is multiplied or divided by this."""
REDRAW = 0.1
"""Probability that a mutated hyper-parameter is drawn anew within its bounds."""
Values = dict[str, float]
"""Hyper-parameters: flag without dashes, such as ``ppo.entropy-coef`` -> value."""


@dataclass(frozen=True)
class HyperParameter:
    """A number of the configuration that evolves within bounds."""

    flag: str
    """As it is typed, without the two dashes."""
    low: float
    high: float
    scale: Scale = "linear"
    """Uniformly drawn number: the value, its logarithm, or the logarithm of 1 minus it."""
    is_whole: bool = False

    def draw(self, rng: np.random.Generator) -> float:
        """A value drawn within the bounds."""
        scaled, inverse = SCALES[self.scale]
        low, high = scaled(self.low), scaled(self.high)
        value = inverse(low + (high - low) * rng.random())
        return self._bounded(round(value) if self.is_whole else value)

    def mutated(self, value: float, rng: np.random.Generator) -> float:
        """`value` multiplied or divided by `FACTOR`, or drawn anew; within the bounds.

        With the scale ``complement``, this is applied to 1 - `value`.
        """
        if rng.random() < REDRAW:
            return self.draw(rng)
        factor = FACTOR if rng.random() < 0.5 else 1.0 / FACTOR
        if self.scale == "complement":
            return self._bounded(1.0 - (1.0 - value) * factor)
        changed = value * factor
        if self.is_whole:  # one that is small changes, too
            changed = round(changed)
            changed = max(value + 1, changed) if factor > 1.0 else min(value - 1, changed)
        return self._bounded(changed)

    def _bounded(self, value: float) -> float:
        value = min(max(value, self.low), self.high)
        return int(value) if self.is_whole else value


_SETTINGS = {
    "ppo": (
        *("desired_kl", "learning_rate", "entropy_coef", "clip_param", "num_learning_epochs"),
        *("gamma", "lam", "value_loss_coef", "max_grad_norm"),
    ),
    "distillation": ("learning_rate", "num_learning_epochs", "max_grad_norm"),
}
"""Settings of the algorithm that each update reads again; the others determine networks and
buffers."""
_DEFAULTS = (
    HyperParameter("ppo.desired-kl", 0.003, 0.05, "log"),
    HyperParameter("ppo.learning-rate", 1e-4, 3e-3, "log"),
    HyperParameter("ppo.entropy-coef", 1e-4, 0.03, "log"),
    HyperParameter("ppo.clip-param", 0.1, 0.3, "log"),
    HyperParameter("ppo.num-learning-epochs", 2, 8, is_whole=True),
    HyperParameter("ppo.gamma", 0.95, 0.998, "complement"),
    HyperParameter("ppo.lam", 0.9, 0.99, "complement"),
    HyperParameter("distillation.learning-rate", 1e-4, 3e-3, "log"),
    HyperParameter("distillation.num-learning-epochs", 2, 8, is_whole=True),
)


def check_population_flags(config: TrainConfig) -> None:
    """Raise ConfigError for invalid flags of a population."""
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
    """The estimate by which members are selected, and the sign with which larger is better;
    ConfigError if the task has no such metric."""
    name, _, direction = config.population_fitness.partition(":")
    names = evaluation_names(config.env)
    text = f"--population-fitness is {config.population_fitness!r}"
    if name not in names:
        raise ConfigError(f"{text}; evaluations of the task give {', '.join(names)}")
    if direction not in ("", "max", "min"):
        raise ConfigError(f"{text}; write max or min after the colon")
    return name, -1.0 if direction == "min" else 1.0


def hyper_parameters(config: TrainConfig) -> tuple[HyperParameter, ...]:
    """The numbers that evolve; ConfigError if one is unknown, is fixed, or has invalid bounds."""
    if not config.population_mutate:
        unused = "learning-rate" if config.ppo.schedule == "adaptive" else "desired-kl"
        own = [p for p in _DEFAULTS if p.flag.startswith(_algorithm(config))]
        return tuple(default for default in own if default.flag != f"ppo.{unused}")
    return tuple(_parse(config, words) for words in config.population_mutate)


def values_of(config: TrainConfig, parameters: tuple[HyperParameter, ...]) -> Values:
    """The values of hyper-parameters in the configuration."""
    numbers = _numbers(config)
    return {parameter.flag: numbers[parameter.flag][1] for parameter in parameters}


def term_parameter(config: TrainConfig, name: str) -> tuple[str, str]:
    """The term, such as ``rewards.upright``, and its parameter that an ``env.`` flag sets."""
    path = _numbers(config)[name][0]
    return ".".join(path[1:3]), path[-1]


def _numbers(config: TrainConfig) -> dict[str, tuple[tuple[str, ...], float]]:
    """The task's and the algorithm's numbers by their flags without dashes, with their places."""
    return {
        flag(*path).removeprefix("--"): (path, value)
        for path, value in leaves(config).items()
        if path[0] in (_algorithm(config), "env") and type(value) in (int, float)
    }


def _algorithm(config: TrainConfig) -> str:
    return "ppo" if config.teacher is None else "distillation"


def _parse(config: TrainConfig, words: tuple[str, ...]) -> HyperParameter:
    text = f"--population-mutate {' '.join(words)}"
    if not 3 <= len(words) <= 4:
        raise ConfigError(f"{text}: give a flag, two bounds and optionally a scale")
    name, numbers = words[0].removeprefix("--").replace("_", "-"), _numbers(config)
    if name not in numbers:
        near = did_you_mean(name, numbers)
        raise ConfigError(f"{text}: the task has no number with this name{near}")
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
            with_overrides(config, {name: int(bound) if is_whole else bound}).check()
        except ConfigError as error:
            raise ConfigError(f"{text}: {error}") from error
    return HyperParameter(name, low, high, cast(Scale, scale), is_whole)


def _is_changeable(config: TrainConfig, path: tuple[str, ...]) -> bool:
    if path[0] in _SETTINGS:
        return len(path) == 2 and path[1] in _SETTINGS[path[0]]
    if len(path) == 4 and path[1] == "rewards" and path[3] == "weight":
        return True
    if len(path) != 5 or path[3] != "params":
        return False
    term: Any = getattr(config.env, path[1])[path[2]]
    return not inspect.isclass(getattr(term, "func", type))


@dataclass(frozen=True)
class Settings:
    """The part of the configuration that differs between members."""

    values: Values
    hidden_dims: dict[str, tuple[int, ...]]
    """Sizes of the networks, by their names in the configuration of PPO."""

    def config(self, config: TrainConfig) -> TrainConfig:
        """The run's configuration with these settings."""
        sizes = {f"ppo.{name}.hidden-dims": dims for name, dims in self.hidden_dims.items()}
        return with_overrides(config, self.values | sizes)


@dataclass(frozen=True)
class Candidate:
    """A member in an exchange, as it tells the others; larger `fitness` and `low` are better."""

    settings: Settings
    estimate: Estimate
    """The fitness as it was evaluated, also if smaller is better."""
    fitness: float
    low: float
    """Lower end of the fitness's confidence interval."""
    age: int
    """Iterations since it was last replaced, or since the start."""
    learns: bool = True
    """Whether its losses are finite."""
    ends: bool = False
    """Whether its evaluation meets ``--until``."""

    @property
    def is_sound(self) -> bool:
        """Whether it may be copied."""
        return self.learns and math.isfinite(self.fitness)

    @property
    def score(self) -> float:
        """The fitness; less than any other for a member that may not be copied."""
        return self.fitness if self.is_sound else -math.inf

    def leads(self, other: Candidate) -> bool:
        """Whether it is better than `other` by more than the noise."""
        return self.is_sound and (not other.is_sound or self.low > other.fitness)


@dataclass(frozen=True)
class Decision:
    """A member after selection and mutation."""

    parent: int
    mutation: Mutation
    settings: Settings


def evolve(
    config: TrainConfig,
    candidates: Sequence[Candidate],
    hyper_parameters: Sequence[HyperParameter],
    rng: np.random.Generator,
) -> list[Decision]:
    """The decision for each member; `hyper_parameters` are those that evolve."""
    shares = np.array(config.population_mutations)
    decisions = []
    for parent, is_mutated in select(config, candidates, rng):
        mutation: Mutation = "none"
        settings = candidates[parent].settings
        if is_mutated:
            mutation = MUTATIONS[int(rng.choice(len(MUTATIONS), p=shares / shares.sum()))]
        if mutation == "hyper_parameters":
            values = {h.flag: h.mutated(settings.values[h.flag], rng) for h in hyper_parameters}
            settings = replace(settings, values=values)
        decisions.append(Decision(parent, mutation, settings))
    return decisions


def select(
    config: TrainConfig, candidates: Sequence[Candidate], rng: np.random.Generator
) -> list[tuple[int, bool]]:
    """For each member its parent (itself or another), and whether the result is mutated.

    A member copies another one only if that is better by more than the noise. The best member does
    not change. A member that is not sound is replaced at any age.
    """
    order = sorted(range(len(candidates)), key=lambda i: candidates[i].score)
    best = order[-1]
    decisions = []
    for i, rival in enumerate(_rivals(config, order, rng)):
        member = candidates[i]
        is_young = member.is_sound and member.age < config.population_grace
        if rival is None or i == best or is_young:
            decisions.append((i, False))
            continue
        if not (member.is_sound or candidates[rival].is_sound):
            rival = best
        decisions.append((rival if candidates[rival].leads(member) else i, True))
    return decisions


def _rivals(
    config: TrainConfig, order: Sequence[int], rng: np.random.Generator
) -> list[int | None]:
    """The member that each one may copy, or None; `order` is worst first."""
    count = len(order)
    if config.population_selection == "tournament":
        drawn = [rng.integers(count, size=config.population_tournament_size) for _ in order]
        return [max(map(int, members), key=order.index) for members in drawn]
    rivals: list[int | None] = [None] * count
    some = min(count // 2, max(1, math.ceil(config.population_share * count)))
    for i in order[:some]:
        rivals[i] = order[count - 1 - int(rng.integers(some))]
    return rivals
