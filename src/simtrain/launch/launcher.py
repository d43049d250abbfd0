"""Several ranks, through torchrunx: start them, show what rank 0 shows, end all of them.

Four kinds of processes make up a job of several ranks:

  command ── launcher ── log server
                └─────── agent of each host ── its ranks

The command forks the launcher, which runs ``torchrunx.Launcher`` in a session of its own. So Ctrl-C
in a terminal reaches the command alone, which asks rank 0 to stop; and in the end the command knows
which processes must be gone, and sees to it. If the command is killed, each process ends with the
one that it needs. Signals that ask to stop may also come to all processes at once: the command and
the ranks act on them, and the others ignore them.
"""

import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, TypeVar, cast

from simtrain.errors import ConfigError, DivergenceError, RankError
from simtrain.launch.events import (
    EventHandler,
    Heartbeat,
    RankFailed,
    RankFinished,
    RankStarted,
    RankWatch,
    StopReceived,
)
from simtrain.launch.plan import Job
from simtrain.launch.private import ONLY_LOOPBACK, job_folder, private_folder
from simtrain.launch.processes import (
    STOP_SIGNALS,
    StopSignals,
    die_with_parent,
    end_session,
    ignore_stop_signals,
)
from simtrain.launch.rank_process import RankProgram
from simtrain.launch.torchrunx_internals import (
    parse_killed,
    prepare_launcher,
    run_on_host,
)

ResultT = TypeVar("ResultT")

_NAME, _AGENT = "simtrain-launcher", "simtrain.launch.agent"
_VARIABLES = ("MUJOCO*", "WANDB*", "SIMTRAIN*", "WARP*", "OMP*", "GOMP*", "GLOO*")
_OUT_OF_MEMORY = "SIGKILL often means that the machine ran out of memory"
# How many seconds it may take:
_END_SECONDS = 5.0  # processes to go when their work is done
_REMOTE_END_SECONDS = 60.0  # those on other hosts, which only torchrunx can end
_FAILURE_SECONDS = 5.0  # torchrunx to end a job in which a rank failed
_PEER_FAILURE_SECONDS = 60.0  # the same while it has yet to report the end of a lost rank
_REMOTE_PEER_FAILURE_SECONDS = 15.0  # if it may never, for the rank's host may be down
_LAUNCHER_SECONDS = 3.0  # the launcher to give its result once it has ended the log server


def launch_ranks(
    job: Job,
    function: Callable[..., ResultT],
    *args: Any,
    receive: Callable[[object], None],
    stop: StopSignals,
    log_dir: str,
    shared: Path | None = None,
) -> ResultT:
    """Run ``function(rank, show, stop, *args)`` as every rank of a job; rank 0's result.

    `function` is importable by its name, and `args` are pickled. `show` hands what rank 0 gives it
    to `receive`, which also gets the lines that rank 0 prints. Rank 0 is interrupted once `stop`
    has received a signal, and `stop` receives those of ranks. What ranks print goes to files in
    `log_dir`, unless that is empty. `shared` is a folder that all hosts see, if there are several.
    No process of the job is left in the end.

    ConfigError if a rank found a mistake in the configuration, DivergenceError if the ranks found
    together that training cannot go on, RankError if a rank failed or was killed.
    """
    events, event_end = multiprocessing.Pipe(duplex=False)
    outcome, outcome_end = multiprocessing.Pipe(duplex=False)
    handlers = partial(_log_handlers, event_end.fileno(), job, log_dir, check_log_level())
    pipes = events, event_end, outcome_end
    folder = private_folder(None if job.on_one_machine else shared)
    with folder, tempfile.TemporaryFile() as output:
        launcher = multiprocessing.get_context("fork").Process(
            target=_run_launcher,
            args=(RankProgram(job, function, args), handlers, pipes, output),
            name=_NAME,
        )
        # Until the launcher ignores signals, one to all processes must not count as two.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            launcher.start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        event_end.close()
        outcome_end.close()
        monitor = _Monitor(job, launcher, events, outcome, receive, stop)
        grace = 0.0
        try:
            monitor.wait()
            if monitor.is_finished:
                stop.cancel_deadline()
            if monitor.is_finished or monitor.outcome not in (None, _NO_LAUNCHER):
                grace = _END_SECONDS if job.on_one_machine else _REMOTE_END_SECONDS
        finally:
            launcher.join(grace)
            launcher.kill()
            launcher.join()
            assert launcher.pid is not None
            end_session(launcher.pid, grace)
        monitor.read_events()
        output.seek(0)
        return cast(ResultT, monitor.result(output.read().decode(errors="replace"), log_dir))


