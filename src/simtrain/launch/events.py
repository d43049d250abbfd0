"""Events that ranks send to the command that launched them, through torchrunx's log stream.

torchrunx sends every log record of a rank to a server that it forks from the launching process,
over the network if need be. An event is a log record with an object attached: the log file gets its
text, and the command gets the object.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from multiprocessing.connection import Connection
from signal import Signals
from typing import ClassVar, Literal

from simtrain.launch.torchrunx_internals import is_of_rank, is_printed

_LOGGER = logging.getLogger("simtrain")

Cause = Literal["config", "simulation", "exception", "divergence", "job", "peer"]
"""Kind of an error: in the configuration, in the simulation, in the program or the task; one that
all ranks find together, in training or elsewhere; a collective that broke as another rank is gone.
"""


@dataclass(frozen=True)
class Message:
    """Something that rank 0 shows."""

    content: object

    def __str__(self) -> str:
        return str(self.content)


@dataclass(frozen=True)
class RankEvent:
    """Something that happened to a rank."""

    rank: int
    device: str
    description: ClassVar[str]
    """Format of the rest of the event's text, after the rank's name."""

    @property
    def name(self) -> str:
        """Number and device of the rank, for people."""
        return f"rank {self.rank} on {self.device}"

    def __str__(self) -> str:
        return self.name + self.description.format(**vars(self))


@dataclass(frozen=True)
class RankStarted(RankEvent):
    """A rank's process runs."""

    host: str
    pid: int
    description = ", process {pid}"


@dataclass(frozen=True)
class StopReceived(RankEvent):
    """A rank received a signal that asks the run to stop, and does so."""

    signal: Signals
    description = " received {signal.name}"


@dataclass(frozen=True)
class RankFinished(RankEvent):
    """A rank's function returned, and only its process is left to end."""

    result: object
    """Return value on rank 0; None on others."""
    description = " is done"


@dataclass(frozen=True)
class RankFailed(RankEvent):
    """A rank ends because of an error."""

    cause: Cause
    text: str
    """The message; the traceback of an exception and of a peer's failure."""
    description = " failed:\n{text}"


def send(event: Message | RankEvent) -> None:
    """Send an event from a rank; it is on its way when this returns."""
    level = logging.ERROR if isinstance(event, RankFailed) else logging.INFO
    _LOGGER.log(level, "%s", event, extra={"event": event})


class EventHandler(logging.Handler):
    """Writes events, and as messages what rank 0 prints, to `connection`, in the log server."""

    def __init__(self, connection: Connection, main_host: str) -> None:
        super().__init__()
        self._connection = connection
        self._main_host = main_host

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record's event, if it has one."""
        event = getattr(record, "event", None)
        if event is None and is_of_rank(record, self._main_host, 0):
            event = _shown(record)
        if event is not None:
            self._connection.send(event)


def _shown(record: logging.LogRecord) -> Message | None:
    """Printed lines and warnings, but not what libraries log for themselves."""
    text = record.getMessage()
    if is_printed(record):
        return None if text.startswith("[Gloo] ") else Message(text)
    return Message(text) if record.levelno >= logging.WARNING else None
