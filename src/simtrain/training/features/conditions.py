"""The condition on metrics that ends training (``--until``), and checks of evaluation flags.

Imports no heavy modules, so that wrong flags are reported at once.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass

from simtrain.config.train import TrainConfig
from simtrain.env.cfg import TaskCfg
from simtrain.errors import ConfigError, did_you_mean
from simtrain.run.metric_tags import (
    DISTILLATION_METRICS,
    EVALUATION_TAGS,
    FINISHED_ENVS,
    LENGTH,
    PHASES,
    PPO_METRICS,
    RETURN,
    REWARDS,
    RND_METRICS,
    SPEED,
    STEP_REWARD,
    TAG,
    is_complete,
)

_SIGNS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,2})?"
_COMPARISON = re.compile(rf"\s*([^<>=\s]+)\s*([<>]=?)\s*({_NUMBER})\s*")
_OTHER_NAMES = {"fell": "failure_rate"}
_ALWAYS = (
    *(STEP_REWARD, RETURN, LENGTH, FINISHED_ENVS),
    *("Loss/learning_rate", "Policy/mean_std", "Sim/nan_resets"),
    *(SPEED, "Perf/collection_time", "Perf/learning_time"),
)


@dataclass(frozen=True)
class Comparison:
    """A comparison of a metric, given by its tag, with a number."""

    tag: str
    sign: str
    value: float

    @property
    def name(self) -> str:
        """Name of the metric: its tag, without ``Eval/``."""
        return self.tag.removeprefix("Eval/")

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Whether an iteration's metrics meet it; not if one is missing, incomplete or NaN."""
        is_known = self.tag in metrics and is_complete(metrics, self.tag)
        return is_known and _SIGNS[self.sign](metrics[self.tag], self.value)

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.value:g}"


@dataclass(frozen=True)
class StopCondition:
    """Alternatives of comparisons: true if all comparisons of one alternative are true."""

    alternatives: tuple[tuple[Comparison, ...], ...]

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        """All comparisons, in the order of the text."""
        return tuple(comparison for every in self.alternatives for comparison in every)

    @property
    def needs_evaluations(self) -> bool:
        """Whether it contains metrics of evaluations."""
        return any(comparison.tag.startswith("Eval/") for comparison in self.comparisons)

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Whether an iteration's metrics meet it."""
        return any(all(c.holds(metrics) for c in every) for every in self.alternatives)

    def __str__(self) -> str:
        return " or ".join(" and ".join(map(str, every)) for every in self.alternatives)


def stop_condition(config: TrainConfig) -> StopCondition | None:
    """The condition of ``--until``, such as ``lin_vel_error<0.1 and fell<0.02``; None without one.

    A name with a ``/`` is the tag of a metric; other names are metrics of evaluations. ``fell``
    means ``failure_rate``, unless the task has a metric of that name.

    Raises:
        ConfigError: the text is not a condition, or evaluations have no such metric.
    """
    if config.until is None:
        return None
    names = evaluation_names(config.env)
    alternatives = [
        tuple(_comparison(part, config.until, names) for part in re.split(r"\s+and\b", every))
        for every in re.split(r"\s+or\b", config.until)
    ]
    return StopCondition(tuple(alternatives))


def _comparison(text: str, condition: str, names: tuple[str, ...]) -> Comparison:
    match = _COMPARISON.fullmatch(text)
    if match is None:
        example = '"mean_return>45 and failure_rate<0.02"'
        raise ConfigError(f"--until is {condition!r}; it must be comparisons such as {example}")
    name = match[1] if match[1] in names else _OTHER_NAMES.get(match[1], match[1])
    if "/" not in name and name not in names:
        there = f"evaluations of the task give {', '.join(names)}"
        raise ConfigError(
            f"--until: no metric {name!r}{did_you_mean(name, names)}; {there}, and training what "
            "metrics.jsonl of a run shows, such as Train/mean_reward"
        )
    return Comparison(name if "/" in name else f"Eval/{name}", match[2], float(match[3]))


def metric_tags(config: TrainConfig) -> tuple[str, ...]:
    """Every tag of a training run, evaluation's last."""
    task, ppo = config.env, config.ppo
    return (
        *_ALWAYS,
        *(PPO_METRICS if config.teacher is None else DISTILLATION_METRICS),
        *(RND_METRICS if ppo.rnd.weight != 0.0 else ()),
        *(("Loss/symmetry",) if ppo.symmetry.is_used else ()),
        *(f"{TAG}{phase}" for phase in (PHASES if config.phase_times else ())),
        *(f"{REWARDS}{name}" for name in task.rewards),
        *(f"Episode_Termination/{name}" for name in task.terminations),
        *(f"Curriculum/{name}" for name in task.curricula),
        *(("Sim/overflow",) if config.engine != "mujoco" else ()),
        *(f"Eval/{name}" for name in (*EVALUATION_TAGS, *task.metrics)),
    )


def evaluation_names(task: TaskCfg) -> tuple[str, ...]:
    """The estimates of a task's evaluations, logged as ``Eval/<name>``."""
    return (*(name for name in EVALUATION_TAGS if name != "iteration"), *task.metrics)


def check_evaluation_flags(config: TrainConfig) -> None:
    """Check the flags of evaluation and early stopping.

    Raises:
        ConfigError: training does not log a metric, a metric needs evaluations that are off, or a
            device cannot evaluate.
    """
    device, has_evaluations = config.eval_device, config.eval_interval is not None
    if device is not None:
        text = f"--eval-device {device}"
        if not re.fullmatch(r"cpu|cuda:\d+", device):
            raise ConfigError(
                f"--eval-device is {device!r}; it must be cpu, or cuda:0, cuda:1, ..."
            )
        if not has_evaluations:
            raise ConfigError(f"{text} needs --eval-interval, the iterations between evaluations")
        if device != "cpu" and config.engine == "mujoco":
            cannot = "simulates on the GPU, which --engine mujoco cannot; use --eval-device cpu"
            raise ConfigError(f"{text} {cannot}")
    condition = stop_condition(config)
    if condition is None:
        return
    tags = metric_tags(config)
    for tag in (comparison.tag for comparison in condition.comparisons):
        if tag not in tags:
            raise ConfigError(
                f"--until: training logs no metric {tag!r}{did_you_mean(tag, tags)}; "
                "metrics.jsonl of a run shows their names"
            )
    if condition.needs_evaluations and not has_evaluations and config.population is None:
        raise ConfigError(
            f'--until "{condition}" needs evaluations; add --eval-interval, the iterations '
            "between them"
        )
