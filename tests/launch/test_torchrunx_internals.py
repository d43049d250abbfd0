"""Fails where a new version of torchrunx is not what simtrain takes it for."""

import logging
import os
import signal
import subprocess
import sys

from torch.distributed.elastic.multiprocessing.api import RunProcsResult
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from torchrunx.utils.comm import AgentStatus

from simtrain.launch.torchrunx_internals import (
    log_file_handlers,
    parse_killed,
    run_on_host,
    slurm_hosts,
)

OF_A_RANK = """
import logging, socket, sys, threading
from torchrunx.utils.log_streaming import log_records_to_socket, redirect_stdio_to_logger
from simtrain.launch.torchrunx_internals import connect_log_stream, source

printed = threading.Event()

class Handler(logging.Handler):
    def emit(self, record):
        facts.write(f"{record.getMessage()}: {source(record)}\\n")
        if record.getMessage() == "a line":
            printed.set()

facts = open(sys.argv[1], "w")
with socket.create_server(("127.0.0.1", 0)) as server:
    log_records_to_socket("node", 1, *server.getsockname())
    connect_log_stream()
    (stream,) = logging.root.handlers
    facts.write(f"connected: {stream.sock is not None} {stream.sock.gettimeout()}\\n")
    logging.root.handlers = [Handler()]
    redirect_stdio_to_logger(logging.getLogger())
    logging.getLogger("library").info("logged")
    print("a line", flush=True)
    assert printed.wait(20.0)
facts.close()
"""


def test_the_log_records_of_a_rank(tmp_path):
    facts = tmp_path / "facts"
    subprocess.run([sys.executable, "-c", OF_A_RANK, str(facts)], check=True, timeout=100)
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


def test_log_files_of_an_agent_and_its_ranks(tmp_path):
    handlers = log_file_handlers(("node",), [2], str(tmp_path), logging.INFO)
    for handler in handlers:
        handler.close()
    names = {path.name for path in tmp_path.glob("*/*")}
    assert names == {"node.log", "node[0].log", "node[1].log"}


def test_a_command_on_this_host():
    assert run_on_host("echo out; echo err >&2", "localhost", None) == ("out\n", "err\n")


def test_the_hosts_of_a_slurm_allocation(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\necho node1\necho node2\n")
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert slurm_hosts() == ("node1", "node2")
