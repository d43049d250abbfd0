"""Protection of a job of several processes from strangers: a private folder, with a key.

Only the user can read the folder. Whoever connects to a process of the job shows that it knows the
key, before anything that it sends is unpickled. A job on one machine listens on loopback alone, and
its processes find each other by files in the folder; one on several hosts finds them by
`torch.distributed.TCPStore`, which asks nobody who they are.

Imports torch only where that is needed: agents begin here.
"""

from __future__ import annotations

import fcntl
import hmac
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.errors import RankError

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store  # type: ignore[attr-defined]

LOOPBACK = "127.0.0.1"
ONLY_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Environment variables by which Gloo and NCCL listen on loopback alone."""
_FOLDER, _PREFIX = "SIMTRAIN_JOB_FOLDER", ".simtrain-job-"
_NONCE = _DIGEST = 32  # bytes
_SECONDS = 10.0  # one to show that it knows the key


@contextmanager
def private_folder(shared: Path | None) -> Iterator[None]:
    """Make a job's folder, inside `shared` if other machines must see it.

    Processes that are started within find it by an environment variable. It is removed at the end;
    folders that killed jobs left behind are removed at the start.
    """
    _remove_abandoned(shared or Path(tempfile.gettempdir()))
    with (
        tempfile.TemporaryDirectory(prefix=_PREFIX, dir=shared) as folder,
        (Path(folder) / "key").open("wb", buffering=0) as key,
    ):
        with suppress(OSError):  # of a file system without locks
            fcntl.flock(key, fcntl.LOCK_EX)  # until this process and its forks are gone
        key.write(secrets.token_bytes(_DIGEST))
        os.environ[_FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[_FOLDER]


def _remove_abandoned(parent: Path) -> None:
    """Remove this user's folders in `parent` whose job is gone: nothing locks the key."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            if folder.lstat().st_uid != os.getuid():
                continue
            with (folder / "key").open("rb") as key:
                fcntl.flock(key, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if key.read(1):  # else its job has yet to lock it
                    shutil.rmtree(folder, ignore_errors=True)


def admit(connection: socket.socket) -> bool:
    """Whether the other side of a connection knows the job's key; shows it that this side does."""
    own_nonce = secrets.token_bytes(_NONCE)
    try:
        connection.sendall(own_nonce)
        answer = _receive(connection, _NONCE + _DIGEST)
        nonce, digest = answer[:_NONCE], answer[_NONCE:]
        if not hmac.compare_digest(digest, _digest(b"client", own_nonce, nonce)):
            return False
        connection.sendall(_digest(b"server", own_nonce, nonce))
        connection.settimeout(None)
    except OSError:
        return False
    return True


def show_key(connection: socket.socket) -> None:
    """Show that this process knows the job's key; OSError if the other side does not."""
    own_nonce = secrets.token_bytes(_NONCE)
    nonce = _receive(connection, _NONCE)
    connection.sendall(own_nonce + _digest(b"client", nonce, own_nonce))
    answer = _receive(connection, _DIGEST)
    if not hmac.compare_digest(answer, _digest(b"server", nonce, own_nonce)):
        raise ConnectionRefusedError("another process answers at the port of the job's log server")
    connection.settimeout(None)


def join_process_group(
    name: str,
    rank: int,
    size: int,
    address: tuple[str, int],
    *,
    wait_seconds: float,
    timeout: float,
    backend: str = "gloo",
    device: torch.device | None = None,
) -> None:
    """Make torch's default process group, of processes that know the job's key.

    Waits at most `wait_seconds` for all to be here; later collectives may take `timeout` seconds.
    RankError if one of them does not know the key, an error of torch's if they cannot connect.
    """
    import torch.distributed as dist

    # Gloo listens until all have connected, and takes whoever comes first for the process that it
    # waits for. As all are here, that takes milliseconds, and `_check_members` finds who came.
    store = _meet(name, rank, size, address, timedelta(seconds=wait_seconds))
    dist.init_process_group(
        backend,
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout),
        device_id=device,
        store=store,
    )
    _check_members(name, rank, size)


def address_towards(host: str) -> str:
    """The address by which this machine connects to a host; `LOOPBACK` for `LOOPBACK`."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as unused:
        unused.connect(address)  # sends nothing
        return str(unused.getsockname()[0])


def _meet(name: str, rank: int, size: int, address: tuple[str, int], limit: timedelta) -> Store:
    """The store by which processes connect, once all are here.

    Files if the address, of rank 0, is `LOOPBACK`, else TCP at that address alone.
    """
    from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]

    host, port = address
    store: Store
    if host == LOOPBACK:
        store = FileStore(str(job_folder() / name), size)
    else:
        listener = None
        if rank == 0:  # by itself, TCPStore listens at all addresses of this machine
            family, _, _, _, own = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            listener = socket.create_server(own, family=family, backlog=128).detach()
        store = TCPStore(host, port, size, rank == 0, limit, master_listen_fd=listener)
    store.set(f"{name}/{rank}", "")
    store.wait([f"{name}/{other}" for other in range(size)], limit)
    return store


def _check_members(name: str, rank: int, size: int) -> None:
    """Raise RankError unless every process of the default group knows the job's key; a collective.

    Digests travel as numbers: objects would be unpickled.
    """
    import torch
    import torch.distributed as dist

    rows = [list(_digest(name.encode(), str(index).encode())) for index in range(size)]
    expected = torch.tensor(rows, dtype=torch.uint8)
    digests = torch.zeros_like(expected)
    dist.all_gather(list(digests.unbind()), expected[rank].clone())
    if not torch.equal(digests, expected):
        raise RankError("a process that is not of this job has connected to it")


def _digest(*parts: bytes) -> bytes:
    key = (job_folder() / "key").read_bytes()
    return hmac.digest(key, b"\0".join(parts), "sha256")


def job_folder() -> Path:
    """The job's private folder, of the `private_folder` that is open."""
    return Path(os.environ[_FOLDER])


def _receive(connection: socket.socket, size: int) -> bytes:
    """Receive `size` bytes; OSError if they do not come within `_SECONDS`."""
    deadline, received = time.monotonic() + _SECONDS, b""
    while len(received) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        if not (more := connection.recv(size - len(received))):
            raise ConnectionResetError("the connection was closed")
        received += more
    return received
