"""A control step as a CUDA graph: a policy acts, the environments step, what happened is kept.

When it is made, a few steps are made eagerly, captured, replayed and compared, and everything is
put back.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from simtrain.env.env import Env
from simtrain.env.randomness import random_state, set_random_state
from simtrain.sim.cuda_graphs import GraphBackend, Graphs, RefusedError, describe
from simtrain.training.graphs.check import Record, differing, host_values, record


class StepGraph:
    """Replays `step`, a function that acts and steps `env`, once a graph of it is made."""

    def __init__(
        self,
        env: Env,
        backend: GraphBackend,
        step: Callable[[], None],
        begin: Callable[[], None],
        tensors: Sequence[Tensor] = (),
    ) -> None:
        """`begin` comes before the first of several steps; `tensors` are what steps depend on and
        change in place beside the environment. Both run where observations are in one buffer."""
        self._env, self._backend = env, backend
        self._step, self._begin, self._tensors = step, begin, tensors
        self._graphs = Graphs()
        self._generation: int | None = None
        self.refusal: str | None = None
        """Why steps cannot be a graph; None if they can, or it was not tried yet."""

    @property
    def outdated(self) -> bool:
        """Whether the graph was not tried yet, or the engine has replaced arrays since."""
        return self._generation != self._env.sim.storage_version

    def run(self) -> bool:
        """Make a step by the graph; False, with nothing done, without one of the present arrays."""
        if not self._graphs.graphs or self.outdated:
            return False
        self._graphs.replay()
        return True

    def close(self) -> None:
        """End the graph, if there is one."""
        self._graphs.close()

    @torch.inference_mode()
    def make(self) -> None:
        """Try to make the graph, between two steps, after some that compiled the kernels.

        Failures and overflows have been read by then, or those that do not come again are lost.
        """
        env, device = self._env, self._env.device
        self.close()
        self.refusal = "; ".join(env.undeclared_changes()) or None
        if self.refusal is None:  # or the trial steps could not be undone
            state, random = env.state(), random_state(device)
            values = [tensor.clone() for tensor in self._tensors]

            def restore() -> None:
                env.set_state(state)
                for tensor, value in zip(self._tensors, values, strict=True):
                    tensor.copy_(value)
                set_random_state(random, device)
                self._begin()

            self.refusal = self._capture_and_check(restore)
            restore()
            env.sim.overflow()  # of these steps; who overflows does so again
        self._generation = env.sim.storage_version
        if self.refusal is not None:
            self.close()

    def _captured_step(self) -> object:
        """The step within a capture; what the graph keeps."""
        with self._env.sim.in_torch_graph() as kept:
            self._step()
        return kept

    def _capture_and_check(self, restore: Callable[[], None]) -> str | None:
        """Make the graph; why steps cannot be one or are not the same then, if so."""
        env = self._env
        restore()
        on_device = env.device.type != "cpu"
        before = host_values(env, draws_on_device=on_device)
        try:
            with self._backend.without_waiting():
                eager = self._records(self._step)
        except Exception as error:  # noqa: BLE001 - the next step raises it again, without a graph
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
            step()
            records.append(record(env))
        return records
