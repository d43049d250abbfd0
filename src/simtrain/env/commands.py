"""Commands: goals of the policy, drawn at resets and at random intervals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from simtrain.env.names import resolve_params
from simtrain.env.randomness import draw_where
from simtrain.errors import ConfigError, call_term, choices

if TYPE_CHECKING:  # `--help` imports the commands of a task, and does not wait for torch
    import numpy as np
    from torch import Tensor

    from simtrain.env.base import BaseEnv
    from simtrain.env.cfg import CommandTermCfg
    from simtrain.env.names import Joints


@dataclass(frozen=True)
class Arrow:
    """An arrow that shows a command: its ends in the world, m, and its colour, 0 to 1."""

    start: tuple[float, float, float]
    end: tuple[float, float, float]
    rgb: tuple[float, float, float]


@dataclass(frozen=True)
class Sphere:
    """A sphere that shows a position: its centre in the world, its radius, m, and its colour."""

    center: tuple[float, float, float]
    radius: float
    rgb: tuple[float, float, float]


@dataclass(frozen=True)
class Frame:
    """Axes that show a pose: their origin, m, their orientation, and their length, m.

    The quaternion has w first and rotates to the world; x is red, y green and z blue.
    """

    origin: tuple[float, float, float]
    quaternion: tuple[float, float, float, float]
    length: float


Marker = Arrow | Sphere | Frame


class CommandTerm(ABC):
    """Base of commands; a subclass is made with ``(env, **params)``."""

    command: Tensor
    """The present commands, ``(num_envs, size)``, changed in place; an `env.buffer` with
    ``reset=None``, because `resample` draws it."""
    labels: tuple[str, ...] = ()
    """Names of the entries in viewers; empty to number them."""
    is_driven: bool = True
    """Whether the viewer has sliders for it; not for an automatic one, such as a clock."""
    stops_at_zero: bool = False
    """Whether zero is a command to stand still; the viewer then has a "Stop" button."""

    @abstractmethod
    def resample(self, mask: Tensor) -> None:
        """Draw new commands for the environments in `mask`, boolean ``(num_envs,)``."""

    def update(self) -> None:  # noqa: B027 - most commands stand until they are drawn anew
        """Update the commands from the state, at every step, such as to keep a heading."""

    def reference(self, joints: Joints) -> Callable[[], Tensor]:
        """A function that returns the present targets of `joints`, from their initial positions.

        It returns a new tensor, ``(num_envs, joints)``, rad or m. Raises ConfigError for a command
        without a motion.
        """
        raise ConfigError(f"a {type(self).__name__} has no motion of joints")

    def entries(self) -> tuple[str, ...]:
        """The names of all entries: `labels`, or numbers."""
        return self.labels or tuple(str(i) for i in range(self.command.shape[1]))

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Smallest and largest value of every entry, ``(size,)`` each: the ends of its slider."""
        high = torch.ones_like(self.command[0])
        return -high, high

    def begin(self) -> None:  # noqa: B027 - most commands begin with what they declared
        """Start without random numbers, as on a robot, in place; for automatic commands."""

    def describe(self) -> dict[str, Any]:
        """Data for ``policy.json``: ``places``, bodies whose poses a robot's program provides, and
        ``starts``, by name: the memory at the start of an episode, and the robot's ``qpos``.
        """
        return {}

    def caption(self, index: int) -> str:
        """Text in pictures for the command of the environment `index`; waits for the device."""
        values = zip(self.entries(), self.command[index].tolist(), strict=True)
        return "   ".join(f"{label} {value:+.2f}" for label, value in values)

    def ghost(self, index: int) -> np.ndarray | None:
        """Target ``qpos`` of the environment `index`, drawn as a second robot; None for none.

        Waits for the device.
        """
        return None

    def markers(self, index: int) -> Sequence[Marker]:
        """Markers in pictures and viewers for the command of the environment `index`.

        Waits for the device.
        """
        return []


class _Terms(dict[str, CommandTerm]):
    def __missing__(self, name: str) -> CommandTerm:
        raise ConfigError(f"there is no command {name!r}{choices(name, self)}")


class Commands:
    """All of a task's commands and when they are drawn anew."""

    def __init__(self, cfgs: Mapping[str, CommandTermCfg], env: BaseEnv) -> None:
        self._env = env
        self._ranges = {name: cfg.resampling_time_range for name, cfg in cfgs.items()}
        self.terms: dict[str, CommandTerm] = _Terms()
        for name, cfg in cfgs.items():
            params = resolve_params(cfg.params, env.model, env.device)
            self.terms[name] = env.make_term(f"commands.{name}", cfg.func, params)
        # Zero after a reset, so that commands are drawn anew.
        self._time_left = {name: env.buffer(f"commands.time_left.{name}") for name in cfgs}
        self._fixed: dict[str, Tensor] = {}

    def hold(self, name: str, values: Sequence[float]) -> None:
        """Keep a command at `values`, ``(size,)``, in all environments from now on, in place."""
        term = self.terms[name]
        self._fixed[name] = torch.tensor(values, dtype=term.command.dtype, device=self._env.device)
        term.command.copy_(self._fixed[name].expand_as(term.command))

    def release(self, name: str) -> None:
        """Let a held command be drawn anew at the next `compute`, and follow its term again."""
        if self._fixed.pop(name, None) is not None:
            self._time_left[name].zero_()

    def compute(self) -> None:
        """Draw the commands whose time has come, and let all follow the state."""
        for name, term in self.terms.items():
            left = self._time_left[name]
            due = left <= 0.0
            call_term(f"commands.{name}", term.resample, due)
            draw_where(due, left, self._ranges[name])
            left -= self._env.step_dt
            call_term(f"commands.{name}", term.update)
            if name in self._fixed:
                term.command.copy_(self._fixed[name].expand_as(term.command))
