"""Events that ranks send to the command that launched them, through torchrunx's log stream.

torchrunx sends every log record of a rank to a server that it forks from the launching process. An
event is a record with an object attached: the log file gets its text, the command the object.
"""

import logging
from dataclasses import dataclass
from multiprocessing.connection import Connection
from signal import Signals
from typing import ClassVar, Literal

from simtrain.launch.torchrunx_internals import source

Cause = Literal["config", "simulation", "exception", "divergence", "job", "peer"]
"""Kind of an error: in configuration, simulation, program or task; one that all ranks find, in
training or elsewhere; a collective that broke as another rank is gone."""


@dataclass(frozen=True)
class RankEvent:
    """Something that happened to a rank; its text is the rank's name and the `description`."""

    rank: int
    device: str
    description: ClassVar[str]

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
    """A rank's function returned its `result`, and only the process is left to end."""

    result: object
    description = " is done"


@dataclass(frozen=True)
class RankFailed(RankEvent):
    """A rank ends because of an error: its message, or the traceback of one in the program."""

    cause: Cause
    text: str
    description = " failed:\n{text}"


@dataclass(frozen=True)
class Heartbeat(RankEvent):
    """A rank's process answers; `place` is where in the code it is, the rest as in `Progress`."""

    iteration: int | None
    waits: int
    is_waiting: bool
    place: str
    description = " is at {place}"


def send(event: object) -> None:
    """Send an event from a rank; it is on its way when this returns."""
    levels = {RankFailed: logging.ERROR, Heartbeat: logging.DEBUG}
    level = levels.get(type(event), logging.INFO)
    logging.getLogger("simtrain").log(level, "%s", event, extra={"event": event})


class EventHandler(logging.Handler):
    """Writes events to `connection`, in the log server; so also what rank 0 prints or warns of."""

    def __init__(self, connection: Connection, main_host: str) -> None:
        super().__init__()
        self._connection, self._main_host = connection, main_host

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record's event, if it has one; not what libraries log for themselves."""
        event, (host, local_rank, is_printed) = getattr(record, "event", None), source(record)
        if event is None and (host, local_rank) == (self._main_host, 0):
            text = record.getMessage()
            if not text.startswith("[Gloo] ") if is_printed else record.levelno >= logging.WARNING:
                event = text
        if event is not None:
            self._connection.send(event)