def exit_with_ranks(code: int) -> NoReturn:
    """Kill all processes of a job that this process launched, and end it, from any thread."""
    for child in multiprocessing.active_children():
        if child.name == _NAME and child.pid is not None:
            end_session(child.pid, 0.0)
    os._exit(code)


def choose_log_dir(flag: str | None, run: Path) -> str:
    """Folder for the ranks' logs, empty for none: the variable's, the flag's, or inside `run`."""
    return os.environ.get("TORCHRUNX_LOG_DIR", str(run / "torchrunx") if flag is None else flag)


def check_log_level() -> int:
    """Least level in the ranks' logs, ``TORCHRUNX_LOG_LEVEL``; ConfigError if it is none."""
    name = os.environ.get("TORCHRUNX_LOG_LEVEL", "INFO")
    levels = logging.getLevelNamesMapping()
    if not name.isdigit() and name not in levels:
        text = f"TORCHRUNX_LOG_LEVEL is {name!r}; it must be a number or one of"
        raise ConfigError(f"{text} {', '.join(levels)}")
    return int(name) if name.isdigit() else levels[name]


class _Outcome(NamedTuple):
    """How the launcher's work ended: by an error of torchrunx's, empty if all went well."""

    error: str
    agent_failed: bool = False  # whether the error is that an agent is gone


_NO_LAUNCHER = _Outcome(f"the launching process on this machine is gone; {_OUT_OF_MEMORY}")


def _run_launcher(
    program: RankProgram,
    handlers: Callable[[], list[logging.Handler]],
    pipes: tuple[Connection, Connection, Connection],
    output: IO[bytes],
) -> None:
    """Run the job in the launcher's process, and send its `_Outcome`."""
    os.setsid()
    die_with_parent()
    ignore_stop_signals()
    events, event_end, outcome = pipes
    events.close()  # so that the command alone can read them
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        stream.flush()
        os.dup2(output.fileno(), number)

    import torchrunx

    job = program.job
    prepare_launcher(_AGENT, one_machine=job.on_one_machine)
    if job.on_one_machine:
        # Temporary files that killed ranks leave behind are removed with the job's own folder.
        os.environ.update(ONLY_LOOPBACK, TMPDIR=str(job_folder()))
    launcher = torchrunx.Launcher(
        hostnames=list(job.hosts),
        workers_per_host=[devices.ranks for devices in job.devices],
        ssh_config_file=job.ssh_config,
        # The ranks make their process group themselves: with a deadline, after each has the
        # CUDA_VISIBLE_DEVICES of its host, and with Gloo beside NCCL.
        backend=None,
        # For a busy machine. An agent that died is noticed at once, by its closed connection.
        agent_timeout=300,
        # On a command line, which every user of a host can read; on one machine they are inherited.
        copy_env_vars=()
        if job.on_one_machine
        else (*torchrunx.DEFAULT_ENV_VARS_FOR_COPY, *_VARIABLES),
        # Agents are to ignore the others; they end with their ranks, or if they lose the launcher.
        extra_env_vars={"TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGQUIT"},
    )
    launcher.set_logging_handlers(handlers)
    # The first fork is the log server's. It alone keeps the pipe, so that its end is noticed.
    os.register_at_fork(after_in_parent=event_end.close)
    result = _Outcome("")
    try:
        launcher.run(program)
    except Exception as error:  # noqa: BLE001 - torchrunx passes on whatever ended the job
        agent_failed = isinstance(error, torchrunx.AgentFailedError)
        result = _Outcome(str(error) or type(error).__name__, agent_failed)
    outcome.send(result)


def _log_handlers(events: int, job: Job, log_dir: str, log_level: int) -> list[logging.Handler]:
    """Handlers of log records; called in the log server, which has the descriptor `events`."""
    from torchrunx.utils.log_handling import file_handlers

    die_with_parent()
    ranks = [devices.ranks for devices in job.devices]
    files = file_handlers(list(job.hosts), ranks, log_dir, log_level) if log_dir else []
    return [EventHandler(Connection(events, readable=False), job.hosts[0]), *files]


