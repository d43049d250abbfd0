"""A task's metrics at work: the numbers that policies are judged by, at every step.

Training does not need them; an `Env` computes them only when it is asked to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from simtrain.env.cfg import MetricTermCfg
from simtrain.env.terms import Term
from simtrain.errors import ConfigError

if TYPE_CHECKING:
    from simtrain.env.env import Env


class Metrics:
    """The values of all metric terms; never waits for the device."""

    def __init__(self, cfgs: Mapping[str, MetricTermCfg], env: Env) -> None:
        self.names = tuple(cfgs)
        means = [cfg.reduce == "mean" for cfg in cfgs.values()]
        self.is_mean = torch.tensor(means, dtype=torch.bool, device=env.device)
        """Of which an episode's mean counts and not its last value, boolean ``(terms,)``."""
        self._terms = {name: Term(cfg, env, f"metrics.{name}") for name, cfg in cfgs.items()}
        self.values = torch.zeros(env.num_envs, len(cfgs), device=env.device)
        """What the terms said at the latest step, before any reset, ``(num_envs, terms)``."""

    def compute(self) -> None:
        """Evaluate every term into `values`, in place.

        Raises:
            ConfigError: a term returns something of another shape.
        """
        for i, (name, term) in enumerate(self._terms.items()):
            value = term()
            if value.shape != self.values.shape[:1]:
                raise ConfigError(
                    f"metrics.{name} has shape {tuple(value.shape)}; "
                    f"it must be (num_envs,), here {tuple(self.values.shape[:1])}"
                )
            self.values[:, i] = value

    def reset(self, mask: Tensor) -> None:
        """Let terms that keep state forget the environments in `mask`."""
        for term in self._terms.values():
            term.reset(mask)
