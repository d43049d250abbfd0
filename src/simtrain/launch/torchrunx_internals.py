"""What simtrain needs of torchrunx beyond ``torchrunx.Launcher``, in one place.

tests/launch/test_torchrunx_internals.py fails where a new version of torchrunx differs. torchrunx
takes long to import, and only runs of several ranks need it, so each function imports it.
"""

from __future__ import annotations

import logging
import re
import time
from contextlib import nullcontext
from logging.handlers import SocketHandler

_CONNECT_SECONDS = 20.0


def allocated_slurm_hosts() -> list[str]:
    """Names of the hosts of the SLURM allocation; RuntimeError outside of one."""
    from torchrunx.utils.environment import slurm_hosts

    hosts: list[str] = slurm_hosts()
    return hosts


def run_on_host(
    command: str, host: str, ssh_config: str | None, *, wait: bool = True
) -> tuple[str, str]:
    """Run a shell command on a host, by SSH if need be; what it printed to stdout and stderr.

    Without `wait` it returns at once, and what is printed is lost.
    """
    from torchrunx.utils.environment import execute_command

    printed: tuple[str, str] = execute_command(
        command, host, ssh_config_file=ssh_config, return_stdout_stderr=wait
    )
    return printed


def log_file_handlers(
    hosts: tuple[str, ...], ranks: list[int], folder: str, level: int
) -> list[logging.Handler]:
    """Handlers that write the log records of each agent and rank to a file of its own."""
    from torchrunx.utils.log_handling import file_handlers

    handlers: list[logging.Handler] = file_handlers(list(hosts), ranks, folder, level)
    return handlers


def parse_killed(error: str) -> tuple[str, int] | None:
    """Signal and process id, if `error` says that a signal killed a rank."""
    found = re.fullmatch(r"(.*) received by PID (\d+)", error, re.DOTALL)
    return (found[1], int(found[2])) if found else None


def is_printed(record: logging.LogRecord) -> bool:
    """Whether a log record is a line that an agent or a rank printed."""
    return record.module == "log_streaming"


def is_of_rank(record: logging.LogRecord, host: str, local_rank: int) -> bool:
    """Whether a log record is of a rank, and of this one."""
    fields = record.__dict__
    return (fields.get("hostname"), fields.get("local_rank")) == (host, local_rank)


def connect_log_stream() -> None:
    """Connect a rank's log stream, and wait as long as the log server needs for each record.

    torchrunx's handler drops records while it is not connected, and those that the server does not
    take within a second: on a busy machine, or while a terminal is paused.
    """
    for handler in logging.root.handlers:
        if isinstance(handler, SocketHandler):
            with handler.lock or nullcontext():
                deadline = time.monotonic() + _CONNECT_SECONDS
                handler.createSocket()
                while handler.sock is None and time.monotonic() < deadline:
                    time.sleep(0.1)
                    handler.retryTime = None
                    handler.createSocket()
                if handler.sock is not None:
                    handler.sock.settimeout(None)
