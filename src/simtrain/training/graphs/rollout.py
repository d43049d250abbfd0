"""Steps of a rollout as a CUDA graph: inference, environment step and storage in one launch."""

import torch

from simtrain.algorithms.distillation import Algorithm
from simtrain.algorithms.rollout import StagingBuffer, Transition
from simtrain.env.env import Env
from simtrain.sim.cuda_graphs import GraphBackend
from simtrain.training.graphs.step import StepGraph


class RolloutGraphs(StepGraph):
    """Collects rollouts of `ppo` in `env` by a graph of a step."""

    def __init__(self, env: Env, ppo: Algorithm, backend: GraphBackend) -> None:
        self._ppo = ppo
        self._staging = StagingBuffer(ppo.storage)
        super().__init__(env, backend, self._collect_step, self._begin_rollout, ppo.hidden_states())

    def collect(self, *, make: bool) -> bool:
        """Fill the storage with a rollout, in place; False, with nothing done, without a graph.

        `make` is whether the graph is made first, on all ranks together. Failures and overflows of
        the rollout before have been read by then, and a rollout that compiled the kernels was made.
        """
        env = self._env
        if make:
            env.timer.begin("other")
            with env.timer.paused(), env.observations.in_one_buffer():
                self.make()
            if self._ppo.rank.any(self.refusal is not None)[0]:
                self.close()
        if not self._graphs.graphs or self.outdated:
            return False
        env.timer.begin("rollout_graph")
        with env.observations.in_one_buffer():
            self._begin()
            for _ in range(self._ppo.storage.num_transitions_per_env):
                self._graphs.replay()
                self._ppo.storage.step += 1
        return True

    def _begin_rollout(self) -> None:
        self._env.sim.forward()  # what was written since the last step
        self._ppo.begin_rollout()
        self._staging.step.zero_()

    def _collect_step(self) -> None:
        """Act, step the environments and record that."""
        collect_transition(self._env, self._ppo, self._staging.transition)
        self._staging.store()


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
