"""Several ranks, through torchrunx: start them, show what rank 0 shows, end all of them.

Four kinds of processes make up a job of several ranks:

  command ── launcher ── log server
                └─────── agent of each host ── its ranks

The command forks the launcher, which runs ``torchrunx.Launcher`` in a session of its own. So Ctrl-C
in a terminal reaches the command alone, which asks rank 0 to stop; and when the launcher is done or
something went wrong, the command knows which processes must be gone, and sees to it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any, TypeVar

from simtrain.errors import ConfigError, DivergenceError, RankError
from simtrain.launch.job import Job
from simtrain.launch.processes import die_with_parent, end_session
from simtrain.launch.rank_process import RankFunction, run_rank
from simtrain.launch.reports import Failed, Message, Report, ReportHandler, Started

ResultT = TypeVar("ResultT")

COPIED_VARIABLES = ("MUJOCO*", "WANDB*", "SIMTRAIN*", "WARP*", "OMP*", "GOMP*", "GLOO*")
"""Variables that travel to the ranks besides those that torchrunx takes along."""

_FAILURE_SECONDS = 5.0
"""How long torchrunx may take to end a job in which a rank failed."""
_DISCOVERY_SECONDS = 15.0
"""How long it may take if ranks lost another and it is not known yet what became of that one."""
_END_SECONDS = 5.0
"""How long processes may take to go when their work is done."""


def launch_ranks(
    job: Job,
    function: RankFunction[ResultT],
    *args: Any,
    receive: Callable[[object], None],
    stop: Callable[[], bool],
    log_dir: str,
) -> ResultT:
    """Run ``function(rank, show, stop, *args)`` as every rank of a job; rank 0's result.

    Args:
        job: the ranks.
        function: what each rank runs.
        args: pickled for the ranks.
        receive: called with everything that rank 0 shows, and with the lines that it prints.
        stop: asked a few times a second; once it is true, rank 0 is told to stop.
        log_dir: folder for what the ranks print; empty for none.

    Raises:
        ConfigError: a rank found a mistake in the configuration.
        DivergenceError: the ranks found together that training cannot go on.
        RankError: a rank failed, or was killed.

    No process of the job is left when it returns or raises.
    """
    if log_dir:
        try:
            Path(log_dir).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"the folder for the ranks' logs cannot be made: {error} "
                "(--torchrunx-log-dir, TORCHRUNX_LOG_DIR)"
            ) from error
    reports, report_end = multiprocessing.Pipe(duplex=False)
    outcome, outcome_end = multiprocessing.Pipe(duplex=False)
    handlers = partial(_handlers, report_end.fileno(), job, log_dir, _log_level())
    with tempfile.TemporaryFile() as output:
        launcher = multiprocessing.get_context("fork").Process(
            target=_run_launcher,
            args=(job, handlers, outcome_end, output, function, args),
            name="simtrain-launcher",
        )
        launcher.start()
        report_end.close()
        outcome_end.close()
        watch = _Watch(job, launcher, reports, outcome, receive, stop)
        grace = 0.0
        try:
            watch.until_end()
            grace = _END_SECONDS if watch.last_word else 0.0
        finally:
            _end(launcher, grace)
        output.seek(0)
        result: ResultT = watch.result(output.read().decode(errors="replace"), log_dir)
        return result


@dataclass(frozen=True)
class _Done:
    """The launcher's last word: every rank returned."""

    result: Any


@dataclass(frozen=True)
class _Broken:
    """The launcher's last word: torchrunx gave up."""

    error: str


