"""Observations at work: terms, noise, clip, scale and history, into preallocated buffers.

A group's terms are concatenated first; noise, clip and scale are then one operation each for the
whole group, whatever the number of terms.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from tensordict import TensorDict
from torch import Tensor

from simtrain.env.base import BaseEnv
from simtrain.env.cfg import GaussianNoiseCfg, ObservationTermCfg, UniformNoiseCfg
from simtrain.env.terms import Term
from simtrain.errors import ConfigError, flag


class SharedTerms:
    """Terms that several groups may see; each is evaluated once a step.

    Terms of the same function and the same parameters are one: their noise, clip, scale and history
    are the group's affair.
    """

    def __init__(self, env: BaseEnv) -> None:
        self._env = env
        self._cfgs: list[ObservationTermCfg] = []
        self.terms: list[Term] = []
        self.values: list[Tensor] = []
        """What each term returned last, ``(num_envs, size)``."""

    def add(self, cfg: ObservationTermCfg, name: str) -> int:
        """The term's place in `values`."""
        for place, other in enumerate(self._cfgs):
            if other.func is cfg.func and other.params == cfg.params:
                return place
        term = Term(cfg, self._env, name)
        self._cfgs.append(cfg)
        self.terms.append(term)
        self.values.append(term())
        return len(self.terms) - 1

    def compute(self) -> None:
        """Evaluate all terms, into `values`."""
        self.values[:] = [term() for term in self.terms]


class ObservationGroup:
    """The terms of one group, side by side."""

    def __init__(
        self, name: str, cfgs: Mapping[str, ObservationTermCfg], env: BaseEnv, shared: SharedTerms
    ) -> None:
        self.name = name
        self._num_envs = env.num_envs
        self._shared = shared
        self._places = [
            shared.add(cfg, f"observations.{name}.{term}") for term, cfg in cfgs.items()
        ]
        self._sizes = [self._size_of(t, i) for t, i in zip(cfgs, self._places, strict=True)]
        self.slices: dict[str, slice] = {}
        """Where each term stands in the group's vector, history included."""
        start = 0
        for (term, cfg), size in zip(cfgs.items(), self._sizes, strict=True):
            width = size * max(cfg.history_length, 1)
            self.slices[term] = slice(start, start + width)
            start += width
        self.size = start
        """Length of the group's vector."""
        self.columns = tuple(
            f"{name}.{term}"
            for term, size in zip(cfgs, self._sizes, strict=True)
            for _ in range(size)
        )
        """The name of the term of each column, without history."""
        width = len(self.columns)
        self.sums = env.variable(f"observations.{name}.sums", torch.zeros(width))
        """Sums of the columns; not finite for one that was not, and then counts as 0."""
        self._set_processing(cfgs, env.device)
        self._random = torch.empty(env.num_envs, width, device=env.device)
        self._histories = [
            env.buffer(f"observations.{name}.{term}.history", (cfg.history_length, size), None)
            if cfg.history_length > 1
            else None
            for (term, cfg), size in zip(cfgs.items(), self._sizes, strict=True)
        ]
        has_history = any(history is not None for history in self._histories)
        self._present = torch.empty_like(self._random) if has_history else None
        # Whose histories start with their next observation.
        self._fresh = env.buffer(f"observations.{name}.fresh", reset=True, dtype=torch.bool)

    def _set_processing(self, cfgs: Mapping[str, ObservationTermCfg], device: torch.device) -> None:
        """Prepare noise, clip and scale; None where no term has one."""
        terms = list(cfgs.values())
        repeats = torch.tensor(self._sizes)

        def columns(values: list[float]) -> Tensor:
            """One value a term, repeated over the term's columns."""
            return torch.tensor(values).repeat_interleave(repeats).to(device)

        self._uniform = self._normal = self._clip = self._scale = None
        uniform = [c.noise if isinstance(c.noise, UniformNoiseCfg) else None for c in terms]
        if any(uniform):
            self._uniform = (
                columns([n.n_min if n else 0.0 for n in uniform]),
                columns([n.n_max - n.n_min if n else 0.0 for n in uniform]),
            )
        normal = [c.noise if isinstance(c.noise, GaussianNoiseCfg) else None for c in terms]
        if any(normal):
            self._normal = (
                columns([n.mean if n else 0.0 for n in normal]),
                columns([n.std if n else 0.0 for n in normal]),
            )
        if any(cfg.clip for cfg in terms):
            bounds = [cfg.clip or (-torch.inf, torch.inf) for cfg in terms]
            self._clip = (columns([b[0] for b in bounds]), columns([b[1] for b in bounds]))
        if any(cfg.scale is not None for cfg in terms):
            scales = zip(cfgs.items(), self._sizes, strict=True)
            self._scale = torch.cat([self._scale_of(t, c, s) for (t, c), s in scales]).to(device)

    def compute(self, out: Tensor) -> None:
        """Write the group's observations into `out`, ``(num_envs, size)``, of the terms' values."""
        present = out if self._present is None else self._present
        torch.cat([self._shared.values[i] for i in self._places], dim=1, out=present)
        if self._uniform is not None:
            low, width = self._uniform
            present.addcmul_(self._random.uniform_(), width).add_(low)
        if self._normal is not None:
            mean, std = self._normal
            present.addcmul_(self._random.normal_(), std).add_(mean)
        if self._clip is not None:
            torch.clamp(present, *self._clip, out=present)
        if self._scale is not None:
            present.mul_(self._scale)
        self.sums += present.sum(dim=0)
        torch.nan_to_num(present, 0.0, 0.0, 0.0, out=present)
        if self._present is not None:
            torch.cat(self._stacked(present), dim=1, out=out)

    def _stacked(self, present: Tensor) -> list[Tensor]:
        """Each term's columns with its history, oldest first; moves the histories on."""
        parts = []
        for value, history in zip(present.split(self._sizes, dim=1), self._histories, strict=True):
            if history is None:
                parts.append(value)
                continue
            history[:, :-1] = history[:, 1:].clone()
            history[:, -1] = value
            repeated = value.unsqueeze(1).expand_as(history)
            history.copy_(torch.where(self._fresh.view(-1, 1, 1), repeated, history))
            parts.append(history.flatten(1))
        self._fresh.zero_()
        return parts

    def _size_of(self, term: str, place: int) -> int:
        value = self._shared.values[place]
        if value.ndim != 2 or value.shape[0] != self._num_envs:
            raise ConfigError(
                f"observations.{self.name}.{term} has shape {tuple(value.shape)}; "
                f"it must be (num_envs, size), here ({self._num_envs}, size)"
            )
        return int(value.shape[1])

    def _scale_of(self, term: str, cfg: ObservationTermCfg, size: int) -> Tensor:
        if isinstance(cfg.scale, tuple):
            if len(cfg.scale) != size:
                raise ConfigError(
                    f"{flag('env', 'observations', self.name, term, 'scale')} has "
                    f"{len(cfg.scale)} values, and the term has {size}"
                )
            return torch.tensor(cfg.scale)
        return torch.full((size,), 1.0 if cfg.scale is None else cfg.scale)


