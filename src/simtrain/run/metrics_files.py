"""The metrics of a run: metrics.jsonl and TensorBoard's event file.

A resumed run goes on in both: what was written of later iterations is cut off (`metrics_recovery`).
"""

import fcntl
import io
import json
import math
import os
import socket
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from simtrain.config.metric_tags import LENGTH, RETURN, STEP_REWARD
from simtrain.errors import ConfigError
from simtrain.run.metrics_recovery import AXES, OVER_AXES, cut_events, cut_lines, parse_row

METRICS = "metrics.jsonl"
_CURVES = (STEP_REWARD, RETURN, LENGTH, "Eval/mean_return")
"""Tags that TensorBoard also shows over environment steps and seconds."""


class MetricsWriter:
    """Appends one JSON object an iteration to ``metrics.jsonl``, and the tags to TensorBoard."""

    def __init__(
        self, run: Path, *, tensorboard: bool, after: int = 0, env_steps: int | None = None
    ) -> None:
        """Make the files, or go on with them after so many iterations and environment steps.

        ConfigError if neither can be done; `warnings` tell what is damaged or missing.
        """
        path = run / METRICS
        try:
            self._lines = _AppendedFile(path)
            _lock(self._lines.descriptor, run)
            self.warnings = cut_lines(path, after, env_steps)
            if self._lines.reopen_if_replaced():
                _lock(self._lines.descriptor, run)
            for events in sorted(run.glob("events.out.tfevents.*")):
                self.warnings += cut_events(events, after)
            process = f"{socket.gethostname()}.{os.getpid()}"
            name = f"events.out.tfevents.{int(time.time()):010d}.{process}"
            count = len(list(run.glob(f"{name}.*")))
            self._events = _AppendedFile(run / f"{name}.{count}") if tensorboard else None
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        self._files = [self._lines] if self._events is None else [self._lines, self._events]
        self._append_event(file_version="brain.Event:2")
        if after > 0:
            # A TensorBoard that is running forgets what it has read of later iterations.
            self._append_event(step=after + 1, session_log={"status": "START"})
            # It forgets later steps of all tags, and those over other axes are larger.
            rows = filter(None, map(parse_row, path.read_bytes().splitlines()))
            larger = (e for row in rows for e in _events(row) if e["step"] > after)
            self._append_events([*larger])

    @property
    def error(self) -> str | None:
        """Why numbers wait to be written, or None if none do."""
        return next((file.error for file in self._files if file.error is not None), None)

    def write(
        self, iteration: int, env_steps: int, wall_s: float, metrics: dict[str, float]
    ) -> None:
        """Write the numbers of an iteration; if the disk is full, at a later call."""
        # JSON knows no NaN and no infinity: they become null.
        finite = {tag: v if math.isfinite(v) else None for tag, v in metrics.items()}
        line = {"iteration": iteration, "env_steps": env_steps, "wall_s": wall_s, **finite}
        self._lines.append(json.dumps(line).encode() + b"\n")
        self._append_events(_events(line | metrics))

    def write_video(self, iteration: int, gif: bytes) -> None:
        """Show an animated GIF in TensorBoard, if that is on."""
        width, height = struct.unpack("<HH", gif[6:10])
        image = {"width": width, "height": height, "colorspace": 3, "encoded_image_string": gif}
        self._append_event(step=iteration, summary={"value": [{"tag": "Video", "image": image}]})

    def sync(self) -> None:
        """Wait until what was written is on the disk; for another thread."""
        for file in self._files:
            with suppress(OSError):
                os.fsync(file.descriptor)

    def close(self) -> None:
        """Write what waits, as far as that is possible, and close the files."""
        for file in self._files:
            file.append(b"")
            with suppress(OSError):
                os.close(file.descriptor)

    def _append_event(self, **fields: Any) -> None:
        self._append_events([fields])

    def _append_events(self, events: list[dict[str, Any]]) -> None:
        """Append events to TensorBoard's file, if there is one: records with their checksums."""
        if self._events is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        records = io.BytesIO()
        for fields in events:
            event = Event(wall_time=time.time(), **fields)
            RecordWriter(records).write(event.SerializeToString())
        self._events.append(records.getvalue())


def _events(row: dict[str, Any]) -> list[dict[str, Any]]:
    """TensorBoard's events of an iteration: all of its metrics, then `_CURVES` over other axes."""
    metrics = {t: v for t, v in row.items() if t not in AXES and isinstance(v, int | float)}
    curves = {tag: metrics[tag] for tag in _CURVES if tag in metrics}
    values = [(row["iteration"], metrics)]
    for axis, end in OVER_AXES.items():
        values.append((row[axis], {tag + end: value for tag, value in curves.items()}))
    return [
        {
            "step": min(int(step), 2**63 - 1),
            "summary": {"value": [{"tag": tag, "simple_value": v} for tag, v in found.items()]},
        }
        for step, found in values
        if found
    ]


class _AppendedFile:
    """Appends whole entries; those that fail wait for the next call. Only making it raises."""

    def __init__(self, path: Path) -> None:
        self.error: str | None = None  # why entries are waiting, if any are
        self.descriptor, self._path, self._waiting = -1, path, b""
        self._open()

    def append(self, entry: bytes) -> None:
        """Write what is waiting and `entry`, as far as that is possible."""
        self._waiting += entry
        if not self._waiting:
            return
        size = None
        try:
            self.reopen_if_replaced()
            size = os.fstat(self.descriptor).st_size
            rest = memoryview(self._waiting)
            while rest:
                rest = rest[os.write(self.descriptor, rest) :]
        except OSError as error:
            self.error = error.strerror or str(error)
            if size is not None:
                with suppress(OSError):
                    os.ftruncate(self.descriptor, size)
        else:
            self._waiting, self.error = b"", None

    def reopen_if_replaced(self) -> bool:
        """Open the file that has the path now, if that is another one; whether it was."""
        if self.descriptor >= 0 and os.fstat(self.descriptor).st_nlink == 0:
            os.close(self.descriptor)  # removed: we would write into nothing
            self.descriptor = -1
        if replaced := self.descriptor < 0:
            self._open()
        return replaced

    def _open(self) -> None:
        # Without O_NONBLOCK a named pipe would wait for a reader.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK
        self.descriptor = os.open(self._path, flags, 0o666)


def is_trained(run: Path) -> bool:
    """Whether a process is writing to the run."""
    try:
        check_idle(run)
    except ConfigError:
        return True
    return False


def check_idle(run: Path) -> None:
    """Raise ConfigError if a process is writing to the run."""
    with suppress(OSError):
        descriptor = os.open(run / METRICS, os.O_RDONLY | os.O_NONBLOCK)
        try:
            _lock(descriptor, run)
        finally:
            os.close(descriptor)


def _lock(descriptor: int, run: Path) -> None:
    """Lock the file until it is closed, or its process is gone, where the file system has locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(f"the run {run} is still being trained by another process") from error
    except OSError:
        pass
