"""Commands that start at once: forked from a process that has imported what they import.

Starting Python and importing torch takes seconds, many times over in these tests. What is forked
here runs the command's own ``main`` with its own arguments, folder, environment and output, like a
process that a shell starts; only its imports are done. Tests of starting, and of several ranks, use
real new processes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["simtrain.training.job", "simtrain.training.worker", "simtrain.mdp"])


class WarmProcess:
    """A `train` command with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, out: Path, environment: Mapping[str, str]
    ) -> None:
        # Forks inherit the server's environment; there it is only what the command is given.
        self._process = _FORKS.Process(
            target=_train, args=(list(arguments), folder, out, dict(environment))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("train", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _train(arguments: list[str], folder: Path, out: Path, environment: dict[str, str]) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    # As Python makes them at its start, and in whole lines.
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = ["train", *arguments]
    from simtrain.cli.start import train as main

    main()
