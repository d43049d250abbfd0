"""Observations at work: terms, noise, bias, clip, scale, delay, history; preallocated buffers.

A group's terms are concatenated first; noise, clip, scale and delay are then done for the whole
group at once, whatever the number of terms.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from tensordict import TensorDict
from torch import Tensor

from simtrain.env.base import BaseEnv
from simtrain.env.cfg import GaussianNoiseCfg, ObservationTermCfg, UniformNoiseCfg
from simtrain.env.control.cfg import Range
from simtrain.env.control.delay import DelayLine
from simtrain.env.terms import Term
from simtrain.errors import ConfigError, flag

Noise = UniformNoiseCfg | GaussianNoiseCfg | None
Pair = tuple[Tensor, Tensor] | None


class SharedTerms:
    """Terms that groups share, evaluated once a step; one for a function and its parameters."""

    def __init__(self, env: BaseEnv) -> None:
        self._env = env
        self.terms: list[Term] = []

    def add(self, cfg: ObservationTermCfg, name: str) -> Term:
        """The term, with its `value`; ConfigError if that has another shape."""
        for term in self.terms:
            if term.cfg.func is cfg.func and term.cfg.params == cfg.params:
                return term
        term = Term(cfg, self._env, name)
        value = term.value = term()
        fits = value.ndim in (2, 4) and value.shape[0] == self._env.num_envs
        needs = f"(num_envs, size), here ({self._env.num_envs}, size)"
        term.check(value, fits, f"{needs}, or (num_envs, channels, rows, columns)")
        self.terms.append(term)
        return term

    def compute(self) -> None:
        """Evaluate every term, in place."""
        with self._env.unchanging_state():
            for term in self.terms:
                term.value = term()


class ObservationGroup:
    """The terms of one group, side by side, or one that is an image."""

    def __init__(
        self, name: str, cfgs: Mapping[str, ObservationTermCfg], env: BaseEnv, shared: SharedTerms
    ) -> None:
        self._terms = [shared.add(c, f"observations.{name}.{term}") for term, c in cfgs.items()]
        values = [term.value for term in self._terms]
        self._sizes = [value[0].numel() for value in values]
        images = [term for term, value in zip(cfgs, values, strict=True) if value.ndim > 2]
        if images and len(cfgs) > 1:
            own = "give it a group of its own, or the group concatenate=False"
            raise ConfigError(f"observations.{name}.{images[0]} is an image among others; {own}")
        sized = [(*item, size) for item, size in zip(cfgs.items(), self._sizes, strict=True)]
        self.size = 0  # of the group's vector
        self.slices: dict[str, slice] = {}  # where terms stand in it, history included
        scales: list[float] = []
        for term, cfg, size in sized:
            start, self.size = self.size, self.size + size * max(cfg.history_length, 1)
            self.slices[term] = slice(start, self.size)
            scale = 1.0 if cfg.scale is None else cfg.scale
            scales += scale if isinstance(scale, tuple) else [scale] * size
            if isinstance(scale, tuple) and len(scale) != size:
                where = flag("env", "observations", name, term, "scale")
                raise ConfigError(f"{where} has {len(scale)} values, and the term has {size}")
        # The history of an image lies in its channels.
        sides = tuple(values[0].shape[2:]) if images else ()
        self.shape = (self.size // math.prod(sides), *sides)
        """The shape of an environment's observation: a vector's, or an image's."""
        columns = [f"{name}.{term}" for term, _, size in sized for _ in range(size)]
        self.columns = tuple(columns[:1] if images else columns)
        """The name of the term of each column, without history; an image is as one."""
        self.sums = env.variable(f"observations.{name}.sums", torch.zeros(len(self.columns)))
        """Sums of the columns; not finite for one that was not, and then counts as 0."""
        terms = list(cfgs.values())
        self._random = torch.empty(env.num_envs, len(columns), device=env.device)
        self._noise = self._noises([cfg.noise for cfg in terms])
        self._biases = self._noises([cfg.bias for cfg in terms])
        self._bias: Tensor | None = None
        if any(self._biases):
            self._bias = env.buffer(f"observations.{name}.bias", (len(columns),), None)
        self._clip = self._pairs([cfg.clip for cfg in terms], (-torch.inf, torch.inf))
        has_scale = any(c.scale is not None for c in terms)
        self._scale = torch.tensor(scales, device=env.device) if has_scale else None
        self._delay: DelayLine | None = None
        if any(cfg.delay_max_lag for cfg in terms):
            self._delay = DelayLine(env, f"observations.{name}.delay", terms, self._sizes)
        self._histories = {
            i: env.buffer(f"observations.{name}.{term}.history", (cfg.history_length, size), None)
            for i, (term, cfg, size) in enumerate(sized)
            if cfg.history_length > 1
        }
        self._present = torch.empty_like(self._random) if self._histories else None
        self._fresh: Tensor | None = None
        if self._histories or self._bias is not None:
            # Environments whose histories and biases start with the next observation.
            self._fresh = env.buffer(f"observations.{name}.fresh", reset=True, dtype=torch.bool)

    def _noises(self, cfgs: Sequence[Noise]) -> list[Pair]:
        """Lower bounds and widths of uniform noise, and means and deviations of normal noise."""
        uniform = [
            (n.n_min, n.n_max - n.n_min) if isinstance(n, UniformNoiseCfg) else None for n in cfgs
        ]
        normal = [(n.mean, n.std) if isinstance(n, GaussianNoiseCfg) else None for n in cfgs]
        return [self._pairs(numbers, (0.0, 0.0)) for numbers in (uniform, normal)]

    def _add(self, noises: Sequence[Pair], values: Tensor) -> Tensor:
        """Add noise that is drawn now to `values`, ``(num_envs, columns)``, in place."""
        for numbers, draw in zip(noises, (Tensor.uniform_, Tensor.normal_), strict=True):
            if numbers is not None:
                start, width = numbers
                values.addcmul_(draw(self._random), width).add_(start)
        return values

    def _pairs(self, values: Sequence[Range | None], default: Range) -> Pair:
        """Two numbers a term, each repeated over the term's columns; None if no term has any."""
        if not any(values):
            return None
        pairs = zip(values, self._sizes, strict=True)
        numbers = [value or default for value, size in pairs for _ in range(size)]
        first, second = torch.tensor(numbers).T.contiguous().to(self._random.device)
        return first, second

    def compute(self, out: Tensor) -> None:
        """Write the group's observations into `out`, ``(num_envs, *shape)``, by its terms."""
        out = out.view(len(out), self.size)
        present = out if self._present is None else self._present
        torch.cat([term.value.flatten(1) for term in self._terms], dim=1, out=present)
        self._add(self._noise, present)
        if self._bias is not None and self._fresh is not None:
            drawn = self._add(self._biases, torch.zeros_like(present))
            torch.where(self._fresh.unsqueeze(1), drawn, self._bias, out=self._bias)
            present.add_(self._bias)
        if self._clip is not None:
            torch.clamp(present, *self._clip, out=present)
        if self._scale is not None:
            present.mul_(self._scale)
        self.sums += present.sum(dim=0 if len(self.shape) == 1 else (0, 1))
        torch.nan_to_num(present, 0.0, 0.0, 0.0, out=present)
        if self._delay is not None:
            present.copy_(self._delay.push(present))
        if self._present is not None:
            torch.cat(self._stacked(present), dim=1, out=out)
        if self._fresh is not None:
            self._fresh.zero_()

    def _stacked(self, present: Tensor) -> list[Tensor]:
        """Each term's columns with its history, oldest first; moves the histories on."""
        assert self._fresh is not None
        parts = list(present.split(self._sizes, dim=1))
        for i, history in self._histories.items():
            newest = parts[i].unsqueeze(1)
            moved = torch.cat((history[:, 1:], newest), dim=1)
            torch.where(self._fresh.view(-1, 1, 1), newest, moved, out=history)
            parts[i] = history.flatten(1)
        return parts


class Observations:
    """All groups, each in a buffer that `compute` changes in place."""

    def __init__(self, cfgs: Mapping[str, Mapping[str, ObservationTermCfg]], env: BaseEnv) -> None:
        self._shared = SharedTerms(env)
        self.terms = self._shared.terms
        self.groups = {n: ObservationGroup(n, of, env, self._shared) for n, of in cfgs.items()}
        buffers = {
            name: env.buffer(f"observations.{name}.latest", group.shape, reset=None)
            for name, group in self.groups.items()
        }
        self.latest = TensorDict(buffers, batch_size=[env.num_envs], device=env.device)
        """The latest observations, ``{group: (num_envs, *shape)}``."""

    def compute(self) -> TensorDict:
        """Observe all environments, in place; returns `latest`."""
        self._shared.compute()
        for name, group in self.groups.items():
            group.compute(self.latest[name])
        return self.latest