class Observations:
    """All groups, in two sets of buffers that take turns.

    What `compute` returns stays as it is until the call after the next, so that a caller can keep
    the observation that an action was chosen by until the step is done.
    """

    def __init__(self, cfgs: Mapping[str, Mapping[str, ObservationTermCfg]], env: BaseEnv) -> None:
        self._shared = SharedTerms(env)
        self.groups = {
            name: ObservationGroup(name, terms, env, self._shared) for name, terms in cfgs.items()
        }
        self._buffers = [
            {
                name: env.buffer(f"observations.{name}.{turn}", (group.size,), reset=None)
                for name, group in self.groups.items()
            }
            for turn in ("even", "odd")
        ]
        self._turns = [
            TensorDict(dict(buffers), batch_size=[env.num_envs], device=env.device)
            for buffers in self._buffers
        ]
        self.turn = 0
        """Which of the two sets of buffers has the latest observations."""
        self.terms = self._shared.terms
        """All terms; those that several groups share once."""

    @property
    def latest(self) -> TensorDict:
        """What `compute` returned last."""
        return self._turns[self.turn]

    def take_turn(self) -> None:
        """Let the other set of buffers be the latest, filled by a graph."""
        self.turn = 1 - self.turn

    def compute(self) -> TensorDict:
        """Observe all environments; ``{group: (num_envs, size)}``."""
        self.take_turn()
        self._shared.compute()
        for name, group in self.groups.items():
            group.compute(self._buffers[self.turn][name])
        return self.latest
