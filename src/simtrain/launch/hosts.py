"""The hosts of a job: their names, and whether ranks can be launched there.

torchrunx starts a process on each host and waits minutes for it, without a word about why it does
not come. So every host is asked first, over the connection that torchrunx will use.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simtrain.errors import ConfigError
from simtrain.launch.torchrunx_internals import allocated_slurm_hosts, run_on_host

_PROBE_SECONDS = 45.0
"""How long hosts have to answer, all at once."""

_PROBE = """
import json, os, socket, sys
import simtrain
answer = {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "gpus": 0, "unreachable": None}
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10).close()
except OSError as error:
    answer["unreachable"] = str(error)
if sys.argv[3] == "gpus":
    import torch
    answer["gpus"] = torch.cuda.device_count()
print("\\nsimtrain:" + json.dumps(answer))
"""


def slurm_hosts() -> tuple[str, ...]:
    """Names of the hosts of the present SLURM allocation; ConfigError if there is none."""
    try:
        return tuple(allocated_slurm_hosts())
    except RuntimeError as error:
        raise ConfigError(
            "--hosts slurm is for use inside a SLURM allocation (salloc, sbatch): "
            "SLURM_JOB_ID is not set"
        ) from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(f"--hosts slurm: `scontrol show hostnames` failed: {error}") from error


def check_own_name() -> None:
    """Raise ConfigError if this machine's name, by which ranks call back, does not resolve."""
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        raise ConfigError(
            f"several ranks find this machine by its name {name!r}, which does not resolve "
            f"({error}); add a line `127.0.0.1 {name}` to /etc/hosts"
        ) from error


def probe_hosts(
    hosts: Sequence[str], ssh_config: str | None, *, count_gpus: bool
) -> list[tuple[str | None, int]]:
    """Ask every host for its ``CUDA_VISIBLE_DEVICES``, and its number of GPUs if `count_gpus`.

    Raises:
        ConfigError: a host is named twice, does not answer, lacks this Python environment, or
            cannot reach this machine; names the host and the reason.
    """
    for host in hosts:
        if hosts.count(host) > 1:
            raise ConfigError(f"--hosts names {host} more than once")
    if ssh_config is not None and not Path(ssh_config).is_file():
        raise ConfigError(f"--ssh-config {ssh_config} is not a file")
    check_own_name()
    answers: dict[str, dict[str, Any] | str] = {}
    with socket.create_server((socket.getfqdn(), 0)) as listener:
        command = _probe_command(listener.getsockname()[1], count_gpus)

        def ask(host: str) -> None:
            answers[host] = _ask(host, command, ssh_config)

        threads = [threading.Thread(target=ask, args=(host,), daemon=True) for host in hosts]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + _PROBE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    found: list[tuple[str | None, int]] = []
    for host in hosts:
        answer = answers.get(host, f"no answer within {_PROBE_SECONDS:.0f} s")
        if isinstance(answer, str):
            raise ConfigError(f"host {host} cannot be used: {answer}")
        if answer["unreachable"] is not None:
            raise ConfigError(
                f"host {host} cannot connect to this machine ({socket.getfqdn()}): "
                f"{answer['unreachable']}; its name must resolve there, and no firewall be between"
            )
        found.append((answer["visible"], answer["gpus"]))
    return found


def _probe_command(port: int, count_gpus: bool) -> str:
    """The probe as a shell command, in this folder and with these settings of Python."""
    exports = [
        f"{name}={value}"
        for name, value in os.environ.items()
        if name in ("PATH", "LD_LIBRARY_PATH") or name.startswith("PYTHON")
    ]
    gpus = "gpus" if count_gpus else ""
    probe = (sys.executable, "-c", _PROBE, socket.getfqdn(), str(port), gpus)
    return (
        f"cd {shlex.quote(str(Path.cwd()))} && export {shlex.join(exports)} && {shlex.join(probe)}"
    )


def _ask(host: str, command: str, ssh_config: str | None) -> dict[str, Any] | str:
    """The host's answer, or why there is none."""
    # Its tracebacks would come before the one line that says which host and why.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    try:
        output, errors = run_on_host(command, host, ssh_config)
    except Exception as error:  # noqa: BLE001 - SSH libraries raise many kinds
        lines = str(error).strip().splitlines()
        return f"{type(error).__name__}: {lines[-1] if lines else 'no details'}"
    for line in output.splitlines():
        if line.startswith("simtrain:"):
            answer: dict[str, Any] = json.loads(line.removeprefix("simtrain:"))
            return answer
    lines = (errors or output).strip().splitlines()
    return lines[-1] if lines else "the command printed nothing there"
