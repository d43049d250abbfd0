"""What ranks tell the command that launched them, through torchrunx's log stream.

torchrunx sends every log record of a rank to a server that it forks from the launching process,
over the network if need be. A report is a log record with an object attached: the log file gets
its text, and the command gets the object.
"""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from dataclasses import dataclass
from logging.handlers import SocketHandler
from multiprocessing.connection import Connection
from signal import Signals
from typing import Literal

_LOGGER = logging.getLogger("simtrain")
_CONNECT_SECONDS = 20.0


@dataclass(frozen=True)
class Started:
    """A rank is there."""

    rank: int
    device: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.device}, process {self.pid}"


@dataclass(frozen=True)
class Message:
    """Something that rank 0 has to show."""

    content: object

    def __str__(self) -> str:
        return str(self.content)


@dataclass(frozen=True)
class ToldToStop:
    """A rank received a signal that asks the run to stop, and does so."""

    rank: int
    device: str
    signal: Signals

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.device} received {self.signal.name}"


@dataclass(frozen=True)
class Returned:
    """A rank has done its work, and only its process is left to end."""

    rank: int
    device: str
    result: object
    """What the function returned on rank 0; None of others."""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.device} is done"


@dataclass(frozen=True)
class Failed:
    """A rank ends because of an error."""

    rank: int
    device: str
    cause: Literal["mistake", "simulation", "program", "divergence", "job", "peer"]
    """What kind of error: in the configuration, in the simulation, in the program or the task, one
    that all ranks find together, in training or elsewhere, or a collective that broke because
    another rank is gone."""
    text: str
    """The message or, for the program and peers, the traceback."""

    def __str__(self) -> str:
        return f"rank {self.rank} on {self.device} failed:\n{self.text}"


Report = Started | Message | ToldToStop | Returned | Failed


def connect() -> None:
    """Connect a rank to the log stream for good; to be called before the first `send`.

    torchrunx's handler drops records while it is not connected, and those that the server does not
    take within a second: on a busy machine, or while a terminal is paused.
    """
    for handler in logging.root.handlers:
        if isinstance(handler, SocketHandler):
            with handler.lock or nullcontext():
                deadline = time.monotonic() + _CONNECT_SECONDS
                handler.createSocket()
                while handler.sock is None and time.monotonic() < deadline:
                    time.sleep(0.1)
                    handler.retryTime = None
                    handler.createSocket()
                if handler.sock is not None:
                    handler.sock.settimeout(None)


def send(report: Report) -> None:
    """Send a report from a rank; it is on its way when this returns."""
    level = logging.ERROR if isinstance(report, Failed) else logging.INFO
    _LOGGER.log(level, "%s", report, extra={"report": report})


class ReportHandler(logging.Handler):
    """Hands reports on, and as messages what rank 0 prints; lives in torchrunx's log server."""

    def __init__(self, connection: Connection, main_host: str) -> None:
        super().__init__()
        self._connection = connection
        self._main_host = main_host

    def emit(self, record: logging.LogRecord) -> None:
        """Hand on one record."""
        report = getattr(record, "report", None)
        if report is None and self._is_output_of_rank_0(record):
            report = Message(record.getMessage())
        if report is not None:
            self._connection.send(report)

    def _is_output_of_rank_0(self, record: logging.LogRecord) -> bool:
        """Printed lines and warnings, but not what libraries log for themselves."""
        if record.__dict__.get("local_rank") != 0:
            return False
        if record.__dict__.get("hostname") != self._main_host:
            return False
        printed = record.module == "log_streaming"
        chatter = printed and record.getMessage().startswith("[Gloo] ")
        return (printed or record.levelno >= logging.WARNING) and not chatter
