"""Terms at work: batched over environments, in place where they can, none waits for the device."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from simtrain.env import cfg as configs
from simtrain.env.base import BaseEnv
from simtrain.env.names import resolve_params
from simtrain.env.randomness import draw_where
from simtrain.errors import ConfigError, call_term


class Term:
    """A term's function with its parameters resolved, ready to be called at every step."""

    def __init__(self, cfg: configs.TermCfg, env: BaseEnv, name: str) -> None:
        self.cfg: Any = cfg
        self.name = name
        self.params = resolve_params(cfg.params, env.model, env.device)
        """Resolved parameters of a function; a curriculum may change them. Empty for a class."""
        self.function: Callable[..., Any] = cfg.func
        if inspect.isclass(cfg.func):
            self.function = env.make_term(name, cfg.func, self.params)
            self.params = {}
        self._env = env
        self.value: Tensor
        """An observation's present value."""
        self.reset: Callable[[Tensor], None] | None = getattr(self.function, "reset", None)
        """Called with the mask of environments that are reset, boolean ``(num_envs,)``."""

    def __call__(self, *arguments: Tensor) -> Any:
        """The term's value now; `arguments` come between the environment and the parameters."""
        return call_term(self.name, self.function, self._env, *arguments, **self.params)

    def rows(self, *, boolean: bool = False) -> Tensor:
        """The term's value now, on the environment's device, ``(num_envs,)``.

        ConfigError if the value has another shape, or is elsewhere.
        """
        value: Tensor = self()
        fits = value.shape == (self._env.num_envs,)
        self.check(value, fits, f"(num_envs,), here {(self._env.num_envs,)}")
        return value.to(torch.bool if boolean else torch.float32)

    def check(self, value: Tensor, fits: bool, needs: str) -> None:
        """Raise ConfigError unless the shape `fits`, and no GPU would have to fetch the value."""
        if not fits:
            raise ConfigError(f"{self.name} has shape {tuple(value.shape)}; it must be {needs}")
        if value.device != self._env.device:
            text = f"it must be on {self._env.device}, as env.device says"
            raise ConfigError(f"{self.name} is on {value.device}; {text}")


def make_terms(cfgs: Mapping[str, configs.TermCfg], env: BaseEnv, kind: str) -> list[Term]:
    """The terms of one kind, called ``<kind>.<name>``."""
    return [Term(cfg, env, f"{kind}.{name}") for name, cfg in cfgs.items()]


class Rewards:
    """The weighted sum of a task's reward terms, and its sums over episodes."""

    def __init__(self, cfgs: Mapping[str, configs.RewardTermCfg], env: BaseEnv) -> None:
        self.names, self.terms = tuple(cfgs), make_terms(cfgs, env, "rewards")
        rates = torch.tensor([cfg.weight * env.step_dt for cfg in cfgs.values()])
        self._rates = env.variable("rewards.rates", rates)
        self._step_dt = env.step_dt
        # Term by term in memory, as they come.
        self._rows = torch.zeros(len(cfgs), env.num_envs, device=env.device)
        self.values = self._rows.T
        """The terms' values at the latest step, without weights, ``(num_envs, terms)``."""
        env.declare("rewards.values", self.values, None)
        self._total = torch.zeros(env.num_envs, device=env.device)
        self.episode_sums = torch.zeros_like(self.values)
        """Each term's weighted sum over the present episode, ``(num_envs, terms)``."""
        env.declare("rewards.episode_sums", self.episode_sums, 0.0)
        self.sums = env.variable("rewards.sums", torch.zeros(len(cfgs)))
        """Sums of the values; not finite for a term that was not, whose value then counts as 0."""

    def compute(self, failed: Tensor | None = None) -> Tensor:
        """Rewards now, 0 where `failed`, ``(num_envs,)``; overwritten by the next call."""
        if self.terms:
            torch.stack([term.rows() for term in self.terms], out=self._rows)
        if failed is not None:
            self.values.masked_fill_(failed.unsqueeze(1), 0.0)
        self.sums += self.values.sum(dim=0)
        torch.nan_to_num(self.values, 0.0, 0.0, 0.0, out=self.values)
        torch.mv(self.values, self._rates, out=self._total)
        self.episode_sums.addcmul_(self.values, self._rates)
        return self._total

    def rates(self) -> Tensor:
        """Each term's weighted value at the latest step, per second, ``(num_envs, terms)``."""
        return self.values * (self._rates / self._step_dt)

    def set_weight(self, name: str, weight: float | Tensor) -> None:
        """Change a term's weight, in place; for curricula. A tensor is a scalar on the device."""
        self._rates[self.names.index(name)] = weight * self._step_dt


