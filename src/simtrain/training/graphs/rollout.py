"""Steps of a rollout as CUDA graphs: inference, environment step and storage in one launch.

There are two graphs, for observations go to two sets of buffers in turn. After the first rollout,
and when the engine has replaced arrays, a few steps are made eagerly, captured, replayed and
compared, and what they changed is put back: training goes on as if they had not been.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from simtrain.algorithms.ppo import PPO
from simtrain.env.env import Env
from simtrain.env.phase_timer import NO_TIMER
from simtrain.env.randomness import random_state, set_random_state
from simtrain.training.graphs.check import HostState, Record, differing, record
from simtrain.training.graphs.cuda import GraphBackend, RefusedError, told

_STEPS = 4
"""How many steps are compared; episodes end at the second, in half of the environments."""


class RolloutGraphs:
    """Replays the steps of a rollout of `ppo` in `env`."""

    def __init__(self, env: Env, ppo: PPO, backend: GraphBackend) -> None:
        """Prepare; nothing is captured yet."""
        self._env = env
        self._ppo = ppo
        self._backend = backend
        self._stage = ppo.rollout.stage()
        self._graphs: dict[int, Callable[[], None]] = {}
        self._generation: int | None = None
        self.refusal: str | None = None
        """Why this rank's steps cannot be graphs; None if they can, or it was not tried yet."""

    @property
    def ready(self) -> bool:
        """Whether there are graphs of the arrays that the engine has now."""
        return bool(self._graphs) and self._generation == self._env.sim.generation

    def prepare(self) -> None:
        """Make the graphs if need be, between two rollouts.

        Whatever happens first in a rollout, such as compiling a kernel, must have happened; and
        failures and overflows must have been asked for, as this forgets them.
        """
        if self._generation != self._env.sim.generation:
            self._make()

    def refuse(self) -> None:
        """Do without graphs, as another rank must."""
        self._graphs = {}

    def begin(self) -> None:
        """Begin a rollout."""
        self._env.sim.forward()  # what was written since the last step
        self._ppo.begin_rollout()
        self._stage.step.zero_()

    def step(self) -> None:
        """Act, step the environments and record that, in place, by a graph."""
        observations = self._env.observations
        self._graphs[observations.turn]()
        observations.take_turn()
        self._ppo.storage.step += 1

    @torch.inference_mode()
    def _make(self) -> None:
        """Capture and check the graphs."""
        env, device = self._env, self._env.device
        self._graphs = {}
        self.refusal = "; ".join(env.undeclared_changes()) or None
        if self.refusal is not None:  # the check could not put it back
            self._generation = env.sim.generation
            return
        state, random = env.state(), random_state(device)
        timer, env.timer = env.timer, NO_TIMER

        def restore() -> None:
            env.set_state(state)
            set_random_state(random, device)
            self._ppo.storage.clear()
            self.begin()

        try:
            self._capture_and_check(restore)
        except RefusedError as error:
            self.refusal = str(error)
            self._graphs = {}
        finally:
            env.timer = timer
        restore()
        env.sim.overflow()  # of these steps; who overflows does so again
        self._generation = env.sim.generation

    def _capture_and_check(self, restore: Callable[[], None]) -> None:
        """Make the graphs; leaves environments and generators where the check ended.

        Raises:
            RefusedError: steps cannot be graphs, or are not the same as graphs.
        """
        env = self._env
        restore()
        self._hurry()
        draws_on_device = env.device.type != "cpu"
        before = HostState(env, draws_on_device=draws_on_device)
        eager = self._without_waiting()
        changed = HostState(env, draws_on_device=draws_on_device).changed_since(before)
        if changed:
            raise RefusedError("; ".join(changed))
        restore()
        for _ in range(2):
            turn = env.observations.turn
            self._graphs[turn] = self._backend.capture(self._captured_step)
        restore()
        self._hurry()
        replayed = []
        for _ in range(_STEPS):
            self._stage.step.zero_()
            self.step()
            replayed.append(record(env))
        names = differing(replayed, eager)
        if names:
            raise RefusedError(f"{', '.join(names)} would not be the same from a graph")

    def _without_waiting(self) -> list[Record]:
        """What some steps give that must not wait for the device."""
        seen = []
        try:
            with self._backend.without_waiting():
                for _ in range(_STEPS):
                    self._stage.step.zero_()
                    self._eager_step()
                    seen.append(record(self._env))
        except Exception as error:
            # Whatever a term raises is raised again by the rollout, without graphs.
            raise RefusedError(told(error)) from error
        return seen

    def _hurry(self) -> None:
        """Let half of the environments end their episodes at the second step from now."""
        env = self._env
        half = (env.num_envs + 1) // 2
        env.episode_length_buf[:half].fill_(max(0, env.max_episode_length - 2))

    def _captured_step(self) -> None:
        with self._env.sim.in_torch_graph():
            self._eager_step()

    @torch.no_grad()
    def _eager_step(self) -> None:
        """What a graph replays."""
        env, ppo, row = self._env, self._ppo, self._stage.row
        actions = ppo.act_in(env.get_observations(), row)
        _, rewards, dones, extras = env.step(actions)
        row.record(rewards, dones, extras["time_outs"])
        self._stage.put()
