"""The hosts of a job: their names, and whether ranks can be launched there.

torchrunx starts a process on each host and waits minutes for it, without a word about why it does
not come. So every host is asked first, over the connection that torchrunx will use.
"""

import json
import logging
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from simtrain.errors import ConfigError
from simtrain.launch.torchrunx_internals import run_on_host

_PROBE_SECONDS = 45.0  # for all hosts at once
_PROBE = """
import json, os, socket, sys
import simtrain
gpus, unreachable = 0, None
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10).close()
except OSError as error:
    unreachable = str(error)
if sys.argv[3] == "gpus":
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    import torch
    gpus = torch.cuda.device_count()
answer = os.environ.get("CUDA_VISIBLE_DEVICES"), gpus, unreachable
print("\\nsimtrain:" + json.dumps(answer))
"""


def probe_hosts(
    hosts: Sequence[str], ssh_config: str | None, *, count_gpus: bool
) -> list[tuple[str | None, int]]:
    """Ask every host for its ``CUDA_VISIBLE_DEVICES``, and its number of GPUs if `count_gpus`.

    ConfigError if one is named twice, or has no answer, not this Python, or no way to this machine.
    """
    for host in hosts:
        if hosts.count(host) > 1:
            raise ConfigError(f"--hosts names {host} more than once")
    if ssh_config is not None and not Path(ssh_config).is_file():
        raise ConfigError(f"--ssh-config {ssh_config} is not a file")
    _check_own_name()
    answers: dict[str, tuple[str | None, int] | str] = {}
    with socket.create_server((socket.getfqdn(), 0)) as listener:
        port, what = str(listener.getsockname()[1]), "gpus" if count_gpus else ""
        probe = _in_this_environment(sys.executable, "-c", _PROBE, socket.getfqdn(), port, what)

        def ask(host: str) -> None:
            answers[host] = _ask(host, probe, ssh_config)

        threads = [threading.Thread(target=ask, args=(host,), daemon=True) for host in hosts]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + _PROBE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    found = []
    for host in hosts:
        answer = answers.get(host, f"cannot be used: no answer within {_PROBE_SECONDS:.0f} s")
        if isinstance(answer, str):
            raise ConfigError(f"host {host} {answer}")
        found.append(answer)
    return found


def _check_own_name() -> None:
    """Raise ConfigError if this machine's name, by which hosts call back, does not resolve."""
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        fix = f"which does not resolve ({error}); add it, with an address, to /etc/hosts"
        raise ConfigError(f"the hosts find this machine by its name {name!r}, {fix}") from error


def _in_this_environment(*command: str) -> str:
    """A shell command that runs `command` in this folder, with these settings of Python."""
    kept = [n for n in os.environ if n in ("PATH", "LD_LIBRARY_PATH") or n.startswith("PYTHON")]
    exports = [f"{name}={os.environ[name]}" for name in kept]
    folder = shlex.quote(str(Path.cwd()))
    return f"cd {folder} && export {shlex.join(exports)} && {shlex.join(command)}"


def _ask(host: str, command: str, ssh_config: str | None) -> tuple[str | None, int] | str:
    """The host's ``CUDA_VISIBLE_DEVICES`` and number of GPUs, or what is wrong with it."""
    # Its tracebacks would come before the one line that says which host and why.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    try:
        output, errors = run_on_host(command, host, ssh_config)
    except Exception as error:  # noqa: BLE001 - SSH libraries raise many kinds
        lines = str(error).strip().splitlines() or ["no details"]
        return f"cannot be used: {type(error).__name__}: {lines[-1]}"
    for line in output.splitlines():
        if line.startswith("simtrain:"):
            visible, gpus, unreachable = json.loads(line.removeprefix("simtrain:"))
            if unreachable is None:
                return visible, gpus
            text = f"cannot connect to this machine ({socket.getfqdn()}): {unreachable}"
            return f"{text}; its name must resolve there, and no firewall be between"
    lines = (errors or output).strip().splitlines() or ["the command printed nothing there"]
    return f"cannot be used: {lines[-1]}"
