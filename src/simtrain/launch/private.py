"""What keeps strangers out of a job of several processes: a private folder, with a key.

Only the user can read the folder. Whoever connects to a process of the job shows that it knows the
key, before anything that it sends is unpickled. A job on one machine listens on loopback alone, and
its processes find each other by files in the folder; one on several hosts finds them by
`torch.distributed.TCPStore`, which asks nobody who they are.

Imports torch only where that is needed: agents begin here.
"""

from __future__ import annotations

import hmac
import os
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.errors import RankError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store  # type: ignore[attr-defined]

LOOPBACK = "127.0.0.1"
ONLY_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""Environment variables by which Gloo and NCCL listen on loopback alone."""
_FOLDER = "SIMTRAIN_JOB_FOLDER"
_NONCE = _DIGEST = 32  # bytes
_SECONDS = 10.0  # one to show that it knows the key


@contextmanager
def private_folder(shared: Path | None) -> Iterator[None]:
    """Make a job's folder, inside `shared` if not only this machine is to see it.

    Processes that are started meanwhile find it by an environment variable. Gone in the end.
    """
    with tempfile.TemporaryDirectory(prefix=".simtrain-job-", dir=shared) as folder:
        (Path(folder) / "key").write_bytes(secrets.token_bytes(_DIGEST))
        os.environ[_FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[_FOLDER]


def admit(connection: socket.socket) -> bool:
    """Whether who has connected to this process knows the job's key; it is shown that this does."""
    mine = secrets.token_bytes(_NONCE)
    deadline = time.monotonic() + _SECONDS
    try:
        connection.sendall(mine)
        nonce = _receive(connection, _NONCE, deadline)
        if not hmac.compare_digest(
            _receive(connection, _DIGEST, deadline), _digest(b"client", mine, nonce)
        ):
            return False
        connection.sendall(_digest(b"server", mine, nonce))
        connection.settimeout(None)
    except OSError:
        return False
    return True


def show_key(connection: socket.socket) -> None:
    """Show that this process knows the job's key; OSError if the other side does not."""
    mine = secrets.token_bytes(_NONCE)
    deadline = time.monotonic() + _SECONDS
    nonce = _receive(connection, _NONCE, deadline)
    connection.sendall(mine + _digest(b"client", nonce, mine))
    answer = _receive(connection, _DIGEST, deadline)
    if not hmac.compare_digest(answer, _digest(b"server", nonce, mine)):
        raise ConnectionRefusedError("another process answers at the port of the job's log server")


def meet(name: str, rank: int, size: int, address: tuple[str, int], timeout: float) -> Store:
    """Wait until all processes of a group are here; the store by which they connect.

    Files if the address, of rank 0, is `LOOPBACK`, else TCP at that address alone. Gloo listens
    until all have connected, and takes whoever comes first for the process that it waits for; so it
    is to be started when this returns, and then has all within milliseconds. An error of torch's if
    that takes more than `timeout` seconds.
    """
    from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]

    host, port = address
    limit = timedelta(seconds=timeout)
    store: Store
    if host == LOOPBACK:
        store = FileStore(str(_folder() / name), size)
    else:
        listener = _listen(host, port) if rank == 0 else None
        store = TCPStore(host, port, size, rank == 0, limit, master_listen_fd=listener)
    store.set(f"{name}/{rank}", "")
    store.wait([f"{name}/{other}" for other in range(size)], limit)
    return store


def check_members(name: str, size: int, gather: Callable[[Sequence[float]], Tensor]) -> None:
    """Raise RankError unless every process of a group knows the job's key; a collective.

    `gather` gives the digests of all, float64 ``(size, 32)``, for this one's bytes: numbers, as
    objects would be unpickled.
    """
    import torch
    import torch.distributed as dist

    digests = [list(_digest(name.encode(), str(index).encode())) for index in range(size)]
    gathered = gather(digests[dist.get_rank()])
    if not torch.equal(gathered, torch.tensor(digests, dtype=torch.float64)):
        raise RankError("a process that is not of this job has connected to it")


def address_towards(host: str) -> str:
    """The address by which this machine connects to a host; `LOOPBACK` for `LOOPBACK`."""
    family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as unused:
        unused.connect(address)  # sends nothing
        return str(unused.getsockname()[0])


def _listen(host: str, port: int) -> int:
    """A listening socket at one address; by itself, TCPStore listens at all of this machine."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    listener.bind(address)
    listener.listen(128)
    return listener.detach()


def _digest(*parts: bytes) -> bytes:
    key = (_folder() / "key").read_bytes()
    return hmac.digest(key, b"\0".join(parts), "sha256")


def _folder() -> Path:
    return Path(os.environ[_FOLDER])


def _receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    """So many bytes; OSError if they do not come in time."""
    received = b""
    while len(received) < size:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        if not (more := connection.recv(size - len(received))):
            raise ConnectionResetError("the connection was closed")
        received += more
    return received
