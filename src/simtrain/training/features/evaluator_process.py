"""Evaluation beside training, in a process of its own that ends with rank 0; both ends of it.

``python -m simtrain.training.features.evaluator_process <connection's descriptor> <parent's id>``

No call of training waits: neither for an evaluation nor for a process that does not read. Of the
policies that come while one is being evaluated, the newest waits and the others are dropped. Heavy
modules are imported only after the process is tied to the life of its parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.config.tree import as_plain, overlay
from simtrain.errors import ConfigError, SimulationError
from simtrain.launch.processes import die_with_parent, ignore_stop_signals
from simtrain.training.features.background import NewestItemWorker

if TYPE_CHECKING:
    from simtrain.launch.plan import Devices
    from simtrain.training.evaluator import Evaluation, Evaluator

_NICENESS = 5


@dataclass(frozen=True)
class PolicySnapshot:
    """A policy to be evaluated."""

    iteration: int
    """Iterations that it was trained."""
    config: TrainConfig
    """The configuration that it was trained with; its network's sizes may change."""
    networks: dict[str, Any]
    """``save()`` of its algorithm, or a copy of it."""
    infos: dict[str, Any]
    """Plain values that belong to its checkpoint."""


@dataclass(frozen=True)
class Start:
    """The first message to the process."""

    task: str
    values: dict[str, Any]
    """The run's configuration as mappings, lists and scalars."""
    devices: Devices
    threads: int


class EvaluatorProcess:
    """Rank 0's end of the process; see `Evaluations`."""

    def __init__(
        self, config: TrainConfig, devices: Devices, threads: int, stop: Callable[[], bool]
    ) -> None:
        """Start the process; `stop` ends the wait for the last evaluation."""
        self._stop = stop
        self._lock = threading.Lock()
        self._results: list[tuple[PolicySnapshot, Evaluation]] = []
        self.failure: str | None = None
        """Why the process is gone, or None while it lives."""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._connection, theirs = Pipe()
        arguments = [str(theirs.fileno()), str(os.getpid())]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        theirs.close()
        self._start = Start(config.task, as_plain(config), devices, threads)
        # Not before the process is ready, or it would begin with a policy that was the newest then.
        self._worker = NewestItemWorker(self._evaluate, "evaluator", prepare=self._get_ready)

    def submit(self, policy: PolicySnapshot) -> None:
        """Have a policy evaluated next, instead of one that still waits."""
        if self.failure is None:
            self._worker.submit(policy)

    def results(self) -> list[tuple[PolicySnapshot, Evaluation]]:
        """The evaluations that came since the last call, oldest first."""
        with self._lock:
            results, self._results = self._results, []
            return results

    def finish(self, seconds: float) -> bool:
        """Wait for what was submitted; whether all of it is evaluated."""
        done = self._worker.wait(lambda: self._stop() or self.failure is not None, seconds)
        return done and self.failure is None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._worker.close(drop=True)
        self._connection.close()
        self._output.close()

    def _get_ready(self) -> None:
        self._exchange(lambda: self._connection.send(self._start))

    def _evaluate(self, policy: PolicySnapshot) -> bool:
        """Evaluate a policy, in the thread."""
        if self.failure is None:
            from simtrain.run.checkpoint import packed, policy_state

            message = policy.config.ppo.actor, packed(policy_state(policy.networks))
            evaluation = self._exchange(lambda: self._connection.send(message))
            if evaluation is not None:
                with self._lock:
                    self._results.append((policy, evaluation))
        return True

    def _exchange(self, send: Callable[[], None]) -> Any:
        """Send something; the answer to it, or None with `failure` set."""
        try:
            send()
            answer = self._connection.recv()
        except (OSError, EOFError):
            self.failure = self._exit_message()
            return None
        if isinstance(answer, str):
            self.failure = answer
            return None
        return answer

    def _exit_message(self) -> str:
        """How the process ended, after its end of the connection closed."""
        try:
            code = self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        if code < 0:
            name = signal.Signals(-code).name
            memory = "; often the machine ran out of memory" if name == "SIGKILL" else ""
            return f"it was killed by {name}{memory}"
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else 'it printed nothing'} (exit code {code})"


def main() -> None:
    """Receive a `Start`, answer None when ready, then each policy by its evaluation.

    An error is answered by its text; then the process ends.
    """
    descriptor, parent = map(int, sys.argv[1:])
    die_with_parent(parent)
    ignore_stop_signals()  # they are for rank 0, which ends this process
    os.nice(_NICENESS)  # where they share a core, training comes first
    connection = Connection(descriptor)
    try:
        evaluator = _make_evaluator(connection.recv())

        from simtrain.run.checkpoint import unpacked

        connection.send(None)
        while True:
            actor, state = connection.recv()
            connection.send(evaluator(actor, unpacked(state)))
    except EOFError:
        return
    except (ConfigError, SimulationError) as error:
        connection.send(str(error))


def _make_evaluator(start: Start) -> Evaluator:
    import torch

    from simtrain.training.evaluator import evaluator_of_run

    device = start.devices.use(0)
    torch.set_num_threads(start.threads)
    config = overlay(default_config(start.task, quiet=True), start.values)
    return evaluator_of_run(config, device, start.threads)


if __name__ == "__main__":
    main()
