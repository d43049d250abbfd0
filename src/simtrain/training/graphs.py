"""CUDA graphs of control steps and mini-batches, and their check against eager execution.

A control step is one graph: the policy acts, the environments step, and the transition is stored.
Each mini-batch of PPO has its own graph, because its samples are at other addresses. When graphs
are made, the same work is done eagerly, captured, replayed and compared; then the state is
restored.

A graph freezes what a term keeps on the host: a counter, a number drawn by NumPy, an attribute that
is set to another tensor. Sums without a fixed order differ a little, and strongly in a few
environments; so the check counts how many numbers differ strongly.
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from simtrain.algorithms.algorithm import Replay
from simtrain.algorithms.distillation import Algorithm
from simtrain.algorithms.rollout import StagingBuffer, Transition
from simtrain.env.base import host_state
from simtrain.env.env import Env
from simtrain.env.randomness import random_state, set_random_state
from simtrain.sim.cuda_graphs import CudaGraphs, Graphs, RefusedError, describe

Record = dict[str, Tensor]
"""Values of a task's terms at a step, by name; copies, on the device."""


class CheckedGraphs:
    """Graphs, or the reason why there are none."""

    refusal: str | None = None
    """Why this rank has no graphs; None if it has, did not try yet, or only others refuse.
    """

    def __init__(self, backend: CudaGraphs) -> None:
        self._backend, self._graphs = backend, Graphs()

    def close(self) -> None:
        """End the graphs, if there are any."""
        self._graphs.close()

    def _capture(self, *functions: Callable[[], object]) -> bool:
        """Make graphs of functions; whether they can be."""
        try:
            self._graphs = self._backend.capture(*functions)
        except RefusedError as error:
            self.refusal = str(error)
        return self.refusal is None


