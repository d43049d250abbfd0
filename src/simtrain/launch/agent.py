"""The agent of a host, which starts its ranks: ``python -m simtrain.launch.agent ...``.

It is torchrunx's, with its arguments. From before torch is imported, this one ignores signals that
ask to stop, which SLURM sends to all processes of a job, and which would end the ranks unsaved; and
it ends if it loses the launcher, which it finds by the log server. Its ranks end with it.
"""

import os
import runpy
import socket
import sys
import threading
import time

from simtrain.launch.private import LOOPBACK, show_key
from simtrain.launch.processes import ignore_stop_signals
from simtrain.launch.torchrunx_internals import prepare_agent

# How many seconds it may take:
_CONNECT_SECONDS = 20.0  # the log server to listen, on this machine
_REMOTE_CONNECT_SECONDS = 4.0  # the same elsewhere, where only this ends the agent
_RANKS_END_SECONDS = 12.0  # ranks to end after one has failed; those that start ignore SIGTERM
_END_SECONDS = 4.0  # the command to end the job by itself, and say why


def main() -> None:
    """Run torchrunx's agent."""
    ignore_stop_signals()
    flags = dict(zip(sys.argv[1::2], sys.argv[2::2], strict=True))
    server = flags["--launcher-hostname"], int(flags["--logger-port"])
    threading.Thread(target=_end_without, args=(server,), daemon=True).start()
    prepare_agent(_RANKS_END_SECONDS)
    runpy.run_module("torchrunx", run_name="__main__", alter_sys=True)


def _end_without(server: tuple[str, int]) -> None:
    """End this process once the server does not hold the other end of a connection any more."""
    seconds = _CONNECT_SECONDS if server[0] == LOOPBACK else _REMOTE_CONNECT_SECONDS
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(server, timeout=seconds) as connection:
                show_key(connection)
                connection.recv(1)
            time.sleep(_END_SECONDS)
            break
        except OSError:
            time.sleep(0.1)
    os._exit(1)


if __name__ == "__main__":
    main()
