"""Run the real ``train`` command in a user's folder, and look at what is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

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
        self._mark = f"SIMTRAIN_TEST_JOB={folder}"
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
        pids = [pid for pid in _running() if self._mark.encode() in _read(pid, "environ")]
        # A fork shows the environment of the process that it was forked from.
        if isinstance(self.process, WarmProcess) and self.process.poll() is None:
            pids.append(self.process.pid)
        return pids

    def listening(self) -> set[tuple[str, int]]:
        """Addresses and ports on which its processes listen."""
        inodes = set()
        for pid in self.processes():
            for link in Path(f"/proc/{pid}/fd").glob("*"):
                with suppress(OSError):
                    inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
        listening = set()
        for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and fields[9] in inodes:
                    address, port = fields[1].split(":")
                    words = struct.unpack(f">{len(address) // 8}I", bytes.fromhex(address))
                    packed = struct.pack(f"={len(words)}I", *words)  # the machine's byte order
                    listening.add((socket.inet_ntop(family, packed), int(port, 16)))
        return listening

    def running(self, module: str) -> list[int]:
        """Processes that Python started with a module."""
        return [pid for pid in self.processes() if module.encode() in _read(pid, "cmdline")]

    def ranks(self) -> list[int]:
        """Processes of the ranks, as far as they have started."""
        return self.running("multiprocessing.spawn")

    def agent(self) -> int:
        """The process that starts the ranks of this host."""
        (agent,) = self.running("\0simtrain.launch.agent\0")
        return agent

    def log_server(self) -> int:
        """The process that the ranks report to: a fork of a fork of the command."""
        return self._fork_of(self.launcher())

    def launcher(self) -> int:
        """The fork of the command that runs torchrunx."""
        return self._fork_of(self.process.pid)

    def _fork_of(self, parent: int) -> int:
        command = _read(self.process.pid, "cmdline")
        line = f"PPid:\t{parent}\n".encode()
        children = [pid for pid in self.processes() if line in _read(pid, "status")]
        (fork,) = (pid for pid in children if _read(pid, "cmdline") == command)
        return fork


def _running() -> list[int]:
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if b"State:\tZ" not in _read(pid, "status")]


def _read(pid: int, file: str) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/{file}").read_bytes()
    return b""
