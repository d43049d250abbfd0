"""The environment: runs a task on an engine, as rsl_rl's ``VecEnv``. Knows nothing of PPO."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import mujoco
import torch
from rsl_rl.env import VecEnv
from tensordict import TensorDict
from torch import Tensor

from simtrain.env.actions import Actions
from simtrain.env.cfg import TaskCfg
from simtrain.env.commands import Commands
from simtrain.env.episodes import Episodes
from simtrain.env.metrics import Metrics
from simtrain.env.model import compile_model, find_keyframe, initial_state
from simtrain.env.names import Base, find_base
from simtrain.env.nan_guard import Failures, NanGuard
from simtrain.env.observations import Observations
from simtrain.env.phase_timer import NO_TIMER, PhaseTimer
from simtrain.env.reset_seeds import ResetSeeds
from simtrain.env.state import read_state, write_state
from simtrain.env.terms import Curricula, Events, Rewards, Terminations
from simtrain.env.terrain import Terrain
from simtrain.sim import EngineCfg, make_engine
from simtrain.sim.engine import Engine


class Env(VecEnv):  # type: ignore[misc]
    """`num_envs` copies of a task, stepped together.

    Within a step: actions to ``ctrl``; physics; count the step; terminations; rewards; metrics, if
    asked for; reset the finished environments; commands and interval events; observations. Nothing
    in a step waits for the device. An environment whose simulation failed ends its episode with a
    reward of 0.

    Randomness comes from torch's default generators: seed them first. On the CPU engine events and
    curricula are not called at a step at which no episode ended.
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
        """Build the simulations and all terms, and reset.

        Args:
            cfg: the task.
            num_envs: number of environments.
            engine: the physics engine; all tensors live on its device.
            metrics: whether to compute the task's metrics at every step, which evaluation needs.
            timer: told which phase of a step begins.

        Raises:
            ConfigError: the task does not fit its model; `check_task` finds the same sooner.
        """
        self.cfg = cfg
        self.timer = timer
        self.num_envs = num_envs
        self.device = torch.device(engine.device)
        self.model: mujoco.MjModel = compile_model(cfg)
        keyframe = find_keyframe(self.model, cfg.keyframe)
        self.sim: Engine = make_engine(
            engine,
            self.model,
            num_envs,
            keyframe=keyframe,
            max_contacts=cfg.sim.max_contacts,
            max_constraints=cfg.sim.max_constraints,
        )
        self.physics_dt = cfg.timestep
        """Seconds of a physics step."""
        self.step_dt = cfg.timestep * cfg.decimation
        """Seconds of a control step."""
        self.max_episode_length_s = cfg.episode_length_s
        """Longest episode in seconds."""
        self.max_episode_length = max(1, round(cfg.episode_length_s / self.step_dt))
        """Longest episode in control steps."""
        self.terrain: Terrain | None = None
        """Where environments live on the terrain, if the task has one."""
        if cfg.terrain is not None:
            self.terrain = Terrain(cfg.terrain, self.model, num_envs, self.device)
        start = initial_state(self.model, keyframe)
        self.initial_qpos = torch.as_tensor(start.qpos, dtype=torch.float32, device=self.device)
        """``qpos`` that episodes start from, before events change it, ``(nq,)``."""
        self._episode_length = torch.zeros(num_envs, dtype=torch.long, device=self.device)
        self.steps = torch.zeros((), dtype=torch.long, device=self.device)
        """Control steps since the environment was built, a long scalar on the device."""

        self._actions = Actions(cfg.actions, self.model, start, self.device)
        self.num_actions = self._actions.dim
        self.actions = torch.zeros(num_envs, self.num_actions, device=self.device)
        """The latest actions as the policy gave them, ``(num_envs, num_actions)``."""
        self.previous_actions = torch.zeros_like(self.actions)
        """The actions one step before, zero at the start of an episode."""

        self.commands = Commands(cfg.commands, self)
        self.events = Events(cfg.events, self)
        self.events.startup()
        self.rewards = Rewards(cfg.rewards, self)
        self.terminations = Terminations(cfg.terminations, self)
        self.curricula = Curricula(cfg.curricula, self)
        self.metrics = Metrics(cfg.metrics if metrics else {}, self)
        self.episodes = Episodes(self)
        self.sim.forward()
        self.observations = Observations(cfg.observations, self)
        self._nan_guard = NanGuard(self.sim)
        self._reset_seeds: ResetSeeds | None = None
        if self.device.type == "cpu":
            # For both engines, so that they draw the same.
            self._reset_seeds = ResetSeeds()
            self._step_count = self.steps.numpy()
        self._done_rows = self.terminations.dones.numpy() if self.sim.synchronous else None
        self.reset()

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps into each environment's episode, long, ``(num_envs,)``."""
        return self._episode_length

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self._episode_length.copy_(value)

    @cached_property
    def base(self) -> Base:
        """Where the floating base is found in MuJoCo's fields; ConfigError if there is none."""
        return find_base(self.model)

    def bind(self, field: str) -> Tensor:
        """An MjData field, float32 ``(num_envs, ...)``, refreshed in place; see `Engine.bind`."""
        return self.sim.bind(field)

    def command(self, name: str) -> Tensor:
        """The present command `name`, ``(num_envs, size)``."""
        return self.commands.terms[name].command

    def get_observations(self) -> TensorDict:
        """The latest observations; observing again would draw new noise."""
        return self.observations.latest

    def reset(self) -> TensorDict:
        """Start a new episode in every environment, in place, and observe."""
        everyone = torch.ones(self.num_envs, dtype=torch.bool, device=self.device)
        self._reset(everyone)
        self.commands.compute()
        self.sim.forward()
        return self.observations.compute()

    def step(self, actions: Tensor) -> tuple[TensorDict, Tensor, Tensor, dict[str, Any]]:
        """Advance every environment by one control step, in place.

        Args:
            actions: ``(num_envs, num_actions)``.

        Returns:
            observations, rewards ``(num_envs,)``, dones ``(num_envs,)`` boolean, and extras with
            ``time_outs`` ``(num_envs,)`` and ``log``. Observations are of the new episode where one
            ended. They stay valid until the step after the next, the others until the next step.
        """
        self.timer.begin("physics")
        self.previous_actions.copy_(self.actions)
        self.actions.copy_(actions)
        self._actions.apply(self.actions, self.sim.bind("ctrl"))
        self._nan_guard.record()
        self.sim.step(self.cfg.decimation)
        failed = self._nan_guard.look()
        self._episode_length += 1
        self.steps += 1
        self.timer.begin("terminations")
        dones = self.terminations.compute(failed)
        self.timer.begin("rewards")
        rewards = self.rewards.compute(failed)
        self.metrics.compute()
        self.episodes.count_step()
        self.timer.begin("resets")
        if self._reset_seeds is None:
            self._end_episodes(dones)
        elif self._done_rows is None or self._done_rows.any():
            with self._reset_seeds.at(int(self._step_count)):
                self._end_episodes(dones)
        self.commands.compute()
        self.events.interval()
        self.sim.forward()
        self.timer.begin("observations")
        observations = self.observations.compute()
        extras = {
            "time_outs": self.terminations.time_outs,
            "log": {**self.episodes.latest_means(), **self.curricula.log},
        }
        return observations, rewards, dones, extras

    def terms(self) -> dict[str, object]:
        """What a task is made of, by name, e.g. ``rewards.upright``: functions and objects."""
        parts = (self.events, self.rewards, self.terminations, self.curricula, self.observations)
        named = {f"actions.{name}": term for name, term in self._actions.terms.items()}
        found: dict[str, object] = dict(named)
        found |= {f"commands.{name}": term for name, term in self.commands.terms.items()}
        return found | {term.name: term for part in parts for term in part.terms}

    def failures(self) -> Failures:
        """What was not finite since this was last asked; waits for the device."""
        sums = [(self.rewards.names, self.rewards.sums)]
        sums += [(group.columns, group.sums) for group in self.observations.groups.values()]
        return self._nan_guard.take(sums)

    def state(self) -> dict[str, Any]:
        """Copies of all that the next steps depend on, but for torch's default random generators.

        On the CPU engine an environment that was made in the same way continues from it exactly,
        to the bit. See `simtrain.env.state` for what it holds.
        """
        return read_state(self)

    def set_state(self, state: dict[str, Any], *, forget: bool = False) -> None:
        """Continue from what `state` returned, in place.

        Args:
            state: what `state` returned.
            forget: whether to remove what terms have come to keep since.

        Raises:
            ValueError: it is the state of another task, number of environments or engine.
        """
        write_state(self, state, self.device, forget=forget)

    def _end_episodes(self, dones: Tensor) -> None:
        """Record the episodes that end, and start new ones in their place."""
        self.episodes.record(dones)
        self._reset(dones)

    def _reset(self, mask: Tensor) -> None:
        self.curricula.compute(mask)
        self.sim.reset(mask)
        self.events.reset(mask)
        self._actions.reset(mask)
        self.actions.masked_fill_(mask.unsqueeze(1), 0.0)
        self.previous_actions.masked_fill_(mask.unsqueeze(1), 0.0)
        self.rewards.reset(mask)
        self.metrics.reset(mask)
        self.episodes.reset(mask)
        self.terminations.reset(mask)
        self.commands.reset(mask)
        self.observations.reset(mask)
        self._episode_length.masked_fill_(mask, 0)