class StepGraph(CheckedGraphs):
    """Replays a graph of `step`, a function that acts and steps `env`."""

    def __init__(
        self,
        env: Env,
        backend: CudaGraphs,
        step: Callable[[], None],
        begin: Callable[[], None],
        tensors: Sequence[Tensor] = (),
    ) -> None:
        """`begin` is called before several steps; `tensors` are those outside the environment that
        steps read and change in place."""
        super().__init__(backend)
        self._env, self._step, self._begin, self._tensors = env, step, begin, tensors
        self._generation: int | None = None

    @property
    def outdated(self) -> bool:
        """Whether the graph was not tried yet, or the engine has replaced arrays since then."""
        return self._generation != self._env.sim.storage_version

    def run(self) -> bool:
        """Replay a step; False, without a step, if there is no graph of the present arrays."""
        if not self._graphs.graphs or self.outdated:
            return False
        self._graphs.replay()
        return True

    @torch.inference_mode()
    def make(self) -> None:
        """Try to make the graph, between two steps, after steps that compiled the kernels.

        Failures and overflows must have been read before; those that do not recur would be lost.
        """
        env, device = self._env, self._env.device
        self.close()
        self.refusal = "; ".join(env.undeclared_changes()) or None
        if self.refusal is None:  # or the trial steps could not be undone
            state, random = env.state(), random_state(device)
            restore_tensors = _restorer(self._tensors)

            def restore() -> None:
                env.set_state(state)
                restore_tensors()
                set_random_state(random, device)
                self._begin()

            self._capture_and_check(restore)
            restore()
            env.sim.overflow()  # of these steps; who overflows does so again
        self._generation = env.sim.storage_version
        if self.refusal is not None:
            self.close()

    def _captured_step(self) -> object:
        """The step during a capture; returns the tensors that the graph keeps."""
        with self._env.sim.in_torch_graph() as kept:
            self._step()
        return kept

    def _capture_and_check(self, restore: Callable[[], None]) -> None:
        """Make the graph, unless steps cannot be captured or give other results."""
        env = self._env
        restore()
        on_device = env.device.type != "cpu"
        before = host_values(env, draws_on_device=on_device)
        try:
            with self._backend.without_waiting():
                eager = self._records(self._step)
        except Exception as error:  # noqa: BLE001 - the next step raises it again, without a graph
            self.refusal = describe(error)
            return
        now = host_values(env, draws_on_device=on_device)
        self.refusal = "; ".join(text for text in now if now[text] != before.get(text)) or None
        restore()
        if self.refusal is None and self._capture(self._captured_step):
            restore()
            if names := _differing(self._records(self._graphs.replay), eager):
                self.refusal = f"{', '.join(names)} would not be the same from a graph"

    def _records(self, step: Callable[[], None]) -> list[Record]:
        """The values of all terms in four steps; episodes of half of the environments end soon."""
        env = self._env
        env.episode_length_buf[: (env.num_envs + 1) // 2].fill_(max(0, env.max_episode_length - 2))
        records = []
        for _ in range(4):
            step()
            records.append(_record(env))
        return records


class RolloutGraphs(StepGraph):
    """Collects rollouts of `ppo` in `env` with a graph of a step."""

    def __init__(self, env: Env, ppo: Algorithm, backend: CudaGraphs) -> None:
        self._ppo = ppo
        self._staging = StagingBuffer(ppo.storage)
        super().__init__(env, backend, self._collect_step, self._begin_rollout, ppo.hidden_states())

    def collect(self, *, make: bool) -> bool:
        """Fill the storage with a rollout, in place; False, with nothing done, without a graph.

        With `make`, all ranks together make the graph first. A rollout that compiled the kernels
        must have been collected, and its failures and overflows must have been read.
        """
        env = self._env
        if make:
            env.timer.begin("other")
            with env.timer.paused():
                self.make()
            if self._ppo.rank.any(self.refusal is not None)[0]:
                self.close()
        if not self._graphs.graphs or self.outdated:
            return False
        env.timer.begin("rollout_graph")
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
        """Act, step the environments and store the transition."""
        collect_transition(self._env, self._ppo, self._staging.transition)
        self._staging.store()


class UpdateGraphs(CheckedGraphs):
    """Graphs of mini-batches; see `simtrain.algorithms.algorithm.MakeReplay`."""

    def __init__(self, ppo: Algorithm, backend: CudaGraphs) -> None:
        super().__init__(backend)
        self._ppo, self._tried = ppo, False
        self.refusal = ppo.refusal

    def prepare(self) -> Replay | None:
        """Capture and check the graphs once; returns their replay, or None. A collective."""
        if not self._tried and self.refusal is None:
            self._tried = True
            with self._ppo.timer.paused():
                self._make()
        return self._graphs.replay if self._graphs.graphs else None

    def close(self) -> None:
        """End the graphs, if there are any; no others can be made."""
        self._tried = True
        super().close()

    def _make(self) -> None:
        ppo = self._ppo
        parameters = ppo.update_state()[0]
        before, restore = parameters.clone(), _restorer(ppo.update_state())

        def change_of_parameters(learn: Callable[[int], None]) -> Tensor:
            for i in range(ppo.num_mini_batches):
                learn(i)
            change = parameters - before
            restore()
            return change

        eager = change_of_parameters(ppo.learn_mini_batch)
        (group,) = ppo.optimizer.param_groups
        group["capturable"] = True  # Adam asks for it in a capture only; fused, it ignores it
        try:
            self._capture(*(partial(ppo.learn_mini_batch, i) for i in range(ppo.num_mini_batches)))
        finally:
            group["capturable"] = False
        restore()
        # A rank that does not replay would be missing in the all-reduces of the others.
        (refused,) = ppo.rank.any(self.refusal is not None)
        with ppo.rank.progress:  # the GPU waits for the others in these all-reduces
            if not refused and _differ(
                change_of_parameters(self._graphs.replay), eager, smallest=0.0
            ):
                self.refusal = "parameters would not be the same from a graph"
        if any(ppo.rank.any(self.refusal is not None)):
            self.close()


@torch.no_grad()
def collect_transition(env: Env, ppo: Algorithm, transition: Transition) -> None:
    """A step of a rollout: act, step the environments, and write to `transition`, in place."""
    env.timer.begin("inference")
    obs, learner = env.observations.latest, transition.actions.device
    if env.device != learner:  # physics on CPU threads, networks on a GPU
        obs = obs.to(learner)
    actions = ppo.act_in(obs, transition)
    rewards, dones = env.step_in_place(actions.to(env.device))
    env.timer.begin("storage")
    ppo.record(transition, rewards, dones, env.terminations.time_outs)


def host_values(env: Env, *, draws_on_device: bool) -> dict[str, Any]:
    """Values that terms keep on the host, and random generators; keys are messages for changes."""
    values = {
        f"{name} keeps {place} on the host": value
        for name, term in env.terms().items()
        for place, value in host_state(term, env).items()
    }
    names = {"numpy": "NumPy's random generator", "python": "Python's random generator"}
    if draws_on_device:
        names["torch"] = "PyTorch's random generator of the CPU"
    states = random_state(torch.device("cpu"))
    for key, name in names.items():
        values[f"a term uses {name}"] = json.dumps(states[key], default=Tensor.tolist)
    return values


def _restorer(tensors: Sequence[Tensor]) -> Callable[[], None]:
    """A function that puts the present values of tensors back, in place."""
    values = [tensor.clone() for tensor in tensors]

    def restore() -> None:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)

    return restore


def _record(env: Env) -> Record:
    """Commands, terminations, rewards, metrics and observations of the latest step."""
    terms = {f"commands.{name}": term.command for name, term in env.commands.terms.items()}
    for kind, of, values in (
        ("terminations", env.terminations, env.terminations.flags),
        ("rewards", env.rewards, env.rewards.values),
        ("metrics", env.metrics, env.metrics.values),
    ):
        terms |= {f"{kind}.{name}": values[:, i] for i, name in enumerate(of.names)}
    for group, observed in env.observations.latest.items():
        for term, columns in env.observations.groups[group].slices.items():
            terms[f"observations.{group}.{term}"] = observed.flatten(1)[:, columns]
    return {name: values.to(torch.float32, copy=True) for name, values in terms.items()}


def _differing(replayed: Sequence[Record], eager: Sequence[Record]) -> list[str]:
    """The terms that differ at the first step at which any does; waits for the device."""
    for step, expected in zip(replayed, eager, strict=True):
        if names := [name for name in expected if _differ(step[name], expected[name])]:
            return names
    return []


def _differ(value: Tensor, expected: Tensor, smallest: float = 1e-5) -> Tensor:
    """Whether a tenth of the numbers differ by a hundredth of themselves, or of what is usual in
    `expected`, or by `smallest`, whichever is most; 0-d."""
    usual = expected.nan_to_num(0.0, 0.0, 0.0).abs().mean()
    allowed = 0.01 * torch.maximum(expected.abs(), usual) + smallest
    same = ((value - expected).abs() <= allowed) | (value == expected)
    same |= value.isnan() & expected.isnan()
    return (~same).float().mean() > 0.1
