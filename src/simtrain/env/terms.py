"""Terms at work: rewards, terminations, events and curricula, evaluated for all environments.

Every method is batched and works in place where it can; none waits for the device.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from simtrain.env.cfg import (
    CurriculumTermCfg,
    EventTermCfg,
    RewardTermCfg,
    TermCfg,
    TerminationTermCfg,
)
from simtrain.env.names import resolve_params
from simtrain.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import mujoco

    from simtrain.env.env import Env


@dataclass(frozen=True)
class _Named:
    """Constant, and so no part of the state that an environment keeps."""

    name: str


class Term:
    """A term's function with its parameters resolved, ready to be called at every step."""

    def __init__(self, cfg: TermCfg, env: Env, name: str) -> None:
        """Resolve the parameters; `name` is what to call the term, e.g. ``rewards.upright``."""
        self._named = _Named(name)
        self.params = resolve_params(cfg.params, env.model, env.device)
        """Resolved parameters of a function; a curriculum may change them. Empty for a class."""
        self.function: Callable[..., Any] = cfg.func
        if inspect.isclass(cfg.func):
            make: Callable[..., Any] = cfg.func
            self.function = make(env, **self.params)
            self.params = {}
        self._env = env
        self._reset = getattr(self.function, "reset", None)

    @property
    def name(self) -> str:
        """What to call the term, e.g. ``rewards.upright``."""
        return self._named.name

    def __call__(self, *arguments: Tensor) -> Any:
        """The term's value now; `arguments` come between the environment and the parameters.

        An exception gets a note that names the term.
        """
        try:
            return self.function(self._env, *arguments, **self.params)
        except Exception as error:
            error.add_note(f"in the term {self.name}")
            raise

    def reset(self, mask: Tensor) -> None:
        """Let a term that keeps state forget the environments in `mask`."""
        if self._reset is not None:
            self._reset(mask)


def check_term(where: str, cfg: TermCfg, model: mujoco.MjModel, leading: int = 1) -> None:
    """Check a term's parameters against its function and its names against the model.

    Args:
        where: the term's flags but for their last part, e.g. ``--env.rewards.upright``.
        cfg: the term.
        model: the compiled model.
        leading: number of a function's arguments before its parameters: the environment, and for
            events and curricula a mask. A class is made with the environment alone.

    Raises:
        ConfigError: an unknown or missing parameter, or a pattern that matches nothing.
    """
    check_parameters(where, cfg, 1 if inspect.isclass(cfg.func) else leading)
    for name, value in cfg.params.items():
        try:
            resolve_params({name: value}, model, "cpu")
        except ConfigError as error:
            raise ConfigError(f"{where}.{name.replace('_', '-')}: {error}") from error


def check_parameters(where: str, cfg: TermCfg, leading: int) -> None:
    """Raise ConfigError unless `cfg` gives what its function takes after `leading` arguments."""
    signature = inspect.signature(cfg.func)
    names = list(signature.parameters)[leading:]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in cfg.params:
        if name not in names and not open_ended:
            raise ConfigError(
                f"{where}: {_name(cfg.func)} has no parameter {name!r}"
                f"{did_you_mean(name, names)}; it takes {', '.join(names) or 'none'}"
            )
    for name in names:
        parameter = signature.parameters[name]
        required = parameter.default is parameter.empty and parameter.kind not in (
            parameter.VAR_KEYWORD,
            parameter.VAR_POSITIONAL,
        )
        if required and name not in cfg.params:
            raise ConfigError(f"{where}: {_name(cfg.func)} needs the parameter {name!r}")
        # A flag takes any number of values; one instead of two bounds would mean something else.
        default, value = parameter.default, cfg.params.get(name)
        is_range = isinstance(default, tuple) and all(isinstance(x, int | float) for x in default)
        if is_range and name in cfg.params and not _same_length(default, value):
            raise ConfigError(
                f"{where}.{name.replace('_', '-')} takes {len(default)} values such as {default}, "
                f"not {value}"
            )


