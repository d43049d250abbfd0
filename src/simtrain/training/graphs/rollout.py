"""Steps of a rollout as CUDA graphs: inference, environment step and storage in one launch.

There are two graphs, for observations go to two sets of buffers in turn. When they are made, a few
steps are made eagerly, captured, replayed and compared, and everything is put back.
"""

from collections.abc import Callable

import torch

from simtrain.algorithms.ppo import PPO
from simtrain.algorithms.rollout import StagingBuffer, Transition
from simtrain.env.env import Env
from simtrain.env.randomness import random_state, set_random_state
from simtrain.training.graphs.check import Record, differing, host_values, record
from simtrain.training.graphs.cuda import GraphBackend, RefusedError, describe


class RolloutGraphs:
    """Collects rollouts of `ppo` in `env` by graphs."""

    def __init__(self, env: Env, ppo: PPO, backend: GraphBackend) -> None:
        self._env = env
        self._ppo = ppo
        self._backend = backend
        self._staging = StagingBuffer(ppo.storage)
        self._graphs: dict[int, Callable[[], None]] = {}
        self._is_first = True
        self._generation: int | None = None
        self.refusal: str | None = None
        """Why this rank's steps cannot be graphs; None if they can, or it was not tried yet."""

    def collect(self) -> bool:
        """Fill the storage with a rollout, in place; False, with nothing done, without graphs.

        The first rollout compiles kernels. Graphs are made before the next, and when the engine has
        replaced arrays; failures and overflows of the rollout before have been read by then.
        """
        env = self._env
        if self._is_first:
            self._is_first = False
            return False
        if self._generation != env.sim.storage_version:
            env.timer.begin("other")
            with env.timer.paused():
                self._make()
            self._generation = env.sim.storage_version
        if not self._graphs:
            return False
        env.timer.begin("rollout_graph")
        self._begin()
        for _ in range(self._ppo.storage.num_transitions_per_env):
            self._step()
            self._ppo.storage.step += 1
        return True

    def close(self) -> None:
        """Drop the graphs, if there are any, also because another rank has none."""
        self._graphs = {}

    def _begin(self) -> None:
        self._env.sim.forward()  # what was written since the last step
        self._ppo.begin_rollout()
        self._staging.step.zero_()

    def _step(self) -> None:
        """Act, step the environments and record that, by a graph."""
        observations = self._env.observations
        self._graphs[observations.turn]()
        observations.take_turn()

    def _eager_step(self) -> None:
        """The same without a graph."""
        collect_transition(self._env, self._ppo, self._staging.transition)
        self._staging.store()

    @torch.inference_mode()
    def _make(self) -> None:
        env, device = self._env, self._env.device
        self.close()
        self.refusal = "; ".join(env.undeclared_changes()) or None
        if self.refusal is not None:  # the trial steps could not be undone
            return
        state, random = env.state(), random_state(device)

        def restore() -> None:
            env.set_state(state)
            set_random_state(random, device)
            self._begin()

        self.refusal = self._capture_and_check(restore)
        if self.refusal is not None:
            self.close()
        restore()
        env.sim.overflow()  # of these steps; who overflows does so again

    def _capture_and_check(self, restore: Callable[[], None]) -> str | None:
        """Make the graphs; why steps cannot be graphs or are not the same then, if so."""
        env = self._env

        def captured_step() -> None:
            with env.sim.in_torch_graph():
                self._eager_step()

        restore()
        on_device = env.device.type != "cpu"
        before = host_values(env, draws_on_device=on_device)
        try:
            with self._backend.without_waiting():
                eager = self._records(self._eager_step)
        except Exception as error:  # noqa: BLE001 - the rollout raises it again, without graphs
            return describe(error)
        now = host_values(env, draws_on_device=on_device)
        if changed := [text for text in now if now[text] != before.get(text)]:
            return "; ".join(changed)
        restore()
        try:
            for _ in range(2):
                turn = env.observations.turn  # the step takes the next one
                self._graphs[turn] = self._backend.capture(captured_step)
        except RefusedError as error:
            return str(error)
        restore()
        names = differing(self._records(self._step), eager)
        return f"{', '.join(names)} would not be the same from a graph" if names else None

    def _records(self, step: Callable[[], None]) -> list[Record]:
        """What the terms give at four steps; episodes of half of the environments end soon."""
        env = self._env
        env.episode_length_buf[: (env.num_envs + 1) // 2].fill_(max(0, env.max_episode_length - 2))
        records = []
        for _ in range(4):
            self._staging.step.zero_()
            step()
            records.append(record(env))
        return records


@torch.no_grad()
def collect_transition(env: Env, ppo: PPO, transition: Transition) -> None:
    """Act, step the environments, and write that to `transition`, in place: a rollout's step."""
    env.timer.begin("inference")
    obs, learner = env.get_observations(), transition.actions.device
    if env.device != learner:  # physics on CPU threads, networks on a GPU
        obs = obs.to(learner)
    actions = ppo.act_in(obs, transition)
    _, rewards, dones, extras = env.step(actions.to(env.device))
    env.timer.begin("storage")
    transition.record(rewards, dones, extras["time_outs"])
