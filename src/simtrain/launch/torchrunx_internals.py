"""What simtrain needs of torchrunx beyond ``torchrunx.Launcher``, in one place.

tests/launch/test_torchrunx_internals.py fails where a new version of torchrunx differs. torchrunx
takes long to import, and only runs of several ranks need it, so each function imports it.
"""

import logging
import re
import subprocess
import time
from contextlib import nullcontext
from logging.handlers import SocketHandler
from typing import Any

from simtrain.errors import ConfigError

_CONNECT_SECONDS = 20.0


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


def run_on_host(
    command: str, host: str, ssh_config: str | None, *, wait: bool = True
) -> tuple[str, str]:
    """What a shell command prints on a host, to stdout and stderr; nothing without `wait`."""
    from torchrunx.utils.environment import execute_command

    out, err = execute_command(command, host, ssh_config_file=ssh_config, return_stdout_stderr=wait)
    return out, err


def start_agents_by(module: str) -> None:
    """Let launchers in this process start agents by ``python -m <module>``, with arguments."""
    import torchrunx.launcher

    build = torchrunx.launcher.build_launch_command

    def build_launch_command(**arguments: Any) -> str:
        command: str = build(**arguments)
        return command.replace(" -m torchrunx ", f" -m {module} ")

    torchrunx.launcher.build_launch_command = build_launch_command


def log_file_handlers(
    hosts: tuple[str, ...], ranks: list[int], folder: str, level: int
) -> list[logging.Handler]:
    """Handlers that write the log records of each agent and rank to a file of its own."""
    from torchrunx.utils.log_handling import file_handlers

    return list(file_handlers(list(hosts), ranks, folder, level))


def parse_killed(error: str) -> tuple[str, int] | None:
    """Signal and process id, if `error` says that a signal killed a rank."""
    found = re.fullmatch(r"(.*) received by PID (\d+)", error, re.DOTALL)
    return (found[1], int(found[2])) if found else None


def source(record: logging.LogRecord) -> tuple[str | None, int | None, bool]:
    """Host and local rank that a log record comes from, and whether it is a line printed there."""
    fields = record.__dict__
    return fields.get("hostname"), fields.get("local_rank"), record.module == "log_streaming"


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