class Rewards:
    """The weighted sum of a task's reward terms, and its sums over episodes."""

    def __init__(self, cfgs: Mapping[str, RewardTermCfg], env: Env) -> None:
        self.names = tuple(cfgs)
        self._terms = {name: Term(cfg, env, f"rewards.{name}") for name, cfg in cfgs.items()}
        rates = [cfg.weight * env.step_dt for cfg in cfgs.values()]
        self._rates = torch.tensor(rates, device=env.device)
        self._step_dt = env.step_dt
        # Column by column in memory, as terms write them.
        self._values = torch.zeros(len(cfgs), env.num_envs, device=env.device).T
        self._columns = self._values.unbind(1)
        self._total = torch.zeros(env.num_envs, device=env.device)
        self.episode_sums = torch.zeros_like(self._values)
        """Each term's weighted sum over the present episode, ``(num_envs, terms)``."""
        self.sums = torch.zeros(len(cfgs), device=env.device)
        """Sums of the values; not finite for a term that was not, whose value then counts as 0."""

    def compute(self, failed: Tensor | None = None) -> Tensor:
        """Rewards of this step, ``(num_envs,)``; overwritten by the next call.

        `failed`, boolean ``(num_envs,)``: environments whose reward is 0, whatever the terms say.
        """
        for i, term in enumerate(self._terms.values()):
            value = term()
            if value.shape != self._total.shape:
                raise ConfigError(
                    f"rewards.{self.names[i]} has shape {tuple(value.shape)}; "
                    f"it must be (num_envs,), here {tuple(self._total.shape)}"
                )
            self._columns[i].copy_(value)
        if failed is not None:
            self._values.masked_fill_(failed.unsqueeze(1), 0.0)
        self.sums += self._values.sum(dim=0)
        torch.nan_to_num(self._values, 0.0, 0.0, 0.0, out=self._values)
        torch.mv(self._values, self._rates, out=self._total)
        self.episode_sums.addcmul_(self._values, self._rates)
        return self._total

    @property
    def values(self) -> Tensor:
        """What each term said at the latest step, without its weight, ``(num_envs, terms)``."""
        return self._values

    @property
    def terms(self) -> list[Term]:
        """All of them."""
        return list(self._terms.values())

    def rates(self) -> Tensor:
        """Each term's weighted value at the latest step, per second, ``(num_envs, terms)``."""
        return self._values * (self._rates / self._step_dt)

    def set_weight(self, name: str, weight: float) -> None:
        """Change a term's weight, in place; for curricula."""
        self._rates[self.names.index(name)] = weight * self._step_dt

    def reset(self, mask: Tensor) -> None:
        """Start the sums of the environments in `mask` anew."""
        self.episode_sums.masked_fill_(mask.unsqueeze(1), 0.0)
        for term in self._terms.values():
            term.reset(mask)


