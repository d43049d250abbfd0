"""The parts of torchrunx that simtrain needs beyond ``torchrunx.Launcher``, in one place.

tests/launch/test_torchrunx_internals.py fails where a new version of torchrunx differs. torchrunx
takes long to import, and only runs of several ranks need it, so each function imports it.
"""

import logging
import re
import socket
import subprocess
import time
from logging.handlers import SocketHandler
from types import SimpleNamespace
from typing import Any, TypeVar

from simtrain.errors import ConfigError
from simtrain.launch.private import (
    LOOPBACK,
    address_towards,
    admit,
    job_folder,
    join_process_group,
    show_key,
)

_CONNECT_SECONDS = 20.0
_ResultT = TypeVar("_ResultT")


def slurm_hosts() -> tuple[str, ...]:
    """Names of the hosts of the present SLURM allocation; ConfigError if there is none."""
    from torchrunx.utils.environment import slurm_hosts

    try:
        return tuple(slurm_hosts())
    except RuntimeError as error:
        text = "--hosts slurm is for use inside a SLURM allocation (salloc, sbatch)"
        raise ConfigError(f"{text}: SLURM_JOB_ID is not set") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"--hosts slurm: `scontrol show hostnames` failed: {error}") from error


def run_on_host(command: str, host: str, ssh_config: str | None) -> tuple[str, str]:
    """Run a shell command on a host; its output on stdout and on stderr."""
    from torchrunx.utils.environment import execute_command

    out, err = execute_command(command, host, ssh_config_file=ssh_config, return_stdout_stderr=True)
    return out, err


def parse_killed(error: str) -> tuple[str, int] | None:
    """Signal and process id, if `error` says that a signal killed a rank."""
    match = re.fullmatch(r"(.*) received by PID (\d+)", error, re.DOTALL)
    return (match[1], int(match[2])) if match else None


def source(record: logging.LogRecord) -> tuple[str | None, int | None, bool]:
    """Host and local rank that a log record comes from, and whether it is a line printed there."""
    fields = record.__dict__
    return fields.get("hostname"), fields.get("local_rank"), record.module == "log_streaming"


def prepare_launcher(agent: str, *, one_machine: bool) -> None:
    """Prepare this process for ``torchrunx.Launcher.run`` of a job.

    Its agents run the module `agent`, only the job's processes can connect, and on one machine it
    listens on loopback alone.
    """
    from torchrunx import launcher
    from torchrunx.utils import log_streaming

    build = launcher.build_launch_command

    def build_launch_command(**arguments: Any) -> str:
        command: str = build(**arguments)
        return command.replace(" -m torchrunx ", f" -m {agent} ")

    class LogServer(log_streaming._LogRecordSocketReceiver):  # type: ignore[misc]
        """torchrunx's, which unpickles what it receives; only the job's processes are admitted."""

        request_queue_size = 128

        def finish_request(self, request: Any, client_address: Any) -> None:
            if admit(request):  # in a thread of the connection
                super().finish_request(request, client_address)

    launcher.build_launch_command = build_launch_command
    launcher.LauncherAgentGroup = _agent_group()
    if one_machine:
        launcher.socket = SimpleNamespace(getfqdn=lambda: LOOPBACK)
    log_streaming._LogRecordSocketReceiver = LogServer


def prepare_agent(end_seconds: float) -> None:
    """Prepare this process for torchrunx's agent, which connects to the job's processes alone.

    When a rank has failed, it kills those that have not ended after `end_seconds`. The empty files
    that torch keeps for each rank lie in the job's folder, and are gone with it.
    """
    from torch.multiprocessing.spawn import ProcessContext
    from torchrunx import agent
    from torchrunx.utils import log_streaming

    log_streaming.SocketHandler = LogStream
    agent.LauncherAgentGroup = _agent_group()
    agent.worker_entrypoint = run_rank
    agent.tempfile = SimpleNamespace(mkdtemp=job_folder)
    context: Any = ProcessContext
    wait = context._join_procs_with_timeout
    context._join_procs_with_timeout = lambda ranks, limit: wait(ranks, min(limit, end_seconds))


def run_rank(arguments: bytes) -> object:
    """Run torchrunx's program of a rank in this process, which an agent has spawned."""
    from torchrunx.utils import log_streaming
    from torchrunx.worker import worker_entrypoint

    log_streaming.SocketHandler = LogStream
    return worker_entrypoint(arguments)


class LogStream(SocketHandler):
    """Sends log records to a server that knows the job's key, and loses none.

    logging's own drops records while it is not connected, and those that the server does not take
    within a second: on a busy machine, or while a terminal is paused.
    """

    _seconds = _CONNECT_SECONDS  # to connect; once the server is gone, nobody waits for it

    def makeSocket(self, timeout: float = 1.0) -> socket.socket:
        """Connect; OSError if there is no such server."""
        deadline, self._seconds = time.monotonic() + self._seconds, 0.0
        while True:
            connection = None
            try:
                connection = super().makeSocket(timeout)
                show_key(connection)
                return connection
            except OSError:
                if connection is not None:
                    connection.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


def _agent_group() -> type:
    from torchrunx.utils.comm import AgentPayload, LauncherAgentGroup

    class AgentGroup(LauncherAgentGroup[_ResultT]):  # type: ignore[misc]
        """torchrunx's, of processes that know the job's key, on the network of the launcher."""

        group = None  # the default one

        def __post_init__(self) -> None:
            join_process_group(
                "agents",
                self.rank,
                self.world_size,
                (self.launcher_hostname, self.launcher_port),
                wait_seconds=self.agent_timeout,
                timeout=self.agent_timeout,
            )

        def sync_payloads(self, payload: Any) -> Any:
            if isinstance(payload, AgentPayload):
                # Rank 0 listens at the address that its host is given here, and at no other.
                payload.hostname = address_towards(self.launcher_hostname)
            return super().sync_payloads(payload)

    return AgentGroup
