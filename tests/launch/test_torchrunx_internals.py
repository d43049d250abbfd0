"""Fails where a new version of torchrunx is not what simtrain takes it for."""

import os
import signal
import subprocess
import sys

from torch.distributed.elastic.multiprocessing.api import RunProcsResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torchrunx.utils.comm import AgentStatus

from simtrain.launch.torchrunx_internals import parse_killed, run_on_host, slurm_hosts

OF_A_RANK = """
import logging, pathlib, socket, sys, threading
from torchrunx.utils import log_streaming
from simtrain.launch.private import admit, private_folder
from simtrain.launch.torchrunx_internals import prepare_agent, source

admitted, printed = threading.Event(), threading.Event()

def serve():
    with socket.create_server(("127.0.0.1", port)) as server:
        if admit(server.accept()[0]):
            admitted.set()

class Handler(logging.Handler):
    def emit(self, record):
        facts.write(f"{record.getMessage()}: {source(record)}\\n")
        if record.getMessage() == "a line":
            printed.set()

facts = open(sys.argv[1], "w")
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
prepare_agent(1.0)
log_streaming.log_records_to_socket("node", 1, "127.0.0.1", port)
(stream,) = logging.root.handlers
threading.Timer(0.5, serve).start()  # the server of a busy machine begins to listen late
with private_folder(pathlib.Path(sys.argv[2])):
    logging.getLogger("library").info("logged")
    assert admitted.wait(20.0)
facts.write(f"connected: {stream.sock is not None} {stream.sock.gettimeout()}\\n")
logging.root.handlers = [Handler()]
log_streaming.redirect_stdio_to_logger(logging.getLogger())
logging.getLogger("library").info("logged")
print("a line", flush=True)
assert printed.wait(20.0)
facts.close()
"""


def test_the_log_records_of_a_rank(tmp_path):
    facts = tmp_path / "facts"
    command = [sys.executable, "-c", OF_A_RANK, str(facts), str(tmp_path)]
    subprocess.run(command, check=True, timeout=200)
    assert facts.read_text().splitlines() == [
        "connected: True None",
        "logged: ('node', 1, False)",
        "a line: ('node', 1, True)",
    ]


def test_the_error_of_a_killed_rank():
    failure = ProcessFailure(0, 1234, -signal.SIGKILL, "/no/such/file")
    status = AgentStatus.from_result(RunProcsResult(failures={0: failure}))
    assert parse_killed(str(status.return_values[0])) == ("Signal 9 (SIGKILL)", 1234)
    assert parse_killed("some other error") is None


def test_a_command_on_this_host():
    assert run_on_host("echo out; echo err >&2", "localhost", None) == ("out\n", "err\n")


def test_the_hosts_of_a_slurm_allocation(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho node1\necho node2\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert slurm_hosts() == ("node1", "node2")
