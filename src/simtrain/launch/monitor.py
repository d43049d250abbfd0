"""The command's view of a running job of several ranks, and the result of the job."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from simtrain.errors import ConfigError, DivergenceError, RankError
from simtrain.launch.events import Message, RankFailed, RankFinished, RankStarted, StopReceived
from simtrain.launch.plan import Job
from simtrain.launch.stop import StopSignals
from simtrain.launch.torchrunx_internals import parse_killed, run_on_host

_FAILURE_SECONDS = 5.0
"""How long torchrunx may take to end a job in which a rank failed."""
_PEER_FAILURE_SECONDS = 15.0
"""The same if ranks lost another one and it is not known yet what became of that one."""
_LAUNCHER_SECONDS = 3.0
"""How long the launcher may take for its result once it has ended the log server."""

_OUT_OF_MEMORY = "SIGKILL often means that the machine ran out of memory"


@dataclass(frozen=True)
class LauncherResult:
    """How the job ended for torchrunx's launcher."""

    error: str = ""
    """Torchrunx's error; empty if all went well."""
    agent_failed: bool = False
    """Whether an agent, which starts the ranks of a host, is no longer there."""


@dataclass
class JobMonitor:
    """Follows a running job by the events of its ranks."""

    job: Job
    launcher: BaseProcess
    events: Connection
    """From the log server, which alone has the other end; so its end is the server's."""
    outcome: Connection
    """From the launcher, for its result."""
    receive: Callable[[object], None]
    stop: StopSignals
    started: dict[int, RankStarted] = field(default_factory=dict)
    finished: dict[int, RankFinished] = field(default_factory=dict)
    failures: list[RankFailed] = field(default_factory=list)
    first_failure_time: float | None = None
    log_server_end_time: float | None = None
    """When the log server ended: after every rank, unless something killed it."""
    launcher_result: LauncherResult | None = None
    interrupted: bool = False

    @property
    def is_finished(self) -> bool:
        """Whether every rank's function returned."""
        return len(self.finished) == self.job.world_size

    def wait(self) -> None:
        """Wait until all ranks finished, torchrunx gave up, or one failed long ago.

        Meanwhile, hand on what rank 0 shows, and interrupt it once the command is to stop.
        """
        while not self._is_over():
            sources: list[Connection | int] = [self.outcome, self.launcher.sentinel]
            if self.log_server_end_time is None:
                sources.append(self.events)
            ready = wait(sources, timeout=0.2)
            if self.events in ready:
                self.read_events()
            if self.outcome in ready:
                gone = f"the launching process on this machine is gone; {_OUT_OF_MEMORY}"
                self.launcher_result = _receive(self.outcome) or LauncherResult(gone)
            if self.stop() and not self.interrupted and 0 in self.started:
                self.interrupted = True
                self._interrupt_rank_0()

    def result(self, output: str, log_dir: str) -> Any:
        """Rank 0's result; raises the error that ended the job, as `launch_ranks` does.

        `output` is what the launcher and starting agents printed.
        """
        failed = {failed.cause: failed for failed in reversed(self.failures)}
        if "config" in failed:
            raise ConfigError(failed["config"].text)
        if failure := failed.get("exception") or failed.get("simulation"):
            raise RankError(str(failure))
        if "divergence" in failed:
            raise DivergenceError(failed["divergence"].text)
        if "job" in failed:
            raise RankError(failed["job"].text)
        if self.is_finished:
            return self.finished[0].result
        result = self.launcher_result or LauncherResult()
        reason, pid = parse_killed(result.error) or ("", 0)
        for rank in self.started.values():
            if rank.pid == pid:
                raise RankError(
                    f"{rank.name} was killed: {reason}, process {pid}; {_OUT_OF_MEMORY}"
                )
        error = result.error
        if result.agent_failed:
            error, output = self._failed_agent(), "" if self.started else output
        elif self.failures:
            raise RankError(str(self.failures[0]))
        elif not error:
            error = (
                "the log server is gone, the process on this machine through which ranks report; "
                f"{_OUT_OF_MEMORY}"
            )
        logs = f"; the ranks' logs are in {log_dir}" if log_dir else ""
        raise RankError("\n".join([f"{error}{logs}", *output.strip().splitlines()[-20:]]))

    def read_events(self) -> None:
        """Read the events that ranks have sent since."""
        while self.log_server_end_time is None and self.events.poll():
            event = _receive(self.events)
            if event is None:
                self.log_server_end_time = time.monotonic()
            elif isinstance(event, Message):
                self.receive(event.content)
            elif isinstance(event, RankStarted):
                self.started[event.rank] = event
            elif isinstance(event, RankFinished):
                self.finished[event.rank] = event
            elif isinstance(event, RankFailed):
                self.failures.append(event)
                self.first_failure_time = self.first_failure_time or time.monotonic()
            elif isinstance(event, StopReceived) and not self.failures and not self.stop():
                self.stop.receive(event.signal)

    def _is_over(self) -> bool:
        if self.is_finished or self.launcher_result is not None:
            return True
        only_peers = all(failed.cause == "peer" for failed in self.failures)
        limits = (
            (self.log_server_end_time, _LAUNCHER_SECONDS),
            (self.first_failure_time, _PEER_FAILURE_SECONDS if only_peers else _FAILURE_SECONDS),
        )
        now = time.monotonic()
        return any(began is not None and now > began + seconds for began, seconds in limits)

    def _failed_agent(self) -> str:
        """Which agent is gone. Its ranks went with it; those of other hosts can still miss them."""
        alive = {self.started[failed.rank].host for failed in self.failures}
        hosts = [host for host in self.job.hosts if host not in alive] or self.job.hosts
        return (
            f"the torchrunx agent of host {' or '.join(hosts)}, the process that starts the ranks "
            f"there, is gone: it was killed, or the host went down; {_OUT_OF_MEMORY}"
        )

    def _interrupt_rank_0(self) -> None:
        """Interrupt rank 0, which tells the others at the end of its iteration."""
        rank = self.started[0]
        if rank.host == "localhost":
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGINT)
            return
        arguments = (f"kill -INT {rank.pid}", rank.host, self.job.ssh_config)
        threading.Thread(
            target=run_on_host, args=arguments, kwargs={"wait": False}, daemon=True
        ).start()


def _receive(connection: Connection) -> Any:
    """The next object, or None at the end."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None
