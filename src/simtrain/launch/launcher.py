"""Several ranks, through torchrunx: start them, show what rank 0 shows, end all of them.

Four kinds of processes make up a job of several ranks:

  command ── launcher ── log server
                └─────── agent of each host ── its ranks

The command forks the launcher, which runs ``torchrunx.Launcher`` in a session of its own. So Ctrl-C
in a terminal reaches the command alone, which asks rank 0 to stop; and when the launcher is done or
something went wrong, the command knows which processes must be gone, and sees to it. Signals that
ask to stop may also come to all processes at once: the command and the ranks act on them, and the
others ignore them.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any, TypeVar

from simtrain.errors import ConfigError
from simtrain.launch.events import EventHandler
from simtrain.launch.monitor import JobMonitor, LauncherResult
from simtrain.launch.plan import Job
from simtrain.launch.processes import die_with_parent, end_session
from simtrain.launch.rank_process import RankFunction, RankProgram
from simtrain.launch.stop import StopSignals, ignore_stop_signals, stop_signals_blocked
from simtrain.launch.torchrunx_internals import log_file_handlers

ResultT = TypeVar("ResultT")

COPIED_VARIABLES = ("MUJOCO*", "WANDB*", "SIMTRAIN*", "WARP*", "OMP*", "GOMP*", "GLOO*")
"""Variables that travel to the ranks besides those that torchrunx takes along."""

_NAME = "simtrain-launcher"
_END_SECONDS = 5.0
"""How long processes may take to go when their work is done."""
_REMOTE_END_SECONDS = 60.0
"""The same with processes on other hosts, which only torchrunx can end."""


def launch_ranks(
    job: Job,
    function: RankFunction[ResultT],
    *args: Any,
    receive: Callable[[object], None],
    stop: StopSignals,
    log_dir: str,
) -> ResultT:
    """Run ``function(rank, show, stop, *args)`` as every rank of a job; rank 0's result.

    Args:
        job: the ranks.
        function: run by each rank.
        args: pickled for the ranks.
        receive: called with everything that rank 0 shows, and with the lines that it prints.
        stop: once it has received a signal rank 0 is interrupted; it receives a rank's signal too.
        log_dir: folder for what the ranks print; empty for none.

    Raises:
        ConfigError: a rank found a mistake in the configuration.
        DivergenceError: the ranks found together that training cannot go on.
        RankError: a rank failed, or was killed.

    No process of the job is left when it returns or raises.
    """
    events, event_end = multiprocessing.Pipe(duplex=False)
    outcome, outcome_end = multiprocessing.Pipe(duplex=False)
    handlers = partial(_log_handlers, event_end.fileno(), job, log_dir, check_log_level())
    with tempfile.TemporaryFile() as output:
        launcher = multiprocessing.get_context("fork").Process(
            target=_run_launcher,
            args=(RankProgram(job, function, args), handlers, event_end, outcome_end, output),
            name=_NAME,
        )
        # Until the launcher ignores signals, one to all processes must not count as two.
        with stop_signals_blocked():
            launcher.start()
        event_end.close()
        outcome_end.close()
        monitor = JobMonitor(job, launcher, events, outcome, receive, stop)
        grace = 0.0
        try:
            monitor.wait()
            if monitor.is_finished:
                stop.cancel_deadline()
            if monitor.is_finished or monitor.launcher_result:
                grace = _END_SECONDS if job.hosts == ("localhost",) else _REMOTE_END_SECONDS
        finally:
            _end(launcher, grace)
        monitor.read_events()
        output.seek(0)
        result: ResultT = monitor.result(output.read().decode(errors="replace"), log_dir)
        return result


def end_launched_ranks() -> None:
    """Kill all processes of a job that this process launched; from another thread, in distress."""
    for child in multiprocessing.active_children():
        if child.name == _NAME and child.pid is not None:
            end_session(child.pid, 0.0)


def choose_log_dir(flag: str | None, run: Path) -> str:
    """Folder for the ranks' logs: the variable, else the flag, else inside the run's folder.

    An empty text means none.
    """
    return os.environ.get("TORCHRUNX_LOG_DIR", str(run / "torchrunx") if flag is None else flag)


def check_log_level() -> int:
    """Least level in the ranks' logs, ``TORCHRUNX_LOG_LEVEL``; ConfigError if it is none."""
    name = os.environ.get("TORCHRUNX_LOG_LEVEL", "INFO")
    levels = logging.getLevelNamesMapping()
    if not name.isdigit() and name not in levels:
        raise ConfigError(
            f"TORCHRUNX_LOG_LEVEL is {name!r}; it must be a number or one of {', '.join(levels)}"
        )
    return int(name) if name.isdigit() else levels[name]


def _run_launcher(
    program: RankProgram,
    handlers: Callable[[], list[logging.Handler]],
    event_end: Connection,
    outcome: Connection,
    output: IO[bytes],
) -> None:
    """Run the job in the launcher's process, and send how it ended."""
    os.setsid()
    die_with_parent()
    ignore_stop_signals()
    sys.stdout.flush()
    sys.stderr.flush()
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)

    import torchrunx

    job = program.job
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
        # Agents would handle the signals that they are to ignore. They end with their ranks, or
        # when they lose the launcher.
        extra_env_vars={"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGHUP,SIGQUIT"},
    )
    launcher.set_logging_handlers(handlers)
    # The first fork is the log server's. It alone keeps the pipe, so that its end is noticed.
    os.register_at_fork(after_in_parent=event_end.close)
    try:
        launcher.run(program)
    except Exception as error:  # noqa: BLE001 - torchrunx passes on whatever ended the job
        agent_failed = isinstance(error, torchrunx.AgentFailedError)
        outcome.send(LauncherResult(str(error) or type(error).__name__, agent_failed))
    else:
        outcome.send(LauncherResult())


def _log_handlers(events: int, job: Job, log_dir: str, log_level: int) -> list[logging.Handler]:
    """Handlers of log records; called in the log server, which has the descriptor `events`."""
    die_with_parent()
    handlers: list[logging.Handler] = [
        EventHandler(Connection(events, readable=False), job.hosts[0])
    ]
    if log_dir:
        ranks = [devices.ranks for devices in job.devices]
        handlers += log_file_handlers(job.hosts, ranks, log_dir, log_level)
    return handlers


def _end(launcher: BaseProcess, grace: float) -> None:
    """Wait for the launcher and what it started; kill what is left after `grace` seconds."""
    session = launcher.pid
    assert session is not None
    launcher.join(grace)
    if launcher.is_alive():
        launcher.kill()
    launcher.join()
    end_session(session, grace)
