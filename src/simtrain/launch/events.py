"""Events that ranks send to the command that launched them, and which ranks it finds late by them.

torchrunx sends every log record of a rank to a server that it forks from the launching process. An
event is a record with a pickled object attached, which the command gets; log files get its text.

A thread of each rank sends heartbeats. It stops with a process that is stopped, and the command
compares how far the ranks are, so it knows which rank hangs or keeps the others waiting. Nothing is
measured, sent or waited for in the training loop.
"""

import logging
import os
import pickle
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from signal import Signals
from typing import Literal

from simtrain.launch.plan import Job
from simtrain.launch.rank import Progress, Rank
from simtrain.launch.torchrunx_internals import source

Cause = Literal["config", "simulation", "exception", "divergence", "job", "peer"]
"""Kind of an error: in configuration, simulation, program or task; one that all ranks find, in
training or elsewhere; a collective that broke because another rank is gone."""

ADVICE = """\
What usually is the matter, most frequent first, and what to try:
  1. GPUs cannot reach each other's memory behind an IOMMU (hangs at the first collective):
     set NCCL_P2P_DISABLE=1, or boot the kernel with iommu=pt
  2. Shared memory is too small in a container:
     set NCCL_SHM_DISABLE=1, or start it with more (docker run --shm-size=1g, or --ipc=host)
  3. Of several hosts, a host name does not resolve: `getent hosts $(hostname)` must print an
     address on every host; add the name to /etc/hosts
  4. A port is blocked: a firewall must let ranks connect to each other on any port; with several
     network interfaces, name one with NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME
NCCL_DEBUG=INFO shows what NCCL does, in the ranks' logs."""

_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<")
_LONGEST_PERIOD = 5.0  # seconds between two heartbeats
_LONGEST_STEP = 1.0  # seconds; the command may be stopped, or its terminal paused, for longer


@dataclass(frozen=True)
class RankEvent:
    """Something that happened to a rank."""

    rank: int
    device: str

    @property
    def name(self) -> str:
        """Number and device of the rank, for people."""
        return f"rank {self.rank} on {self.device}"


@dataclass(frozen=True)
class RankStarted(RankEvent):
    """A rank's process runs."""

    host: str
    pid: int


@dataclass(frozen=True)
class StopReceived(RankEvent):
    """A rank received a signal that asks the run to stop, and stops."""

    signal: Signals


@dataclass(frozen=True)
class RankFinished(RankEvent):
    """A rank's function returned its `result`, and its process is about to end."""

    result: object = field(repr=False)


@dataclass(frozen=True)
class RankFailed(RankEvent):
    """A rank ends because of an error: its message, or the traceback of one in the program."""

    cause: Cause
    text: str

    def __str__(self) -> str:
        return f"{self.name} failed:\n{self.text}"


@dataclass(frozen=True)
class Heartbeat(RankEvent):
    """A rank's process answers; `place` is where in the code it is."""

    progress: Progress
    place: str


def send(event: object) -> None:
    """Send an event from a rank; it is on its way when this returns."""
    levels = {RankFailed: logging.ERROR, Heartbeat: logging.DEBUG}
    level = levels.get(type(event), logging.INFO)
    # Pickled here, where an error ends the rank: logging would print it, and lose the event.
    extra = {"event": pickle.dumps(event)}
    logging.getLogger("simtrain").log(level, "%s", event, extra=extra)


def send_heartbeats(rank: Rank, device: str, timeout: float) -> None:
    """Send heartbeats from a thread, often enough for a `RankWatch` with this `timeout`."""
    main = threading.get_ident()

    def beat() -> None:
        while True:
            send(Heartbeat(rank.rank, device, rank.progress, _place(main)))
            time.sleep(min(timeout / 40.0, _LONGEST_PERIOD))

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()


