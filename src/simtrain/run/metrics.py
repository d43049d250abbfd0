"""The metrics of a run: metrics.jsonl and TensorBoard's event file.

A resumed run goes on in both: ``metrics.jsonl`` is cut back to the iteration that it is resumed
after, TensorBoard's files to the sizes that they had then.
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

from simtrain.errors import ConfigError
from simtrain.files import as_json, read_file
from simtrain.run.metric_tags import LENGTH, RETURN, STEP_REWARD

METRICS = "metrics.jsonl"
_EVENTS = "events.out.tfevents.*"
_AXES = ("iteration", "env_steps", "wall_s")
_OTHER_AXES = {"env_steps": "/env_steps", "wall_s": "/time"}
"""Ends of TensorBoard's tags that are not over iterations; rsl_rl's for seconds."""
_CURVES = (STEP_REWARD, RETURN, LENGTH, "Eval/mean_return")
"""Tags that TensorBoard also shows over environment steps and seconds."""


class MetricsWriter:
    """Appends one JSON object an iteration to ``metrics.jsonl``, and the tags to TensorBoard."""

    def __init__(
        self,
        run: Path,
        *,
        tensorboard: bool,
        after: int = 0,
        event_sizes: dict[str, int] | None = None,
    ) -> None:
        """Make the files, or continue them after so many iterations.

        `event_sizes` are those of TensorBoard's files then, 0 by default. ConfigError if a file
        cannot be written; `warnings` say what is missing.
        """
        self._run, path = run, run / METRICS
        try:
            self._lines = _AppendedFile(path)
            _lock(self._lines.descriptor, run)
            rows, self.warnings = _cut_back(path, after)
            for file in run.glob(_EVENTS):
                size = (event_sizes or {}).get(file.name, 0)
                os.truncate(file, min(size, file.stat().st_size))
            events = run / f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}"
            self._events = _AppendedFile(events) if tensorboard else None
        except OSError as error:
            raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
        self._files = [self._lines] if self._events is None else [self._lines, self._events]
        # A TensorBoard that is running forgets this step and later ones of all tags; those over
        # other axes are larger, and are written again.
        start = {"step": after + 1, "session_log": {"status": "START"}}
        again = (event for row in rows for event in _events(row) if event["step"] > after)
        self._append_events({"file_version": "brain.Event:2"}, start, *again)

    def event_sizes(self) -> dict[str, int]:
        """The present size of each of TensorBoard's files, by name."""
        return {path.name: path.stat().st_size for path in self._run.glob(_EVENTS)}

    @property
    def error(self) -> str | None:
        """Why numbers wait to be written, or None if none do."""
        return next((file.error for file in self._files if file.error is not None), None)

    def write(
        self, iteration: int, env_steps: int, wall_s: float, metrics: dict[str, float]
    ) -> None:
        """Write the numbers of an iteration; if the disk is full, at a later call."""
        line = {"iteration": iteration, "env_steps": env_steps, "wall_s": wall_s, **metrics}
        self._lines.append(as_json(line).encode() + b"\n")
        self._append_events(*_events(line))

    def write_video(self, iteration: int, gif: bytes) -> None:
        """Show an animated GIF in TensorBoard, if that is on."""
        width, height = struct.unpack("<HH", gif[6:10])
        image = {"width": width, "height": height, "colorspace": 3, "encoded_image_string": gif}
        summary = {"value": [{"tag": "Video", "image": image}]}
        self._append_events({"step": iteration, "summary": summary})

    def sync(self) -> None:
        """Wait until all written data is on the disk; for another thread."""
        for file in self._files:
            with suppress(OSError):
                os.fsync(file.descriptor)

    def close(self) -> None:
        """Write the waiting entries, as far as possible, and close the files."""
        for file in self._files:
            file.append(b"")
            with suppress(OSError):
                os.close(file.descriptor)

    def _append_events(self, *events: dict[str, Any]) -> None:
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
    metrics = {t: v for t, v in row.items() if t not in _AXES and isinstance(v, int | float)}
    curves = {tag: metrics[tag] for tag in _CURVES if tag in metrics}
    values = [(row["iteration"], metrics)]
    for axis, end in _OTHER_AXES.items():
        values.append((row[axis], {tag + end: value for tag, value in curves.items()}))
    return [
        {
            "step": min(int(step), 2**63 - 1),
            "summary": {"value": [{"tag": tag, "simple_value": v} for tag, v in scalars.items()]},
        }
        for step, scalars in values
        if scalars
    ]


def parse_row(line: bytes) -> dict[str, Any] | None:
    """A line of metrics.jsonl, with integers as floats; None if it is damaged."""
    try:
        row = json.loads(line, parse_int=float)
        axes = [row[name] for name in _AXES]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    are_numbers = all(isinstance(x, float) and math.isfinite(x) for x in axes)
    return row if are_numbers and axes[0].is_integer() and axes[0] > 0.0 else None


def _cut_back(path: Path, after: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Remove the lines after an iteration, in place.

    Returns the rows that stay, and warnings. A damaged line before the last one stays where it is.
    OSError or ConfigError if the file cannot be read or written.
    """
    lines = read_file(path, "").splitlines(keepends=True)
    rows: dict[float, dict[str, Any]] = {}
    size = end = 0
    for line in lines:
        end += len(line)
        row = parse_row(line) if line.endswith(b"\n") else None
        if row is not None and row["iteration"] <= after:
            rows[row["iteration"]], size = row, end
    os.truncate(path, size)
    warnings = []
    if missing := [number for number in range(1, after + 1) if number not in rows]:
        first = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        warnings.append(f"{path} lacks {len(missing)} of the {after} iterations so far: {first}")
    return [*rows.values()], warnings


class _AppendedFile:
    """Appends whole entries; those that fail wait for the next call. Only making it raises."""

    def __init__(self, path: Path) -> None:
        self.error: str | None = None  # why entries are waiting, if any are
        self.descriptor, self._path, self._waiting = _opened(path), path, b""

    def append(self, entry: bytes) -> None:
        """Write the waiting entries and `entry`, as far as possible."""
        self._waiting += entry
        size = None
        try:
            if os.fstat(self.descriptor).st_nlink == 0:  # removed: we would write into nothing
                removed, self.descriptor = self.descriptor, _opened(self._path)
                os.close(removed)
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


def _opened(path: Path) -> int:
    # Without O_NONBLOCK a named pipe would wait for a reader.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666)


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