class Terminations:
    """Why and whether episodes end."""

    def __init__(self, cfgs: Mapping[str, configs.TerminationTermCfg], env: BaseEnv) -> None:
        self.names, self.terms = tuple(cfgs), make_terms(cfgs, env, "terminations")
        # Term by term in memory, and last which simulations failed.
        shape = (len(cfgs) + 1, env.num_envs)
        self._rows = torch.zeros(shape, dtype=torch.bool, device=env.device)
        fails = [[not cfg.time_out] for cfg in cfgs.values()]
        self._fails = torch.tensor([*fails, [True]], device=env.device)
        self._nobody = torch.zeros_like(self._rows[0])
        self._failing = torch.zeros_like(self._rows)
        self.flags = self._rows[:-1].T
        """Which terms ended the episode at this step, ``(num_envs, terms)``."""
        env.declare("terminations.flags", self.flags, None)
        self.terminated = env.buffer("terminations.terminated", reset=None, dtype=torch.bool)
        """Episodes that ended at this step otherwise than by being cut, ``(num_envs,)``."""
        self.time_outs = env.buffer("terminations.time_outs", reset=None, dtype=torch.bool)
        """Episodes that were cut at this step and did not end otherwise, ``(num_envs,)``."""
        self.dones = env.buffer("terminations.dones", reset=None, dtype=torch.bool)
        """Episodes that ended at this step, ``(num_envs,)``."""

    def compute(self, failed: Tensor | None = None) -> Tensor:
        """Which episodes end now, also where `failed`, ``(num_envs,)``; overwritten by the next."""
        rows = [term.rows(boolean=True) for term in self.terms]
        torch.stack([*rows, self._nobody if failed is None else failed], out=self._rows)
        torch.any(self._rows, dim=0, out=self.dones)
        torch.logical_and(self._rows, self._fails, out=self._failing)
        torch.any(self._failing, dim=0, out=self.terminated)
        torch.gt(self.dones, self.terminated, out=self.time_outs)
        return self.dones


class Events:
    """Changes of environments at start-up, at resets, at every step and at intervals."""

    def __init__(self, cfgs: Mapping[str, configs.EventTermCfg], env: BaseEnv) -> None:
        self._env = env
        self.terms = make_terms(cfgs, env, "events")
        self._by_mode: dict[str, list[Term]] = {"startup": [], "reset": [], "step": []}
        self._all = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
        self._followers = [t for t in self.terms if hasattr(t.function, "follow")]
        # Terms of mode ``interval``, seconds until the next time, and their bounds.
        self._intervals: list[tuple[Term, Tensor, tuple[float, float]]] = []
        for term, (name, cfg) in zip(self.terms, cfgs.items(), strict=True):
            if cfg.mode == "interval":
                left = env.buffer(f"events.time_left.{name}", reset=None)
                left.uniform_(*cfg.interval_range_s)
                self._intervals.append((term, left, cfg.interval_range_s))
            else:
                self._by_mode[cfg.mode].append(term)

    def startup(self) -> None:
        """Apply the events of mode ``startup`` to all environments."""
        for term in self._by_mode["startup"]:
            term(self._all)
        self._env.update_constants(defer=False)

    def reset(self, mask: Tensor) -> None:
        """Apply the events of mode ``reset``, and start the intervals of `mask` anew."""
        for term in self._by_mode["reset"]:
            term(self._begun(term, mask))
        for _, left, bounds in self._intervals:
            draw_where(mask, left, bounds)
        self._env.update_constants(defer=True)

    def step(self) -> None:
        """Apply the events of mode ``step``, and of mode ``interval`` where their time has come.

        Before, terms that have a method ``follow(env)`` go on with what they began.
        """
        for term in self._followers:
            call_term(term.name, term.function.follow, self._env)  # type: ignore[attr-defined]
        for term in self._by_mode["step"]:
            term(self._begun(term, self._all))
        for term, left, bounds in self._intervals:
            left -= self._env.step_dt
            due = left <= 0.0
            term(self._begun(term, due))
            draw_where(due, left, bounds)
        self._env.update_constants(defer=True)

    def _begun(self, term: Term, mask: Tensor) -> Tensor:
        """`mask`, or a mask of no environment for an event that begins later."""
        after: int = term.cfg.after_steps
        return mask & (self._env.steps >= after) if after else mask