@dataclass
class _Monitor:
    """Follows a running job by the events of its ranks."""

    job: Job
    launcher: BaseProcess
    events: Connection  # from the log server, which alone has the other end
    outcomes: Connection  # from the launcher
    receive: Callable[[object], None]
    stop: StopSignals
    started: dict[int, RankStarted] = field(default_factory=dict)
    finished: dict[int, RankFinished] = field(default_factory=dict)
    failures: list[RankFailed] = field(default_factory=list)
    first_failure_time: float | None = None
    log_server_end_time: float | None = None  # after the end of all ranks, unless it was killed
    outcome: _Outcome | None = None
    interrupted: bool = False
    rank_hangs: bool = False

    def __post_init__(self) -> None:
        self._watch = RankWatch(self.job, self.receive)

    @property
    def is_finished(self) -> bool:
        """Whether every rank's function returned."""
        return len(self.finished) == self.job.world_size

    def wait(self) -> None:
        """Pass on the output of rank 0 until the job is over; interrupt it once it is to stop."""
        while not self._is_over():
            events = [self.events] if self.log_server_end_time is None else []
            ready = wait([self.outcomes, self.launcher.sentinel, *events], timeout=0.2)
            if self.events in ready:
                self.read_events()
            if self.outcomes in ready:
                self.outcome = _receive(self.outcomes) or _NO_LAUNCHER
            if not self.failures and self.log_server_end_time is None:
                self.rank_hangs = self._watch.check(self.started, self.finished)
            if self.stop() and not self.interrupted and 0 in self.started:
                self.interrupted = True
                for ranks in self.job.member_ranks():
                    if ranks[0] in self.started:
                        self._interrupt(self.started[ranks[0]])

    def result(self, output: str, log_dir: str) -> Any:
        """Rank 0's result, or an error; `output` is that of launcher and starting agents."""
        late = [f"{who} {what}" for who, what in self._watch.late.items()]
        if self.rank_hangs:
            raise RankError(f"{'; '.join(late)} (--collective-timeout)")
        failed = {failed.cause: failed for failed in reversed(self.failures)}
        if "config" in failed:
            raise ConfigError(failed["config"].text)
        if failure := failed.get("exception") or failed.get("simulation"):
            raise RankError(str(failure))
        if "divergence" in failed:
            raise DivergenceError(failed["divergence"].text)
        if "job" in failed:
            raise RankError("; ".join([*late, failed["job"].text]))
        if self.is_finished:
            return self.finished[0].result
        gone = "the log server is gone, the process on this machine through which ranks report"
        error, agent_failed = self.outcome or _Outcome("")
        reason, pid = parse_killed(error) or ("", 0)
        if pid:
            names = {rank.pid: rank.name for rank in self.started.values()}
            name = names.get(pid, "a rank that was starting")
            raise RankError(f"{name} was killed: {reason}, process {pid}; {_OUT_OF_MEMORY}")
        if agent_failed:
            error, output = self._failed_agent(), "" if self.started else output
        elif self.failures:
            raise RankError(str(self.failures[0]))
        error = error or f"{gone}; {_OUT_OF_MEMORY}"
        logs = f"; the ranks' logs are in {log_dir}" if log_dir else ""
        raise RankError("\n".join([f"{error}{logs}", *output.strip().splitlines()[-20:]]))

    def read_events(self) -> None:
        """Read the events that ranks have sent since."""
        while self.log_server_end_time is None and self.events.poll():
            match _receive(self.events):
                case None:
                    self.log_server_end_time = time.monotonic()
                case RankStarted() as event:
                    self.started[event.rank] = event
                case Heartbeat() as event:
                    self._watch.hear(event)
                case RankFinished() as event:
                    self.finished[event.rank] = event
                case RankFailed() as event:
                    self.failures.append(event)
                    self.first_failure_time = self.first_failure_time or time.monotonic()
                case StopReceived() as event:
                    if not self.failures and not self.stop():
                        self.stop.receive(event.signal)
                case event:
                    self.receive(event)

    def _is_over(self) -> bool:
        if self.is_finished or self.outcome is not None or self.rank_hangs:
            return True
        seconds = _FAILURE_SECONDS
        if all(failed.cause == "peer" for failed in self.failures):
            local = self.job.on_one_machine
            seconds = _PEER_FAILURE_SECONDS if local else _REMOTE_PEER_FAILURE_SECONDS
        limits = ((self.log_server_end_time, _LAUNCHER_SECONDS), (self.first_failure_time, seconds))
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

    def _interrupt(self, rank: RankStarted) -> None:
        """Interrupt the first rank of a member, which tells its others after an iteration."""
        if rank.host == "localhost":
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGINT)
        else:
            command = f"kill -INT {rank.pid} 2>/dev/null; true"
            kill = partial(run_on_host, command, rank.host, self.job.ssh_config)
            threading.Thread(target=kill, daemon=True).start()


def _receive(connection: Connection) -> Any:
    """The next object, or None at the end."""
    with suppress(EOFError, OSError):
        return connection.recv()
