"""Who is let into a job, over real connections."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from simtrain.errors import RankError
from simtrain.launch import private
from simtrain.launch.private import (
    LOOPBACK,
    address_towards,
    admit,
    check_members,
    meet,
    private_folder,
    show_key,
)


@pytest.fixture
def job(tmp_path):
    with private_folder(tmp_path):
        yield


@pytest.fixture
def ends():
    """Both ends of a connection."""
    with socket.create_server((LOOPBACK, 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other:
        yield one, other


def admitted(connection: socket.socket) -> tuple[threading.Thread, list[bool]]:
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(admit(connection)))
    thread.start()
    return thread, answers


def test_a_process_of_the_job_is_admitted_and_nothing_is_lost(job, ends):
    mine, server = ends
    thread, answers = admitted(server)
    show_key(mine)
    mine.sendall(b"a record")
    thread.join()
    assert answers == [True]
    assert (server.recv(100), server.gettimeout()) == (b"a record", None)


@pytest.mark.parametrize("message", [b"", b"\0", bytes(64), os.urandom(1000)])
def test_a_stranger_is_not_admitted(job, ends, message):
    mine, server = ends
    thread, answers = admitted(server)
    mine.sendall(message)
    mine.shutdown(socket.SHUT_WR)
    thread.join()
    assert answers == [False]


def test_a_stranger_who_says_nothing_is_not_waited_for(job, ends, monkeypatch):
    monkeypatch.setattr(private, "_SECONDS", 0.1)
    assert not admit(ends[1])


def test_what_one_process_showed_admits_nobody_else(job, ends):
    mine, server = ends
    thread, _ = admitted(server)
    nonce = mine.recv(32)
    shown = bytes(32) + private._digest(b"client", nonce, bytes(32))
    mine.sendall(shown)
    thread.join()
    with socket.create_server((LOOPBACK, 0)) as listener:
        again = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    with again, other:
        thread, answers = admitted(other)
        again.sendall(shown)
        thread.join()
    assert answers == [False]


def test_the_key_is_shown_to_no_process_that_only_repeats_it(job, ends):
    mine, server = ends
    server.sendall(bytes(32))
    echo = threading.Thread(target=lambda: server.sendall(server.recv(64)[32:]))
    echo.start()
    with pytest.raises(ConnectionRefusedError):
        show_key(mine)
    echo.join()


def test_only_the_user_can_read_the_folder_which_is_gone_in_the_end(tmp_path):
    with private_folder(tmp_path):
        (folder,) = tmp_path.iterdir()
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert Path(os.environ["SIMTRAIN_JOB_FOLDER"]) == folder
    assert not list(tmp_path.iterdir())
    assert "SIMTRAIN_JOB_FOLDER" not in os.environ


def test_processes_on_one_machine_meet_without_a_port(job):
    ports = Path("/proc/net/tcp").read_text().count(" 0A ")
    stores = []
    other = threading.Thread(target=lambda: stores.append(meet("all", 1, 2, (LOOPBACK, 0), 20.0)))
    other.start()
    store = meet("all", 0, 2, (LOOPBACK, 0), 20.0)
    other.join()
    store.set("key", "value")
    assert stores[0].get("key") == b"value"
    assert isinstance(store, dist.FileStore)
    assert Path("/proc/net/tcp").read_text().count(" 0A ") == ports


def test_of_several_hosts_the_first_listens_at_its_own_address_alone(job):
    with socket.create_server(("127.0.0.9", 0)) as free:
        address = free.getsockname()
    store = meet("all", 0, 1, address, 20.0)
    store.set("key", "value")
    assert dist.TCPStore(*address, is_master=False).get("key") == b"value"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, address[1]))


def numbers(rows: list[list[int]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_a_process_that_does_not_know_the_key_is_no_member(job, monkeypatch):
    first: list[list[int]] = []
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    with pytest.raises(RankError):
        check_members("all", 2, lambda own: first.append(own) or numbers([own, own]))
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    check_members("all", 2, lambda own: numbers([first[0], own]))
    with pytest.raises(RankError, match="a process that is not of this job"):
        check_members("all", 2, lambda own: numbers([[0] * 32, own]))


def test_the_address_towards_this_machine_is_loopback():
    assert address_towards(LOOPBACK) == LOOPBACK
