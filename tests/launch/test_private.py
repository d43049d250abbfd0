"""Who is let into a job, over real connections."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from simtrain.errors import RankError
from simtrain.launch import private
from simtrain.launch.private import LOOPBACK, address_towards, admit, private_folder, show_key


@pytest.fixture
def job(tmp_path):
    with private_folder(tmp_path):
        yield


def connection() -> tuple[socket.socket, socket.socket, threading.Thread, list[bool]]:
    """Both ends of a connection, the second of which a thread admits, and its answer."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(admit(server)))
    thread.start()
    return client, server, thread, answers


def test_a_process_of_the_job_is_admitted_and_nothing_is_lost(job):
    client, server, thread, answers = connection()
    with client, server:
        show_key(client)
        client.sendall(b"a record")
        thread.join()
        assert answers == [True]
        assert (server.recv(100), server.gettimeout()) == (b"a record", None)


@pytest.mark.parametrize("message", [None, b"", b"\0", bytes(64), os.urandom(1000)])
def test_a_stranger_is_not_admitted_and_not_waited_for(job, message, monkeypatch):
    if message is None:
        monkeypatch.setattr(private, "_SECONDS", 0.1)
    client, server, thread, answers = connection()
    with client, server:
        if message is not None:
            client.sendall(message)
            client.shutdown(socket.SHUT_WR)
        thread.join(20.0)
    assert answers == [False]


def test_what_one_process_showed_admits_nobody_else(job):
    shown = b""
    for is_admitted in (True, False):
        client, server, thread, answers = connection()
        with client, server:
            nonce = client.recv(32)
            shown = shown or bytes(32) + private._digest(b"client", nonce, bytes(32))
            client.sendall(shown)
            thread.join()
        assert answers == [is_admitted]


def test_the_key_is_shown_to_no_process_that_only_repeats_it(job):
    client, server = socket.socketpair()
    with client, server:
        server.sendall(bytes(32))
        echo = threading.Thread(target=lambda: server.sendall(server.recv(64)[32:]))
        echo.start()
        with pytest.raises(ConnectionRefusedError):
            show_key(client)
        echo.join()


def test_only_the_user_can_read_the_folder_which_is_gone_in_the_end(tmp_path):
    with private_folder(tmp_path):
        (folder,) = tmp_path.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert Path(os.environ["SIMTRAIN_JOB_FOLDER"]) == folder
    assert not list(tmp_path.iterdir())
    assert "SIMTRAIN_JOB_FOLDER" not in os.environ


def test_the_next_job_removes_the_folder_of_one_that_was_killed_and_no_other(tmp_path):
    program = """
import os, pathlib, sys
from simtrain.launch.private import private_folder
with private_folder(pathlib.Path(sys.argv[1])):
    os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=400)
    (abandoned,) = tmp_path.iterdir()
    with private_folder(tmp_path):
        (alive,) = tmp_path.iterdir()
        assert alive != abandoned
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, timeout=400)
        assert alive.exists()


def test_of_several_hosts_the_first_listens_at_its_own_address_alone(job):
    with socket.create_server(("127.0.0.9", 0)) as free:
        address = free.getsockname()
    store = private._meet("all", 0, 1, address, private.timedelta(seconds=20.0))
    store.set("key", "value")
    assert dist.TCPStore(*address, is_master=False).get("key") == b"value"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, address[1]))


@pytest.mark.parametrize("knows_key", [True, False])
def test_a_process_that_does_not_know_the_key_is_no_member(job, knows_key, monkeypatch):
    other = list(private._digest(b"all", b"1" if knows_key else b"0"))

    def all_gather(rows: list[torch.Tensor], own: torch.Tensor) -> None:
        for row, values in zip(rows, (own, torch.tensor(other)), strict=True):
            row.copy_(values)

    monkeypatch.setattr(dist, "all_gather", all_gather)
    refused = pytest.raises(RankError, match="a process that is not of this job")
    with nullcontext() if knows_key else refused:
        private._check_members("all", 0, 2)


def test_the_address_towards_this_machine_is_loopback():
    assert address_towards(LOOPBACK) == LOOPBACK
