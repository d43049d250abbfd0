"""Evaluation beside training: a process of its own judges policies while training goes on.

`EvaluatorProcess` is rank 0's end. A thread of it talks to the process, so that no call of training
waits: neither for an evaluation nor for a process that does not read. Of the policies that come
while one is being evaluated, the newest waits and the others are dropped.

The process itself runs `simtrain.training.evaluator_program`; it ends with rank 0.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from typing import Any

import torch

from simtrain.config import TrainConfig, as_plain
from simtrain.launch.plan import Devices
from simtrain.training import evaluator_program
from simtrain.training.evaluator import Evaluation
from simtrain.training.evaluator_program import Start

LAST_SECONDS = 300.0
"""How long the end of training waits for the last evaluation."""


@dataclass(frozen=True)
class Candidate:
    """A policy to be judged."""

    iteration: int
    """How many iterations it was trained."""
    networks: dict[str, Any]
    """What ``PPO.save`` returned, or a copy of it."""
    infos: dict[str, Any]
    """Plain values that belong to its checkpoint."""


class _GaveUpError(Exception):
    """The process found an error and ended; its text says which."""


class EvaluatorProcess:
    """Rank 0's end of the process."""

    def __init__(self, config: TrainConfig, devices: Devices, threads: int) -> None:
        """Start the process; it gets ready while training begins.

        Args:
            config: the run's configuration.
            devices: what the process computes on.
            threads: CPU threads that it may use.
        """
        self._changed = threading.Condition()
        self._newest: Candidate | None = None
        self._busy = False
        self._closed = False
        self._results: list[tuple[Candidate, Evaluation]] = []
        self._failure: str | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                evaluator_program.__name__,
                str(theirs.fileno()),
                str(os.getpid()),
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": devices.visible},
        )
        theirs.close()
        start = Start(config.task, as_plain(config), devices.kind, threads)
        self._thread = threading.Thread(target=self._run, args=(start,), daemon=True)
        self._thread.start()

    @property
    def failure(self) -> str | None:
        """Why the process is gone, or None while it lives."""
        with self._changed:
            return self._failure

    def submit(self, candidate: Candidate) -> None:
        """Have a policy evaluated next, instead of one that still waits; never waits itself."""
        with self._changed:
            if self._failure is None:
                self._newest = candidate
                self._changed.notify_all()

    def results(self) -> list[tuple[Candidate, Evaluation]]:
        """The evaluations that came since the last call, oldest first; never waits."""
        with self._changed:
            results, self._results = self._results, []
            return results

    def finish(self, stop: Callable[[], bool], seconds: float = LAST_SECONDS) -> bool:
        """Wait until nothing is to be evaluated any more, `seconds` at most, or until `stop`.

        Returns:
            Whether all is evaluated.
        """
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._failure is None and (self._busy or self._newest is not None):
                if stop() or time.monotonic() > deadline:
                    return False
                self._changed.wait(0.2)
            return self._failure is None

    def close(self) -> None:
        """End the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._process.kill()
        self._process.wait()
        self._thread.join()
        self._connection.close()
        self._output.close()

    def _run(self, start: Start) -> None:
        """The thread: give the process one policy after another, until it or training ends."""
        try:
            self._connection.send(start)
            # Not before it is ready, or it would begin with a policy that was the newest then.
            self._answer()
            while (candidate := self._next()) is not None:
                self._connection.send_bytes(_packed(candidate.networks["actor_state_dict"]))
                evaluation = self._answer()
                with self._changed:
                    self._results.append((candidate, evaluation))
        except _GaveUpError as error:
            self._fail(str(error))
        except (OSError, EOFError):
            self._fail(self._last_words())

    def _answer(self) -> Any:
        answer = self._connection.recv()
        if isinstance(answer, str):
            raise _GaveUpError(answer)
        return answer

    def _next(self) -> Candidate | None:
        """The newest policy once there is one; None at the end."""
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or self._newest is not None)
            if self._closed:
                return None
            candidate, self._newest = self._newest, None
            self._busy = True
            return candidate

    def _fail(self, reason: str) -> None:
        with self._changed:
            self._failure, self._newest = reason, None
            self._changed.notify_all()

    def _last_words(self) -> str:
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


def _packed(state: dict[str, torch.Tensor]) -> bytes:
    buffer = io.BytesIO()
    torch.save({name: tensor.cpu() for name, tensor in state.items()}, buffer)
    return buffer.getvalue()
