"""The environment: runs a task on an engine, as rsl_rl's ``VecEnv``. Knows nothing of PPO."""

from collections.abc import Callable
from typing import Any

import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict
from torch import Tensor

from simtrain.env.base import BaseEnv
from simtrain.env.cfg import TaskCfg
from simtrain.env.commands import Commands
from simtrain.env.control.actions import Control
from simtrain.env.nan_guard import Failures, NanGuard
from simtrain.env.observations import Observations
from simtrain.env.terms import Curricula, Episodes, Events, Metrics, Rewards, Term, Terminations
from simtrain.errors import ConfigError, call_term
from simtrain.launch.phase_timer import NO_TIMER, PhaseTimer
from simtrain.sim import EngineCfg


class Env(BaseEnv, VecEnv):  # type: ignore[misc]
    """`num_envs` copies of a task, stepped together.

    Order within a step: actions to ``ctrl``; physics; count the step; terminations; rewards;
    metrics, if requested; reset the finished environments; commands; events of modes ``step`` and
    ``interval``; observations. Nothing in a step waits for the device. If the simulation of an
    environment fails, its episode ends with a reward of 0.

    Random numbers come from torch's default generators: seed them first. On the CPU engine, reset
    events and curricula are not called in a step in which no episode ended.
    """

    def __init__(
        self,
        cfg: TaskCfg,
        num_envs: int,
        engine: EngineCfg = EngineCfg(),  # noqa: B008 - frozen
        *,
        metrics: bool = False,
        timer: PhaseTimer = NO_TIMER,
    ) -> None:
        """Build the simulations and all terms, and reset; all tensors are on the engine's device.

        `metrics`: whether to compute the task's metrics at every step, which evaluations need.
        `timer` measures the phases of a step. Raises ConfigError if the task does not fit its model
        (`check_task` detects this earlier), or if a term changes undeclared state of environments,
        which the first step detects, too.
        """
        super().__init__(cfg, num_envs, engine)
        self.timer = timer
        self.commands = Commands(cfg.commands, self)
        self._control = Control(cfg, self._actions, self)
        self.events = Events(cfg.events, self)
        self.events.startup()
        self.rewards = Rewards(cfg.rewards, self)
        self.terminations = Terminations(cfg.terminations, self)
        self.curricula = Curricula(cfg.curricula, self)
        self.metrics = Metrics(cfg.metrics if metrics else {}, self)
        self.episodes = Episodes(self.rewards, self.terminations, self)
        self.sim.forward()
        self.observations = Observations(cfg.observation_groups(), self)
        self._built = True
        terms = self.terms()
        self._terms = {name: term for name, term in terms.items() if isinstance(term, Term)}
        self._objects = terms | {name: term.function for name, term in self._terms.items()}
        self._resets: dict[str, Callable[[Tensor], None]] = {
            **{f"actions.{name}": term.reset for name, term in self.action_terms.items()},
            **{n: term.reset for n, term in self._terms.items() if term.reset is not None},
        }
        self._nan_guard = NanGuard(self.sim)
        # On the CPU a step at which no episode ends draws no numbers, and what one environment sees
        # must not depend on whether another was reset: the draws of a reset follow from the step.
        # For both engines, so that they draw the same.
        self._reset_seed = int(torch.randint(2**62, ())) if self.device.type == "cpu" else None
        self._done_rows = self.terminations.dones.numpy() if self.sim.synchronous else None
        before = self._kept()
        self.reset()
        self._refuse_undeclared_rows(before)
        self._kept_at_start = self._kept()
        self._is_checked = False

    def command(self, name: str) -> Tensor:
        """The present command `name`, ``(num_envs, size)``."""
        return self.commands.terms[name].command

    def get_observations(self) -> TensorDict:
        """Copies of the latest observations; observing again would draw new noise."""
        return self.observations.latest.clone()

    def reset(self) -> TensorDict:
        """Start a new episode in every environment, in place, and observe."""
        self._reset(torch.ones(self.num_envs, dtype=torch.bool, device=self.device))
        self.sim.finish_const()
        self.commands.compute()
        self.sim.forward()
        self.observations.compute()
        return self.get_observations()

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Advance every environment by one control step, in place.

        Takes actions ``(num_envs, num_actions)``; returns observations, rewards ``(num_envs,)``,
        dones ``(num_envs,)`` boolean, and extras with ``time_outs`` ``(num_envs,)`` and ``log``,
        which is computed when it is read. If an episode ended, its observations are those of the
        new episode. Observations are copies; the other values are valid until the next step.
        """
        rewards, dones = self.step_in_place(actions)
        return self.get_observations(), rewards, dones, _Extras(self)

    def step_in_place(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """A `step` whose observations are ``observations.latest`` alone: rewards and dones."""
        rewards, dones = self.advance(actions)
        self.timer.begin("resets")
        if self._done_rows is None or self._done_rows.any():
            seed = self._reset_seed
            with torch.random.fork_rng(devices=[], enabled=seed is not None):
                if seed is not None:
                    torch.default_generator.manual_seed(seed + int(self.steps.numpy()))
                self.episodes.record(dones)
                self._reset(dones)
        self.observe()
        if not self._is_checked:
            self._refuse_undeclared_rows(self._kept_at_start)
            self._is_checked = True
        return rewards, dones

    def advance(self, actions: Tensor) -> tuple[Tensor, Tensor]:
        """The first half of a step: physics, then `rewards_and_dones`; no resets."""
        if actions.shape != self.actions.shape:
            needs = f"(num_envs, num_actions), here {tuple(self.actions.shape)}"
            text = f"the actions have shape {tuple(actions.shape)}"
            raise ConfigError(f"{text}; a step takes {needs}")
        self.timer.begin("physics")
        self.previous_actions.copy_(self.actions)
        self.actions.copy_(actions)
        self._actions.apply(self.actions, self._control.targets)
        self._simulate()
        failed = self._nan_guard.check()
        self._episode_length += 1
        self.steps += 1
        self.episodes.length += 1.0
        return self.rewards_and_dones(failed)

    def rewards_and_dones(self, failed: Tensor | None) -> tuple[Tensor, Tensor]:
        """Rewards and dones of the state now, ``(num_envs,)`` each, and metrics if asked for.

        Simulations in `failed`, boolean ``(num_envs,)``, if any, end with a reward of 0. Terms that
        keep state take this for the next step.
        """
        with self.unchanging_state():
            self.timer.begin("terminations")
            dones = self.terminations.compute(failed)
            self.timer.begin("rewards")
            rewards = self.rewards.compute(failed)
            self.metrics.compute()
            self.curricula.observe()
        return rewards, dones

    def observe(self) -> TensorDict:
        """The second half of a step: commands and interval events, then observations."""
        self.commands.compute()
        self.events.step()
        self.sim.forward()
        self.timer.begin("observations")
        return self.observations.compute()

    def terms(self) -> dict[str, object]:
        """The terms by name, e.g. ``rewards.upright``; shared terms appear once.

        ConfigError while terms are being made; a command is ``commands.terms[name]`` there.
        """
        if not self._built:
            raise ConfigError("env.terms() is not for __init__: there not all terms are made yet")
        parts = (self.events, self.rewards, self.terminations, self.curricula, self.metrics)
        return {
            **{f"actions.{name}": term for name, term in self.action_terms.items()},
            **{f"commands.{name}": term for name, term in self.commands.terms.items()},
            **{term.name: term for part in (*parts, self.observations) for term in part.terms},
        }

    def failures(self) -> Failures:
        """Values that were not finite since the last call; waits for the device."""
        sums = [(self.rewards.names, self.rewards.sums)]
        sums += [(group.columns, group.sums) for group in self.observations.groups.values()]
        return self._nan_guard.take(sums)

    def state(self) -> dict[str, Any]:
        """Copies of the complete state, except torch's default random generators.

        On the CPU engine, an environment that was made in the same way continues from it exactly,
        bit for bit.
        """
        return {
            **self._declared_state(),
            "engine": {name: value.cpu() for name, value in self.sim.state().items()},
            "params": {
                name: {key: value for key, value in term.params.items() if _is_plain(value)}
                for name, term in self._terms.items()
            },
            "reset_seed": self._reset_seed,
        }

    @torch.inference_mode()
    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from the result of `state`, in place: tensors keep their storage.

        Raises ValueError if it is the state of another task, number of environments or engine, or
        was saved by an older version.
        """
        if "engine" not in state:
            raise ValueError("the saved state was written by an older version of simtrain")
        self._set_declared_state(state)
        self.sim.set_state(state["engine"])
        for name, term in self._terms.items():
            indices = {key: value for key, value in term.params.items() if not _is_plain(value)}
            term.params = indices | state["params"][name]
        if self._reset_seed is not None and state["reset_seed"] is not None:
            self._reset_seed = state["reset_seed"]
        self._nan_guard.restart()

    def set_parameter(self, term: str, name: str, value: float) -> None:
        """Change a number of a term, such as the ``weight`` of ``rewards.upright``, in place."""
        if name == "weight":
            self.rewards.set_weight(term.removeprefix("rewards."), value)
        else:
            self._terms[term].params[name] = value

    def undeclared_changes(self) -> list[str]:
        """A sentence for each changed attribute of a term that `state` does not contain."""
        before, now = self._kept_at_start, self._kept()
        return [
            f"{name} keeps `{path}`, which is not saved; declare it with env.buffer or env.variable"
            for name, path in sorted(before.keys() | now.keys())
            if before.get((name, path), self) != now.get((name, path), self)
        ]

    def _simulate(self) -> None:
        """Advance physics by a control step, step by step where terms need it."""
        control, records, steps = self._control, self._records, self.cfg.decimation
        if control.by_substep:
            control.substep()
        self._nan_guard.record()
        if not control.by_substep and not records:
            self.sim.step(steps)
            return
        for i in range(steps):
            self.sim.step(1, refresh=i == steps - 1, accelerations=bool(records))
            for field, rows in records.items():
                rows[:, i] = self.bind(field)
            if control.by_substep and i < steps - 1:
                control.substep()

    def _reset(self, mask: Tensor) -> None:
        self.curricula.compute(mask)
        self.sim.reset(mask)
        self._reset_declared(mask)
        for name, reset in self._resets.items():
            call_term(name, reset, mask)
        self.events.reset(mask)
        # Last, for events may depend on how long the episode was.
        self._episode_length.masked_fill_(mask, 0)


class _Extras(dict[str, Any]):
    """The extras of a step, of which ``log`` is computed when it is asked for."""

    def __init__(self, env: Env) -> None:
        super().__init__(time_outs=env.terminations.time_outs)
        self._env = env

    def __contains__(self, key: object) -> bool:
        return key == "log" or super().__contains__(key)

    def __missing__(self, key: str) -> Any:
        if key != "log":
            raise KeyError(key)
        return self._env.episodes.latest_means() | self._env.curricula.log


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | str)
