"""Strangers connect to every port of a running job of two ranks, which goes on undisturbed."""

from __future__ import annotations

import os
import pickle
import socket
import struct
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from job import TWO_RANKS, timeless_metrics

FLAGS = (*TWO_RANKS, "--max-iterations", "400", "--save-interval", "100")
NONCE = 32  # bytes: all that a log server says to someone it does not know


class RunsCode:
    """Unpickled, it makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.file,)


def what_strangers_send(file: Path) -> list[bytes]:
    evil = pickle.dumps(RunsCode(file))
    store_list_keys = bytes([0, 0xF0, 0x3C, 0x85, 0x3C, 17])  # torch's TCPStore
    return [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        evil,
        struct.pack(">L", len(evil)) + evil,
        os.urandom(2 * NONCE) + struct.pack(">L", len(evil)) + evil,
        struct.pack(">L", 2**32 - 1) + b"x" * 1000,
        struct.pack(">L", len(evil))[:2],
        os.urandom(5000),
        store_list_keys,
        *(struct.pack("<Q", sequence_number) for sequence_number in range(5)),
        bytes(5000),
    ]


def learned(connection: socket.socket) -> bytes:
    connection.settimeout(0.2)
    with suppress(OSError):
        return connection.recv(1000)
    return b""


@pytest.mark.slow
def test_strangers_run_nothing_learn_nothing_and_disturb_nothing(start, tmp_path):
    alone, disturbed = (start("user-pendulum", *FLAGS, folder=name) for name in ("alone", "other"))
    file = tmp_path / "made-by-a-stranger"
    disturbed.wait_for("env steps 128 ")
    ports = disturbed.listening()
    # Of the log server; and Gloo's of the launcher, its agent and two ranks.
    assert len(ports) == 5
    assert {address for address, _ in ports} == {"127.0.0.1"}
    with ExitStack() as stack:
        connections = []
        for address in ports:
            for message in what_strangers_send(file):
                connection = stack.enter_context(socket.create_connection(address, timeout=5.0))
                connections.append(connection)
                with suppress(ConnectionError):
                    connection.sendall(message)
        answers = [learned(connection) for connection in connections]
        assert disturbed.wait() == alone.wait() == 0, disturbed.output
    assert not file.exists()
    assert {len(answer) for answer in answers} <= {0, NONCE}
    assert len(set(answers) - {b""}) == sum(answer != b"" for answer in answers)
    assert timeless_metrics(disturbed.run) == timeless_metrics(alone.run)
    logs = [path.read_text() for path in disturbed.run.glob("torchrunx/*/*[[]*.log")]
    assert ["Traceback" in log for log in logs] == [False, False]
