"""Run the real ``train`` command in a user's folder, and look at what is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from warm import WarmProcess

ONE_RANK = ("--gpu-ids", "None", "--cpu-threads", "1")
TWO_RANKS = (*ONE_RANK, "--cpu-workers", "2")
TRAIN = ("-m", "simtrain.cli.start", "train")
BENCHMARK = ("-m", "simtrain.cli.start", "benchmark")


def make_tasks(folder: Path) -> None:
    """Give a user's folder the task of ``pendulum.py``."""
    (folder / "tasks").mkdir(parents=True, exist_ok=True)
    shutil.copy(Path(__file__).with_name("pendulum.py"), folder / "tasks")


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """Every line of a run's metrics."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def timeless_metrics(run: Path) -> list[dict[str, Any]]:
    """Every line of a run's metrics, without what a clock says."""
    return [
        {k: v for k, v in line.items() if k != "wall_s" and not k.startswith("Perf/")}
        for line in metrics_of(run)
    ]


def assert_same_networks(path: Path, other: Path) -> None:
    """The networks of two checkpoints are equal to the bit."""
    first, second = (torch.load(file, weights_only=True) for file in (path, other))
    for network in ("actor_state_dict", "critic_state_dict"):
        torch.testing.assert_close(first[network], second[network], rtol=0.0, atol=0.0)


class Job:
    """A ``train`` command in a folder of its own, marked so that all its processes are found."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        program: Sequence[str] = TRAIN,
        warm: bool = False,
        **variables: str,
    ) -> None:
        """Start `program` with Python; `variables` are of its environment.

        If it is `warm`, fork a process that has imported what `train` imports, instead.
        """
        self.folder = folder
        self.out = folder / "out.txt"
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **variables}
        environment["SIMTRAIN_TEST_JOB"] = str(folder)
        self.process: subprocess.Popen[bytes] | WarmProcess
        with self.out.open("w") as out:
            if warm:
                self.process = WarmProcess(arguments, folder, self.out, environment)
                return
            self.process = subprocess.Popen(
                [sys.executable, *program, *arguments],
                cwd=folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                # Its own process group, to which a terminal's Ctrl-C goes.
                start_new_session=True,
                env=environment,
            )

    @property
    def output(self) -> str:
        return self.out.read_text()

    @property
    def run(self) -> Path:
        (run,) = self.folder.glob("logs/*/*")
        return run

    def wait(self, timeout: float = 250.0) -> int:
        """The exit code; whatever then still runs is killed, and raises."""
        try:
            return self.process.wait(timeout)
        finally:
            left = self.kill()
            assert not left, f"left behind: {left}\n{self.output}"

    def wait_for_end(self, timeout: float = 60.0) -> None:
        """Wait until nothing of a job runs whose command was killed; raises if something does."""
        deadline = time.monotonic() + timeout
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.wait()

    def kill(self) -> list[int]:
        """Kill whatever runs; what that was."""
        left = self.processes()
        self.signal_all(signal.SIGKILL)
        return left

    def interrupt(self) -> None:
        """What a terminal does on Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def signal_all(self, number: int) -> None:
        """What a cluster does: send a signal to every process."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait_until(self, condition: Callable[[], bool], timeout: float = 250.0) -> None:
        deadline = time.monotonic() + timeout
        while not condition():
            assert time.monotonic() < deadline, self.output
            assert self.process.poll() is None, self.output
            time.sleep(0.05)

    def wait_for(self, text: str) -> None:
        self.wait_until(lambda: text in self.output)

    def wait_until_saved(self) -> None:
        self.wait_until(lambda: any(self.folder.glob("logs/*/*/resume.pt")))

    def processes(self) -> list[int]:
        """Every process that this job started and that still runs."""
        pids = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_of_job = process.environ().get("SIMTRAIN_TEST_JOB") == str(self.folder)
                if is_of_job and process.status() != psutil.STATUS_ZOMBIE:
                    pids.append(process.pid)
        # A fork shows the environment of the process that it was forked from.
        if isinstance(self.process, WarmProcess) and self.process.poll() is None:
            pids.append(self.process.pid)
        return pids

    def listening(self) -> set[tuple[str, int]]:
        """Addresses and ports on which its processes listen."""
        return {
            tuple(connection.laddr)
            for pid in self.processes()
            for connection in psutil.Process(pid).net_connections("tcp")
            if connection.status == psutil.CONN_LISTEN
        }

    def running(self, module: str) -> list[int]:
        """Processes that Python started with a module."""
        return [pid for pid in self.processes() if module in " ".join(_command(pid))]

    def ranks(self) -> list[int]:
        """Processes of the ranks, as far as they have started."""
        return self.running("multiprocessing.spawn")

    def agent(self) -> int:
        """The process that starts the ranks of this host."""
        (agent,) = (p for p in self.processes() if "simtrain.launch.agent" in _command(p))
        return agent

    def log_server(self) -> int:
        """The process that the ranks report to: a fork of a fork of the command."""
        return _fork_of(self.launcher())

    def launcher(self) -> int:
        """The fork of the command that runs torchrunx."""
        return _fork_of(self.process.pid)


def _fork_of(parent: int) -> int:
    children = psutil.Process(parent).children()
    (fork,) = (child.pid for child in children if _command(child.pid) == _command(parent))
    return fork


def _command(pid: int) -> list[str]:
    with suppress(psutil.Error):
        return psutil.Process(pid).cmdline()
    return []