def _place(thread: int) -> str:
    """Where a thread is, outside of libraries."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    file = frame.f_code.co_filename.removeprefix(f"{os.getcwd()}/")  # noqa: PTH109 - a string
    return f"{file}:{frame.f_lineno} in {frame.f_code.co_qualname}"


class EventHandler(logging.Handler):
    """Writes events, and output and warnings of rank 0, to `connection`, in the log server."""

    def __init__(self, connection: Connection, main_host: str) -> None:
        super().__init__()
        self._connection, self._main_host = connection, main_host

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record's event, if it has one; not what libraries log for themselves."""
        event, (host, local_rank, is_printed) = getattr(record, "event", None), source(record)
        if event is None and (host, local_rank) == (self._main_host, 0):
            text = record.getMessage()
            if not text.startswith("[Gloo] ") if is_printed else record.levelno >= logging.WARNING:
                event = pickle.dumps(text)
        if event is not None:
            self._connection.send_bytes(event)


class RankWatch:
    """Finds ranks that do not answer and ranks that others wait for, in the command.

    A rank is late after a tenth of the job's `collective_timeout`; `say` gets a line about it then,
    and one when it goes on.
    """

    def __init__(self, job: Job, say: Callable[[str], None]) -> None:
        self._job = job
        self._say = say
        self._beats: dict[int, Heartbeat] = {}
        self._heard: dict[int, float] = {}  # when, by the clock of `_now`, as the next
        self._moved = 0.0  # when a rank last began to wait
        self._now = 0.0  # stands still while the command does
        self._checked = time.monotonic()
        self.late: dict[str, str] = {}
        """Names of the ranks that are late, each with a text about it."""

    def hear(self, beat: Heartbeat) -> None:
        """Take in a heartbeat."""
        before = self._beats.get(beat.rank)
        if before is None or before.progress.waits != beat.progress.waits:
            self._moved = self._now
        self._beats[beat.rank], self._heard[beat.rank] = beat, self._now

    def check(self, started: Mapping[int, RankStarted], finished: Collection[int]) -> bool:
        """Report ranks that are late; whether one is so late that the job must end."""
        now, timeout = time.monotonic(), self._job.collective_timeout
        self._now += min(now - self._checked, _LONGEST_STEP)
        self._checked = now
        delays = self._delays(started, finished)
        late = {who: how for who, (seconds, how) in delays.items() if seconds > timeout / 10.0}
        is_first = all(beat.progress.iteration == 0 for beat in self._beats.values())
        for who in late.keys() - self.late.keys():
            ends = f"after {timeout:g} s the job ends (--collective-timeout)"
            self._say(f"warning: {who} {late[who]}; {ends}" + (f"\n{ADVICE}" if is_first else ""))
        for who in self.late.keys() - late.keys():
            self._say(f"{who} went on")
        self.late = late
        return any(seconds > timeout for seconds, _ in delays.values())

    def _delays(
        self, started: Mapping[int, RankStarted], finished: Collection[int]
    ) -> dict[str, tuple[float, str]]:
        """Name of each rank -> seconds that it has been late, and words for that."""
        delays: dict[str, tuple[float, str]] = {}
        stuck = self._now - self._moved
        waiting = sum(beat.progress.is_waiting for beat in self._beats.values())
        for rank in set(range(self._job.world_size)) - set(finished):
            name = f"rank {rank} on {self._job.rank_names()[rank]}"
            if rank in started:
                name += f" (process {started[rank].pid} on {started[rank].host})"
            if rank not in self._beats:
                delays[name] = stuck if waiting else 0.0, f"has not started for {stuck:.0f} s"
                continue
            silent = self._now - self._heard[rank]
            progress, place = self._beats[rank].progress, f"at {self._beats[rank].place}"
            if progress.iteration:
                place = f"in iteration {progress.iteration}, {place}"
            delays[name] = silent, f"has not answered for {silent:.0f} s, and was {place}"
            is_excused = progress.is_waiting or progress.iteration is None
            if waiting and not is_excused and stuck > silent:
                text = f"has kept the others waiting for {stuck:.0f} s, and is {place}"
                delays[name] = stuck, text
        slowest = max((seconds for seconds, _ in delays.values()), default=0.0)
        if 1 < waiting == self._job.world_size and slowest < stuck / 2.0:
            delays["every rank"] = stuck, f"has waited for the others for {stuck:.0f} s"
        return delays