@dataclass
class _Watch:
    """The command's view of a running job."""

    job: Job
    launcher: BaseProcess
    reports: Connection
    outcome: Connection
    receive: Callable[[object], None]
    stop: Callable[[], bool]
    ranks: dict[int, Started] = field(default_factory=dict)
    failures: list[Failed] = field(default_factory=list)
    failed_at: float | None = None
    last_word: _Done | _Broken | None = None
    stop_sent: bool = False

    def until_end(self) -> None:
        """Follow the job until the launcher is done, or long enough after a rank failed."""
        while not self._is_over():
            ready = wait([self.reports, self.outcome, self.launcher.sentinel], timeout=0.2)
            if self.reports in ready:
                self._take_reports()
            if self.outcome in ready:
                self.last_word = _receive(self.outcome) or _Broken("")
            if self.stop() and not self.stop_sent and 0 in self.ranks:
                self.stop_sent = True
                self._tell_rank_0()
        self._take_reports()

    def result(self, output: str, log_dir: str) -> Any:
        """Rank 0's result, or the error that ended the job.

        Args:
            output: what the launcher and starting agents printed.
            log_dir: where the ranks' logs are.
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
        if isinstance(self.last_word, _Done):
            return self.last_word.result
        error = self.last_word.error if self.last_word else ""
        error = error or f"the launching process ended with exit code {self.launcher.exitcode}"
        for rank in self.ranks.values():
            if error.endswith(f" received by PID {rank.pid}"):
                reason = error.removesuffix(f" received by PID {rank.pid}")
                raise RankError(
                    f"rank {rank.rank} on {rank.device} was killed: {reason}, process {rank.pid}; "
                    "SIGKILL often means that the machine ran out of memory"
                )
        if self.failures:
            raise RankError(str(self.failures[0]))
        logs = f"; the ranks' logs are in {log_dir}" if log_dir else ""
        raise RankError("\n".join([f"{error}{logs}", *output.strip().splitlines()[-20:]]))

    def _is_over(self) -> bool:
        if self.last_word is not None:
            return True
        if self.failed_at is None:
            return False
        only_peers = all(failed.cause == "peer" for failed in self.failures)
        seconds = _DISCOVERY_SECONDS if only_peers else _FAILURE_SECONDS
        return time.monotonic() > self.failed_at + seconds

    def _take_reports(self) -> None:
        while self.reports.poll():
            report: Report | None = _receive(self.reports)
            if report is None:
                return
            if isinstance(report, Message):
                self.receive(report.content)
            elif isinstance(report, Started):
                self.ranks[report.rank] = report
            else:
                self.failures.append(report)
                self.failed_at = self.failed_at or time.monotonic()

    def _tell_rank_0(self) -> None:
        """Interrupt rank 0, which tells the others at the end of its iteration."""
        from torchrunx.utils.environment import execute_command

        rank = self.ranks[0]
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
    except EOFError:
        return None


def _run_launcher(
    job: Job,
    handlers: Callable[[], list[logging.Handler]],
    outcome: Connection,
    output: IO[bytes],
    function: RankFunction[Any],
    args: tuple[Any, ...],
) -> None:
    """The launcher's process: run the job, and send how it ended."""
    os.setsid()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)

    import torchrunx

    launcher = torchrunx.Launcher(
        hostnames=list(job.hosts),
        workers_per_host=[devices.ranks for devices in job.devices],
        ssh_config_file=job.ssh_config,
        # The ranks make their process group themselves: with a deadline, after each has the
        # CUDA_VISIBLE_DEVICES of its host, and with Gloo beside NCCL.
        backend=None,
        # A run of hours must not end because a busy machine kept an agent waiting for a minute; one
        # that died is noticed at once, by its closed connection.
        agent_timeout=300,
        copy_env_vars=(*torchrunx.DEFAULT_ENV_VARS_FOR_COPY, *COPIED_VARIABLES),
    )
    launcher.set_logging_handlers(handlers)
    last_word: _Done | _Broken
    try:
        last_word = _Done(launcher.run(run_rank, job, function, *args).rank(0))
    except Exception as error:  # noqa: BLE001 - torchrunx passes on whatever ended the job
        last_word = _Broken(str(error) or type(error).__name__)
    outcome.send(last_word)


def _handlers(reports: int, job: Job, log_dir: str, log_level: int) -> list[logging.Handler]:
    """Where log records go; called in the log server, which has the descriptor `reports`."""
    from torchrunx.utils.log_handling import file_handlers

    die_with_parent()
    connection = Connection(reports, readable=False)
    handlers: list[logging.Handler] = [ReportHandler(connection, job.hosts[0])]
    if log_dir:
        ranks = [devices.ranks for devices in job.devices]
        handlers += file_handlers(list(job.hosts), ranks, log_dir, log_level)
    return handlers


def choose_log_dir(flag: str | None, run: Path) -> str:
    """Folder for the ranks' logs: the variable, else the flag, else inside the run's folder.

    An empty text means none.
    """
    return os.environ.get("TORCHRUNX_LOG_DIR", str(run / "torchrunx") if flag is None else flag)


def _log_level() -> int:
    """Least level of the records in the ranks' logs, as torchrunx has it."""
    name = os.environ.get("TORCHRUNX_LOG_LEVEL", "INFO")
    levels = logging.getLevelNamesMapping()
    if not name.isdigit() and name not in levels:
        raise ConfigError(
            f"TORCHRUNX_LOG_LEVEL is {name!r}; it must be a number or one of {', '.join(levels)}"
        )
    return int(name) if name.isdigit() else levels[name]


def _end(launcher: BaseProcess, grace: float) -> None:
    """Wait for the launcher and what it started; kill what is left after `grace` seconds."""
    session = launcher.pid
    assert session is not None
    launcher.join(grace)
    if launcher.is_alive():
        launcher.kill()
    launcher.join()
    end_session(session, grace)