class Curricula:
    """Changes of the task during training."""

    def __init__(self, cfgs: Mapping[str, configs.CurriculumTermCfg], env: BaseEnv) -> None:
        self._env, self._tags = env, [f"Curriculum/{name}" for name in cfgs]
        self.terms = make_terms(cfgs, env, "curricula")
        self._observers = [t for t in self.terms if hasattr(t.function, "observe")]
        self._means = env.variable("curricula.means", torch.zeros(len(cfgs))).unbind()
        self.log: dict[str, Tensor] = {}  # means of the terms' last values, by their tags

    def observe(self) -> None:
        """Let the terms that have a method ``observe(env)`` look at a step, before any reset."""
        for term in self._observers:
            call_term(term.name, term.function.observe, self._env)  # type: ignore[attr-defined]

    def compute(self, mask: Tensor) -> None:
        """Let every term look at the environments about to be reset."""
        for tag, term, mean in zip(self._tags, self.terms, self._means, strict=True):
            value = term(mask)
            if value is not None:
                # The same tensor at every step, so that a CUDA graph writes what is read here.
                self.log[tag] = mean.copy_(torch.as_tensor(value).float().mean())


class Metrics:
    """The values of all metric terms at every step, which evaluation compares policies by."""

    def __init__(self, cfgs: Mapping[str, configs.MetricTermCfg], env: BaseEnv) -> None:
        self.names = tuple(cfgs)
        self.reduce = tuple(cfg.reduce for cfg in cfgs.values())
        """The reduction of each term's values over an episode."""
        self.terms = make_terms(cfgs, env, "metrics")
        self.values = env.buffer("metrics.values", (len(cfgs),), reset=None)
        """The terms' values at the latest step, before any reset, ``(num_envs, terms)``."""

    def compute(self) -> None:
        """Evaluate every term into `values`, in place; ConfigError if one has another shape."""
        if self.terms:
            torch.stack([term.rows() for term in self.terms], dim=1, out=self.values)


class Episodes:
    """Sums over the episodes that finished since the last `take`, and each environment's latest.

    One row of values an episode: whether it counts, the return, the length in steps, every reward
    term's weighted sum divided by the longest episode's seconds, and which terminations ended it.
    One whose ``episode_length_buf`` did not begin at 0, as the first ones of a training, is cut
    short, and does not count for the sums.
    """

    def __init__(self, rewards: Rewards, terminations: Terminations, env: BaseEnv) -> None:
        self._rewards, self._terminations = rewards, terminations
        self._max_seconds = env.max_episode_length_s
        rewards_of = (f"Episode_Reward/{name}" for name in rewards.names)
        ends = (f"Episode_Termination/{name}" for name in terminations.names)
        self.names = ("count", "return", "length", *rewards_of, *ends)  # columns of `take`
        self._rewards_end = 3 + len(rewards.names)
        self._values = torch.ones(env.num_envs, len(self.names), device=env.device)
        self._latest = env.buffer("episodes.latest", (len(self.names),), reset=None)
        # Not the episode length buffer: that one starts at random values in a training run.
        self.length = env.buffer("episodes.length")
        self._counted_length = env.episode_length_buf
        self._sums = env.variable("episodes.sums", torch.zeros(len(self.names)))

    def record(self, dones: Tensor) -> None:
        """Add the episodes that end at this step, `dones` boolean ``(num_envs,)``, in place."""
        values, sums = self._values, self._rewards.episode_sums
        torch.eq(self.length, self._counted_length, out=values[:, 0])
        values[:, 2] = self.length
        torch.div(sums, self._max_seconds, out=values[:, 3 : self._rewards_end])
        values[:, self._rewards_end :] = self._terminations.flags
        torch.where(dones.unsqueeze(1), values, self._latest, out=self._latest)
        self._sums.addmv_(values.T, values[:, 0] * dones)

    def latest_means(self) -> dict[str, Tensor]:
        """Means over every environment's latest finished episode (zeros before its first)."""
        means = self._latest.mean(dim=0)
        return dict(zip(self.names[3:], means[3:].unbind(), strict=True))

    def take(self) -> Tensor:
        """The sums since the last call, ``(len(names),)``, and start anew."""
        sums = self._sums.clone()
        sums[1] = sums[3 : self._rewards_end].sum() * self._max_seconds
        self._sums.zero_()
        return sums

    def finished_envs(self) -> Tensor:
        """How many environments have finished an episode that counts, a scalar."""
        return self._latest[:, 0].sum()
