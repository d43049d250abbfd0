"""Commands: what the policy is asked to do, drawn anew at resets and from time to time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from simtrain.env.cfg import CommandTermCfg
from simtrain.env.names import resolve_params

if TYPE_CHECKING:
    from simtrain.env.env import Env


class CommandTerm(ABC):
    """Base of commands; a subclass is made with ``(env, **params)``."""

    command: Tensor
    """The present command of every environment, ``(num_envs, size)``, changed in place."""

    @abstractmethod
    def resample(self, mask: Tensor) -> None:
        """Draw new commands for the environments in `mask`, boolean ``(num_envs,)``."""

    def update(self) -> None:  # noqa: B027 - most commands stand until they are drawn anew
        """Follow the state, at every step; for commands such as a heading to keep."""


class Commands:
    """All of a task's commands and when they are drawn anew."""

    def __init__(self, cfgs: Mapping[str, CommandTermCfg], env: Env) -> None:
        self._env = env
        self._ranges = [cfg.resampling_time_range for cfg in cfgs.values()]
        self.terms: dict[str, CommandTerm] = {
            name: cfg.func(env, **resolve_params(cfg.params, env.model, env.device))
            for name, cfg in cfgs.items()
        }
        self._time_left = [torch.zeros(env.num_envs, device=env.device) for _ in self.terms]

    def reset(self, mask: Tensor) -> None:
        """Let the commands of the environments in `mask` be drawn anew at the next `compute`."""
        for left in self._time_left:
            left.masked_fill_(mask, 0.0)

    def compute(self) -> None:
        """Draw the commands whose time has come, and let all follow the state."""
        env = self._env
        for term, left, (low, high) in zip(
            self.terms.values(), self._time_left, self._ranges, strict=True
        ):
            due = left <= 0.0
            term.resample(due)
            fresh = torch.empty(env.num_envs, device=env.device).uniform_(low, high)
            left.copy_(torch.where(due, fresh, left))
            left -= env.step_dt
            term.update()
