"""What the command knows of a running job of several ranks, and how it judges the job's end."""

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
from simtrain.launch.plan import Job
from simtrain.launch.reports import Failed, Message, Report, Returned, Started, ToldToStop
from simtrain.launch.stop import StopSignals

_FAILURE_SECONDS = 5.0
"""How long torchrunx may take to end a job in which a rank failed."""
_DISCOVERY_SECONDS = 15.0
"""How long it may take if ranks lost another and it is not known yet what became of that one."""
_LAST_WORD_SECONDS = 3.0
"""How long the launcher may take for its last word once it has ended the log server."""

_OUT_OF_MEMORY = "SIGKILL often means that the machine ran out of memory"
_GONE = f"the launching process on this machine is gone; {_OUT_OF_MEMORY}"


@dataclass(frozen=True)
class LastWord:
    """How the job ended for the launcher."""

    error: str = ""
    """What torchrunx says; empty if all went well."""
    lost_agent: bool = False
    """Whether an agent, which starts the ranks of a host, is no longer there."""


@dataclass
class Watch:
    """The command's view of a running job."""

    job: Job
    launcher: BaseProcess
    reports: Connection
    """From the log server, which alone has the other end; so its end is the server's."""
    outcome: Connection
    """From the launcher, for its last word."""
    receive: Callable[[object], None]
    stop: StopSignals
    ranks: dict[int, Started] = field(default_factory=dict)
    returned: dict[int, Returned] = field(default_factory=dict)
    failures: list[Failed] = field(default_factory=list)
    failed_at: float | None = None
    deaf_since: float | None = None
    """When the log server ended: after every rank, unless something killed it."""
    last_word: LastWord | None = None
    stop_sent: bool = False

    @property
    def is_done(self) -> bool:
        """Whether every rank has done its work."""
        return len(self.returned) == self.job.world_size

    def until_end(self) -> None:
        """Follow the job until all ranks are done, torchrunx gave up, or one failed for long."""
        while not self._is_over():
            sources: list[Connection | int] = [self.outcome, self.launcher.sentinel]
            if self.deaf_since is None:
                sources.append(self.reports)
            ready = wait(sources, timeout=0.2)
            if self.reports in ready:
                self.take_reports()
            if self.outcome in ready:
                self.last_word = _receive(self.outcome) or LastWord(_GONE)
            if self.stop() and not self.stop_sent and 0 in self.ranks:
                self.stop_sent = True
                self._tell_rank_0()

    def result(self, output: str, log_dir: str) -> Any:
        """Rank 0's result, or the error that ended the job.

        Args:
            output: what the launcher and starting agents printed.
            log_dir: where the ranks' logs are.

        Raises:
            ConfigError: a rank found a mistake in the configuration.
            DivergenceError: the ranks found together that training cannot go on.
            RankError: says which rank or other process failed, and how.
        """
        causes = {failed.cause: failed for failed in reversed(self.failures)}
        if "mistake" in causes:
            raise ConfigError(causes["mistake"].text)
        for cause in ("program", "simulation"):
            if cause in causes:
                raise RankError(str(causes[cause]))
        if "divergence" in causes:
            raise DivergenceError(causes["divergence"].text)
        if "job" in causes:
            raise RankError(causes["job"].text)
        if self.is_done:
            return self.returned[0].result
        error = self.last_word.error if self.last_word else ""
        for rank in self.ranks.values():
            if error.endswith(f" received by PID {rank.pid}"):
                reason = error.removesuffix(f" received by PID {rank.pid}")
                raise RankError(
                    f"rank {rank.rank} on {rank.device} was killed: {reason}, process {rank.pid}; "
                    f"{_OUT_OF_MEMORY}"
                )
        if self.last_word is not None and self.last_word.lost_agent:
            error, output = self._lost_agent(), "" if self.ranks else output
        elif self.failures:
            raise RankError(str(self.failures[0]))
        elif not error:
            error = (
                "the log server is gone, the process on this machine through which ranks report; "
                f"{_OUT_OF_MEMORY}"
            )
        logs = f"; the ranks' logs are in {log_dir}" if log_dir else ""
        raise RankError("\n".join([f"{error}{logs}", *output.strip().splitlines()[-20:]]))

    def _lost_agent(self) -> str:
        """Which agent is gone. Its ranks went with it; those of other hosts can still miss them."""
        alive = {self.ranks[failed.rank].host for failed in self.failures}
        hosts = [host for host in self.job.hosts if host not in alive] or self.job.hosts
        return (
            f"the torchrunx agent of host {' or '.join(hosts)}, the process that starts the ranks "
            f"there, is gone: it was killed, or the host went down; {_OUT_OF_MEMORY}"
        )

    def _is_over(self) -> bool:
        if self.is_done or self.last_word is not None:
            return True
        now = time.monotonic()
        if self.deaf_since is not None and now > self.deaf_since + _LAST_WORD_SECONDS:
            return True
        if self.failed_at is None:
            return False
        only_peers = all(failed.cause == "peer" for failed in self.failures)
        seconds = _DISCOVERY_SECONDS if only_peers else _FAILURE_SECONDS
        return now > self.failed_at + seconds

    def take_reports(self) -> None:
        """Take in what ranks have reported since."""
        while self.deaf_since is None and self.reports.poll():
            report: Report | None = _receive(self.reports)
            if report is None:
                self.deaf_since = time.monotonic()
            elif isinstance(report, Message):
                self.receive(report.content)
            elif isinstance(report, Started):
                self.ranks[report.rank] = report
            elif isinstance(report, Returned):
                self.returned[report.rank] = report
            elif isinstance(report, Failed):
                self.failures.append(report)
                self.failed_at = self.failed_at or time.monotonic()
            elif isinstance(report, ToldToStop) and not self.failures and not self.stop():
                self.stop.note(report.signal)

    def _tell_rank_0(self) -> None:
        """Interrupt rank 0, which tells the others at the end of its iteration."""
        rank = self.ranks[0]
        if rank.host == "localhost":
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGINT)
            return

        from torchrunx.utils.environment import execute_command

        threading.Thread(
            target=execute_command,
            args=(f"kill -INT {rank.pid}", rank.host),
            kwargs={"ssh_config_file": self.job.ssh_config},
            daemon=True,
        ).start()


def _receive(connection: Connection) -> Any:
    """The next object, or None at the end."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None
