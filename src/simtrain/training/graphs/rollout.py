"""Steps of a rollout as a CUDA graph: inference, environment step and storage in one launch.

When it is made, a few steps are made eagerly, captured, replayed and compared, and everything is
put back.
"""

from collections.abc import Callable

import torch

from simtrain.algorithms.distillation import Algorithm
from simtrain.algorithms.rollout import StagingBuffer, Transition
from simtrain.env.env import Env
from simtrain.env.randomness import random_state, set_random_state
from simtrain.sim.cuda_graphs import GraphBackend, Graphs, RefusedError, describe
from simtrain.training.graphs.check import Record, differing, host_values, record


class RolloutGraphs:
    """Collects rollouts of `ppo` in `env` by a graph of a step."""

    def __init__(self, env: Env, ppo: Algorithm, backend: GraphBackend) -> None:
        self._env = env
        self._ppo = ppo
        self._backend = backend
        self._staging = StagingBuffer(ppo.storage)
        self._graphs = Graphs()
        self._generation: int | None = None
        self.refusal: str | None = None
        """Why this rank's steps cannot be a graph; None if they can, or it was not tried yet."""

    @property
    def outdated(self) -> bool:
        """Whether the graph was not tried yet, or the engine has replaced arrays since."""
        return self._generation != self._env.sim.storage_version

    def collect(self, *, make: bool) -> bool:
        """Fill the storage with a rollout, in place; False, with nothing done, without a graph.

        `make` is whether the graph is made first, on all ranks together. Failures and overflows of
        the rollout before have been read by then, and a rollout that compiled the kernels was made.
        """
        env = self._env
        if make:
            env.timer.begin("other")
            with env.timer.paused(), env.observations.in_one_buffer():
                self._make()
        if not self._graphs.graphs or self.outdated:
            return False
        env.timer.begin("rollout_graph")
        with env.observations.in_one_buffer():
            self._begin()
            for _ in range(self._ppo.storage.num_transitions_per_env):
                self._graphs.replay()
                self._ppo.storage.step += 1
        return True

    def close(self) -> None:
        """End the graph, if there is one."""
        self._graphs.close()

    def _begin(self) -> None:
        self._env.sim.forward()  # what was written since the last step
        self._ppo.begin_rollout()
        self._staging.step.zero_()

    def _eager_step(self) -> None:
        """Act, step the environments and record that, as the graph does."""
        collect_transition(self._env, self._ppo, self._staging.transition)
        self._staging.store()

    def _captured_step(self) -> object:
        """The same within a capture; what the graph keeps."""
        with self._env.sim.in_torch_graph() as kept:
            self._eager_step()
        return kept

    @torch.inference_mode()
    def _make(self) -> None:
        env, device = self._env, self._env.device
        self.close()
        self.refusal = "; ".join(env.undeclared_changes()) or None
        if self.refusal is None:  # or the trial steps could not be undone
            state, random = env.state(), random_state(device)
            hidden = [tensor.clone() for tensor in self._ppo.hidden_states()]

            def restore() -> None:
                env.set_state(state)
                self._ppo.set_hidden_states(hidden)
                set_random_state(random, device)
                self._begin()

            self.refusal = self._capture_and_check(restore)
            restore()
            env.sim.overflow()  # of these steps; who overflows does so again
        self._generation = env.sim.storage_version
        if any(self._ppo.rank.any(self.refusal is not None)):
            self.close()

    def _capture_and_check(self, restore: Callable[[], None]) -> str | None:
        """Make the graph; why steps cannot be one or are not the same then, if so."""
        env = self._env
        restore()
        on_device = env.device.type != "cpu"
        before = host_values(env, draws_on_device=on_device)
        try:
            with self._backend.without_waiting():
                eager = self._records(self._eager_step)
        except Exception as error:  # noqa: BLE001 - the rollout raises it again, without a graph
            return describe(error)
        now = host_values(env, draws_on_device=on_device)
        if changed := [text for text in now if now[text] != before.get(text)]:
            return "; ".join(changed)
        restore()
        try:
            self._graphs = self._backend.capture(self._captured_step)
        except RefusedError as error:
            return str(error)
        restore()
        names = differing(self._records(self._graphs.replay), eager)
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
def collect_transition(env: Env, ppo: Algorithm, transition: Transition) -> None:
    """Act, step the environments, and write that to `transition`, in place: a rollout's step."""
    env.timer.begin("inference")
    obs, learner = env.get_observations(), transition.actions.device
    if env.device != learner:  # physics on CPU threads, networks on a GPU
        obs = obs.to(learner)
    actions = ppo.act_in(obs, transition)
    _, rewards, dones, extras = env.step(actions.to(env.device))
    env.timer.begin("storage")
    ppo.record(transition, rewards, dones, extras["time_outs"])
