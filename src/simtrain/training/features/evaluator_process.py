"""Evaluation in a separate process that ends with rank 0; both sides of the connection.

``python -m simtrain.training.features.evaluator_process <connection's descriptor> <parent's id>``

Training does not wait. A policy is sent when the process is ready. Until then, the newest policy
waits and older ones are dropped. Heavy modules are imported only after the process is tied to the
life of its parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.config.tree import as_plain, overlay
from simtrain.errors import ConfigError, SimulationError
from simtrain.launch.processes import die_with_parent, ignore_stop_signals

if TYPE_CHECKING:
    from simtrain.launch.plan import Devices
    from simtrain.training.evaluator import Evaluation
    from simtrain.training.features.checkpoint import PolicySnapshot

_NICENESS = 5


class EvaluatorProcess:
    """Rank 0's side of the connection."""

    def __init__(self, config: TrainConfig, devices: Devices, threads: int) -> None:
        """Start the process."""
        self.failure: str | None = None
        """Why the process is gone, or None while it lives."""
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._connection, far_end = Pipe()
        arguments = [str(far_end.fileno()), str(os.getpid())]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments],
            pass_fds=[far_end.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )
        far_end.close()
        self._connection.send((config.task, as_plain(config), devices, threads))
        self._is_ready = False
        self._waiting: PolicySnapshot | None = None
        self._evaluated: PolicySnapshot | None = None  # now

    @property
    def is_busy(self) -> bool:
        """Whether a policy is being evaluated or waits."""
        return self.failure is None and (self._waiting or self._evaluated) is not None

    def submit(self, policy: PolicySnapshot) -> None:
        """Evaluate a policy, in place of one that waits; nobody may change its networks."""
        self._waiting = policy
        self._evaluate_next()

    def results(self, seconds: float = 0.0) -> list[tuple[PolicySnapshot, Evaluation]]:
        """The evaluation that finished since the last call, or within `seconds`, if any."""
        done = []
        try:
            if self.failure is None and self._connection.poll(seconds):
                answer = self._connection.recv()
                if isinstance(answer, str):
                    self.failure = answer
                elif self._evaluated is not None:
                    done.append((self._evaluated, answer))
                self._evaluated, self._is_ready = None, True
        except (OSError, EOFError):
            self.failure = self._exit_message()
        self._evaluate_next()
        return done

    def _evaluate_next(self) -> None:
        """Send the waiting policy if the process is ready."""
        from simtrain.run.checkpoint import packed, policy_state

        if self._waiting is None or self._evaluated or self.failure or not self._is_ready:
            return
        self._evaluated, self._waiting = self._waiting, None
        state = packed(policy_state(self._evaluated.networks))
        try:
            self._connection.send((self._evaluated.config.ppo.actor, state))
        except OSError:
            self.failure = self._exit_message()

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        self._output.close()

    def _exit_message(self) -> str:
        """How the process ended; its end of the connection is closed."""
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
    """Answer None when the evaluator is ready, then an evaluation for each policy.

    An error is answered by its text; then the process ends.
    """
    descriptor, parent = map(int, sys.argv[1:])
    die_with_parent(parent)
    ignore_stop_signals()  # they are for rank 0, which ends this process
    os.nice(_NICENESS)  # where they share a core, training comes first
    connection = Connection(descriptor)
    try:
        task, values, devices, threads = connection.recv()

        import torch

        from simtrain.run.checkpoint import unpacked
        from simtrain.training.evaluator import evaluator_of_run

        device = devices.use(0)
        torch.set_num_threads(threads)
        config = overlay(default_config(task, quiet=True), values)
        evaluator = evaluator_of_run(config, device, threads)
        connection.send(None)
        while True:
            actor, state = connection.recv()
            connection.send(evaluator(actor, unpacked(state)))
    except EOFError:
        return
    except (ConfigError, SimulationError) as error:
        connection.send(str(error))


if __name__ == "__main__":
    main()
