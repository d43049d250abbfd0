"""Where an iteration's numbers go: metrics.jsonl and TensorBoard.

Both go on where a resumed run does: what was written of later iterations is cut off, so that no
iteration is missing or there twice.
"""

from __future__ import annotations

import fcntl
import io
import json
import math
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simtrain.errors import ConfigError
from simtrain.run.appended_file import AppendedFile

METRICS = "metrics.jsonl"


class MetricsWriter:
    """Appends one JSON object an iteration to ``metrics.jsonl``, and the tags to TensorBoard."""

    def __init__(self, run: Path, *, tensorboard: bool, after: int = 0) -> None:
        """Make the files, or go on with those of a run.

        Args:
            run: the run directory.
            tensorboard: whether to write for TensorBoard.
            after: how many iterations the run has trained; what is there of later ones goes.

        Raises:
            ConfigError: another process writes to this run, or the files cannot be made.
        """
        path = run / METRICS
        try:
            self._lines = AppendedFile(path)
            _lock(self._lines.descriptor, run)
            os.truncate(path, _end_of_metrics(path, after))
            for events in sorted(run.glob("events.out.tfevents.*")):
                os.truncate(events, _end_of_events(events, after))
            self._events = AppendedFile(_events_path(run)) if tensorboard else None
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        if self._events is not None:
            self._start_events(self._events, after)

    @property
    def error(self) -> str | None:
        """Why numbers wait to be written, or None if none do."""
        return self._lines.error or (self._events.error if self._events is not None else None)

    def write(
        self, iteration: int, env_steps: int, wall_s: float, metrics: dict[str, float]
    ) -> None:
        """Write the numbers of an iteration; if the disk is full, at a later call.

        Args:
            iteration: how many iterations were trained.
            env_steps: environment steps since the start, over all ranks.
            wall_s: seconds since the start.
            metrics: TensorBoard tag -> value; in metrics.jsonl null if it is not finite.
        """
        # JSON knows no NaN and no infinity.
        known = {tag: v if math.isfinite(v) else None for tag, v in metrics.items()}
        line = {"iteration": iteration, "env_steps": env_steps, "wall_s": wall_s, **known}
        self._lines.append(json.dumps(line).encode() + b"\n")
        if self._events is not None:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary

            values = [Summary.Value(tag=tag, simple_value=v) for tag, v in metrics.items()]
            summary = Summary(value=values)
            self._events.append(_record(Event(step=iteration, summary=summary)))

    def sync(self) -> None:
        """Wait until what was written is on the disk; for another thread."""
        self._lines.sync()
        if self._events is not None:
            self._events.sync()

    def write_video(self, iteration: int, gif: bytes) -> None:
        """Show an animated GIF in TensorBoard, if that is on."""
        if self._events is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        width, height = struct.unpack("<HH", gif[6:10])
        image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=gif)
        summary = Summary(value=[Summary.Value(tag="Video", image=image)])
        self._events.append(_record(Event(step=iteration, summary=summary)))

    def close(self) -> None:
        """Write what waits, as far as that is possible, and close the files."""
        self._lines.close()
        if self._events is not None:
            self._events.close()

    def _start_events(self, events: AppendedFile, after: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog

        events.append(_record(Event(file_version="brain.Event:2")))
        if after > 0:
            # A TensorBoard that is running forgets what it has read of later iterations.
            start = SessionLog(status=SessionLog.START)
            events.append(_record(Event(step=after + 1, session_log=start)))


def check_idle(run: Path) -> None:
    """Raise ConfigError if a process is writing to the run."""
    try:
        with (run / METRICS).open("rb") as file:
            _lock(file.fileno(), run)
    except FileNotFoundError:
        return


def _lock(descriptor: int, run: Path) -> None:
    """Hold the file until it is closed, or its process is gone."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(f"the run {run} is still being trained by another process") from error
    except OSError:
        return  # a file system without locks


def _end_of_metrics(path: Path, after: int) -> int:
    """Where the lines of the first `after` iterations end, in bytes."""
    end = 0
    with path.open("rb") as file:
        for line in file:
            try:
                kept = line.endswith(b"\n") and json.loads(line)["iteration"] <= after
            except (ValueError, KeyError, TypeError):
                kept = False
            if not kept:
                break
            end += len(line)
    return end


def _end_of_events(path: Path, after: int) -> int:
    """Where the records of the first `after` iterations end, in bytes."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event

    end = 0
    for data, size in _records(path.read_bytes()):
        try:
            if Event.FromString(data).step > after:
                break
        except DecodeError:
            break
        end += size
    return end


def _records(data: bytes) -> Iterator[tuple[bytes, int]]:
    """The whole records of an event file, and how long each is with its frame."""
    position = 0
    while position + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, position)
        size = length + 16
        if position + size > len(data):
            return
        yield data[position + 12 : position + 12 + length], size
        position += size


def _record(event: Any) -> bytes:
    """An event as TensorBoard's files have it: length and data, each with a checksum."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    event.wall_time = time.time()
    buffer = io.BytesIO()
    RecordWriter(buffer).write(event.SerializeToString())
    return buffer.getvalue()


def _events_path(run: Path) -> Path:
    stamp = f"{time.time_ns() // 1_000_000_000:010d}"
    name = f"events.out.tfevents.{stamp}.{socket.gethostname()}.{os.getpid()}"
    number = len(list(run.glob(f"{name}.*")))
    return run / f"{name}.{number}"
