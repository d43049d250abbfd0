"""The hosts of a job: their names, their GPUs, and whether ranks can be launched there.

torchrunx starts a process on each host and waits minutes for it, without a word about why it does
not come. So every host is asked first, over the connection that torchrunx will use.
"""

import ctypes
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
from typing import NamedTuple

from simtrain.errors import ConfigError
from simtrain.launch.torchrunx_internals import run_on_host

_PROBE_SECONDS = 45.0  # for all hosts at once
_DRIVER = "libcuda.so.1"
_LIST_GPUS = "from simtrain.launch.hosts import visible_gpus; print('\\n'.join(visible_gpus()))"
_PROBE = """
import json, os, socket, sys
from simtrain.launch.hosts import list_gpus
unreachable = None
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10).close()
except OSError as error:
    unreachable = str(error)
gpus = list_gpus() if sys.argv[3] == "gpus" else []
answer = os.environ.get("CUDA_VISIBLE_DEVICES"), gpus, unreachable
print("\\nsimtrain:" + json.dumps(answer))
"""


class HostGpus(NamedTuple):
    """The GPUs of a host; as text, which of them are visible."""

    variable: str | None
    """``CUDA_VISIBLE_DEVICES`` there; its entries can be indices, UUIDs or MIG names."""
    uuids: Sequence[str]
    """UUIDs of the GPUs that are visible under it."""

    @property
    def entries(self) -> list[str]:
        """Name of each GPU in the variable, of which CUDA stops at the first it cannot find."""
        count = len(self.uuids)
        if self.variable is None:
            return [str(number) for number in range(count)]
        return [entry.strip() for entry in self.variable.split(",") if entry.strip()][:count]

    def __str__(self) -> str:
        variable = "" if self.variable is None else f" (CUDA_VISIBLE_DEVICES={self.variable})"
        last = len(self.entries) - 1
        few = {-1: "no GPU is visible", 0: "the only visible GPU is 0"}
        return few.get(last, f"the visible GPUs are 0 to {last}") + variable


def list_gpus() -> list[str]:
    """UUIDs of the visible GPUs; from now on this process and its children number them in one way.

    CUDA's own order puts the fastest GPU first, nvidia-smi's is that of the bus. A process reads
    the order, and ``CUDA_VISIBLE_DEVICES``, when it first uses CUDA. So another process asks here,
    and this one can still choose its GPU. An order that the user has set stays.
    """
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        return []
    command = [sys.executable, "-c", _LIST_GPUS]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()


def visible_gpus() -> list[str]:
    """UUIDs of the GPUs as CUDA numbers them in this process, which begins to use CUDA by this."""
    driver, count, uuids = ctypes.CDLL(_DRIVER), ctypes.c_int(), []
    if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
        for number in range(count.value):
            device, uuid = ctypes.c_int(), (ctypes.c_ubyte * 16)()
            driver.cuDeviceGet(ctypes.byref(device), number)
            driver.cuDeviceGetUuid(ctypes.byref(uuid), device)
            uuids.append(bytes(uuid).hex())
    return uuids


def probe_hosts(hosts: Sequence[str], ssh_config: str | None, *, list_gpus: bool) -> list[HostGpus]:
    """Ask every host for its GPUs; without `list_gpus` for ``CUDA_VISIBLE_DEVICES`` alone.

    ConfigError if one is named twice, does not answer, lacks this Python, or cannot connect back.
    """
    for host in hosts:
        if hosts.count(host) > 1:
            raise ConfigError(f"--hosts names {host} more than once")
    name = socket.getfqdn()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        fix = f"which does not resolve ({error}); add it, with an address, to /etc/hosts"
        raise ConfigError(f"the hosts find this machine by its name {name!r}, {fix}") from error
    # Tracebacks of SSH would come before the one line that says which host and why.
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    slow = f"cannot be used: no answer within {_PROBE_SECONDS:.0f} s"
    answers: dict[str, HostGpus | str] = dict.fromkeys(hosts, slow)
    with socket.create_server((name, 0)) as listener:
        port, what = str(listener.getsockname()[1]), "gpus" if list_gpus else ""
        probe = _in_this_environment(sys.executable, "-c", _PROBE, name, port, what)

        def ask(host: str) -> None:
            answers[host] = _ask(host, probe, ssh_config)

        threads = [threading.Thread(target=ask, args=(host,), daemon=True) for host in hosts]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + _PROBE_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    for host, answer in answers.items():
        if isinstance(answer, str):
            raise ConfigError(f"host {host} {answer}")
    return [answer for answer in answers.values() if isinstance(answer, HostGpus)]


def _in_this_environment(*command: str) -> str:
    """A shell command that runs `command` in this folder, with these settings of Python."""
    kept = [n for n in os.environ if n in ("PATH", "LD_LIBRARY_PATH") or n.startswith("PYTHON")]
    exports = shlex.join(f"{name}={os.environ[name]}" for name in kept)
    return f"cd {shlex.quote(str(Path.cwd()))} && export {exports} && {shlex.join(command)}"


def _ask(host: str, command: str, ssh_config: str | None) -> HostGpus | str:
    """The host's GPUs, or a text about its problem."""
    try:
        output, errors = run_on_host(command, host, ssh_config)
    except Exception as error:  # noqa: BLE001 - SSH libraries raise many kinds
        lines = str(error).strip().splitlines() or ["no details"]
        return f"cannot be used: {type(error).__name__}: {lines[-1]}"
    for line in output.splitlines():
        if line.startswith("simtrain:"):
            variable, uuids, unreachable = json.loads(line.removeprefix("simtrain:"))
            if unreachable is None:
                return HostGpus(variable, uuids)
            text = f"cannot connect to this machine ({socket.getfqdn()}): {unreachable}"
            return f"{text}; its name must resolve there, and no firewall be between"
    lines = (errors or output).strip().splitlines() or ["the command printed nothing there"]
    return f"cannot be used: {lines[-1]}"