class Terminations:
    """Why and whether episodes end."""

    def __init__(self, cfgs: Mapping[str, TerminationTermCfg], env: Env) -> None:
        self.names = tuple(cfgs)
        self._terms = {name: Term(cfg, env, f"terminations.{name}") for name, cfg in cfgs.items()}
        self._cut = [i for i, cfg in enumerate(cfgs.values()) if cfg.time_out]
        self._failed = [i for i, cfg in enumerate(cfgs.values()) if not cfg.time_out]
        self.flags = torch.zeros(len(cfgs), env.num_envs, dtype=torch.bool, device=env.device).T
        """Which terms ended the episode at this step, ``(num_envs, terms)``."""
        self._columns = self.flags.unbind(1)
        self.terminated = torch.zeros(env.num_envs, dtype=torch.bool, device=env.device)
        """Episodes that failed or succeeded at this step, or whose simulation failed,
        ``(num_envs,)``."""
        self.time_outs = torch.zeros_like(self.terminated)
        """Episodes that were cut at this step and did not end otherwise, ``(num_envs,)``."""
        self.dones = torch.zeros_like(self.terminated)
        """Episodes that ended at this step, ``(num_envs,)``."""

    def compute(self, failed: Tensor | None = None) -> Tensor:
        """Which episodes end now, ``(num_envs,)``; overwritten by the next call.

        `failed`, boolean ``(num_envs,)``: environments whose simulation failed; their episodes end.
        """
        for i, term in enumerate(self._terms.values()):
            self._columns[i].copy_(term())
        self.terminated.zero_()
        if failed is not None:
            self.terminated |= failed
        for i in self._failed:
            self.terminated |= self._columns[i]
        self.dones.copy_(self.terminated)
        for i in self._cut:
            self.dones |= self._columns[i]
        torch.gt(self.dones, self.terminated, out=self.time_outs)
        return self.dones

    @property
    def terms(self) -> list[Term]:
        """All of them."""
        return list(self._terms.values())

    def reset(self, mask: Tensor) -> None:
        """Let terms that keep state forget the environments in `mask`."""
        for term in self._terms.values():
            term.reset(mask)


class Events:
    """What happens to environments at start-up, at resets and at intervals."""

    def __init__(self, cfgs: Mapping[str, EventTermCfg], env: Env) -> None:
        self._env = env
        self._by_mode: dict[str, list[Term]] = {"startup": [], "reset": [], "interval": []}
        self._ranges: list[tuple[float, float]] = []
        for name, cfg in cfgs.items():
            self._by_mode[cfg.mode].append(Term(cfg, env, f"events.{name}"))
            if cfg.mode == "interval":
                self._ranges.append(cfg.interval_range_s)
        self._everyone = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self._time_left = [self._draw(low, high) for low, high in self._ranges]

    @property
    def terms(self) -> list[Term]:
        """All of them."""
        return [term for terms in self._by_mode.values() for term in terms]

    def startup(self) -> None:
        """Apply the events of mode ``startup`` to all environments."""
        for term in self._by_mode["startup"]:
            term(self._everyone)

    def reset(self, mask: Tensor) -> None:
        """Apply the events of mode ``reset``, and start the intervals of `mask` anew."""
        for terms in self._by_mode.values():
            for term in terms:
                term.reset(mask)
        for term in self._by_mode["reset"]:
            term(mask)
        for left, (low, high) in zip(self._time_left, self._ranges, strict=True):
            left.copy_(torch.where(mask, self._draw(low, high), left))

    def interval(self) -> None:
        """Apply the events of mode ``interval`` to the environments whose time has come."""
        for term, left, (low, high) in zip(
            self._by_mode["interval"], self._time_left, self._ranges, strict=True
        ):
            left -= self._env.step_dt
            due = left <= 0.0
            term(due)
            left.copy_(torch.where(due, self._draw(low, high), left))

    def _draw(self, low: float, high: float) -> Tensor:
        return torch.empty(self._env.num_envs, device=self._env.device).uniform_(low, high)


class Curricula:
    """Changes of the task as training goes on."""

    def __init__(self, cfgs: Mapping[str, CurriculumTermCfg], env: Env) -> None:
        self._terms = {name: Term(cfg, env, f"curricula.{name}") for name, cfg in cfgs.items()}
        self.log: dict[str, Tensor] = {}
        """What the terms last returned, as means, by ``Curriculum/<term>``; changed in place."""

    def compute(self, mask: Tensor) -> None:
        """Let every term look at the environments about to be reset."""
        for name, term in self._terms.items():
            value = term(mask)
            if value is not None:
                mean = torch.as_tensor(value).float().mean()
                # The same tensor at every step, so that a CUDA graph writes what is read here.
                self.log.setdefault(f"Curriculum/{name}", torch.zeros_like(mean)).copy_(mean)

    @property
    def terms(self) -> list[Term]:
        """All of them."""
        return list(self._terms.values())


def _same_length(default: tuple[Any, ...], value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == len(default)


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))
