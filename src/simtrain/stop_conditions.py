"""When training ends early: ``--stop-at-return``, ``--stop-at`` and ``--stop-below``.

Imports neither torch nor MuJoCo: a misspelt metric is told before they are loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from simtrain.env.cfg import TaskCfg
from simtrain.errors import ConfigError, did_you_mean
from simtrain.metric_tags import metric_tags


class StopFlags(Protocol):
    """What `TrainConfig` says of when training ends, and of the metrics that it logs."""

    env: TaskCfg
    eval_interval: int | None
    stop_at_return: float | None
    stop_at: tuple[tuple[str, float], ...]
    stop_below: tuple[tuple[str, float], ...]
    phase_times: bool


@dataclass(frozen=True)
class StopCondition:
    """A metric and the value at which training ends."""

    flag: str
    """The flag that asks for it."""
    tag: str
    """The metric's tag."""
    value: float
    """What it must reach."""

    def holds(self, metrics: Mapping[str, float]) -> bool:
        """Whether an iteration's metrics fulfil it; not if the metric is missing or NaN."""
        if self.tag not in metrics:
            return False
        now = metrics[self.tag]
        return now <= self.value if self.flag == "--stop-below" else now >= self.value

    def __str__(self) -> str:
        tag = "" if self.flag == "--stop-at-return" else f" {self.tag}"
        return f"{self.flag}{tag} {self.value:g}"


def stop_conditions(config: StopFlags) -> tuple[StopCondition, ...]:
    """The conditions of which any one ends training."""
    wanted: list[StopCondition] = []
    if config.stop_at_return is not None:
        wanted.append(StopCondition("--stop-at-return", "Eval/mean_return", config.stop_at_return))
    wanted += [StopCondition("--stop-at", tag, value) for tag, value in config.stop_at]
    wanted += [StopCondition("--stop-below", tag, value) for tag, value in config.stop_below]
    return tuple(wanted)


def first_that_holds(
    conditions: Iterable[StopCondition], metrics: Mapping[str, float]
) -> StopCondition | None:
    """The first condition that an iteration's metrics fulfil, or None."""
    return next((condition for condition in conditions if condition.holds(metrics)), None)


def check_stop_conditions(config: StopFlags, engine: str) -> None:
    """Check that every metric that training shall end with is one that it logs.

    Args:
        config: the configuration.
        engine: the physics engine; ``auto`` if it is not known yet.

    Raises:
        ConfigError: there is no such metric, or it needs an evaluation that is off.
    """
    tags = metric_tags(config.env, overflow=engine != "mujoco", phase_times=config.phase_times)
    for condition in stop_conditions(config):
        if condition.tag not in tags:
            raise ConfigError(
                f"{condition.flag}: training logs no metric {condition.tag!r}"
                f"{did_you_mean(condition.tag, tags)}; metrics.jsonl of a run shows their names"
            )
        if condition.tag.startswith("Eval/") and config.eval_interval is None:
            raise ConfigError(
                f"{condition} needs evaluations; add --eval-interval, the iterations between them"
            )
