"""What a resumed run keeps of its metrics: all up to the checkpoint, but for what is damaged.

Damaged lines and records are kept aside, and told. A damaged number that is still a number cannot
be told from a right one in ``metrics.jsonl``; TensorBoard's records have checksums.
"""

import json
import math
import os
import struct
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

from simtrain.files import read_file, written_whole

AXES = ("iteration", "env_steps", "wall_s")
OVER_AXES = {"env_steps": "/env_steps", "wall_s": "/time"}
"""Ends of TensorBoard's tags that are not over iterations; rsl_rl's for seconds."""
DAMAGED_LINES, DAMAGED_EVENTS = "metrics.damaged.jsonl", "events.damaged"
_FARTHEST = 2**20  # bytes after a damaged record within which the next one is looked for


def parse_row(line: bytes) -> dict[str, Any] | None:
    """A line of metrics.jsonl, whole numbers as floats too; None if it is none."""
    try:
        row = json.loads(line, parse_int=float)
        axes = [row[name] for name in AXES]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    whole = all(isinstance(x, float) and math.isfinite(x) for x in axes) and axes[0].is_integer()
    return row if whole and axes[0] > 0.0 else None


def cut_lines(path: Path, after: int, env_steps: int | None) -> list[str]:
    """Cut off the lines after an iteration with so many `env_steps`, in place; warnings.

    OSError or ConfigError if that cannot be done.
    """
    lines = read_file(path, "").splitlines(keepends=True)
    rows = ((i, parse_row(line)) for i, line in enumerate(lines) if line.endswith(b"\n"))
    found = [(i, row) for i, row in rows if row is not None]
    kept: dict[int, dict[str, Any]] = {}
    last = 0.0
    for (i, row), (_, following) in pairwise([*found, (0, {"iteration": math.inf})]):
        # One that is not between its neighbours has a damaged number.
        if row["iteration"] <= after and last < row["iteration"] < following["iteration"]:
            kept[i], last = row, row["iteration"]
    missing = after - len(kept)
    end = max(kept, default=-1) + 1
    if missing:  # the last of them may be among what cannot be read
        end = next((i for i, row in found if i >= end and row["iteration"] > after), len(lines))
    good = b"".join(lines[i] for i in kept)
    damaged = b"".join(lines[i] for i in range(end) if i not in kept)
    warnings = _rewrite(path, path.with_name(DAMAGED_LINES), good, damaged)
    if missing:
        numbers = {row["iteration"] for row in kept.values()}
        first = [*islice((n for n in range(1, after + 1) if n not in numbers), 5)]
        shown = ", ".join(map(str, first)) + (", ..." if missing > 5 else "")
        warnings.append(f"{path} lacks {missing} of the {after} iterations so far: {shown}")
    elif kept and env_steps not in (None, steps := kept[end - 1]["env_steps"]):
        told = f"{steps:,.0f} environment steps, and the checkpoint {env_steps:,}"
        warnings.append(f"{path} is of another run: its iteration {after} has {told}")
    return warnings


def cut_events(path: Path, after: int) -> list[str]:
    """Cut off TensorBoard's records after an iteration, in place; warnings, errors as above."""
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    data = read_file(path, "")

    def is_right(start: int, stop: int) -> bool:
        return bool(masked_crc32c(data[start:stop]) == struct.unpack_from("<I", data, stop)[0])

    good: list[bytes] = []
    damaged: list[bytes] = []
    begin = 0
    while begin + 12 <= len(data):
        start = begin + 12  # after the event's length and that one's checksum
        stop = start + struct.unpack_from("<Q", data, begin)[0]
        if not is_right(begin, begin + 8):
            places = range(begin + 1, min(begin + _FARTHEST, len(data) - 12))
            end = next((i for i in places if is_right(i, i + 8)), len(data))
            damaged.append(data[begin:end])
        elif stop + 4 > len(data):  # a killed process wrote no more of it
            break
        else:
            end = stop + 4
            try:
                event = Event.FromString(data[start:stop]) if is_right(start, stop) else None
            except DecodeError:
                event = None
            if event is not None and event.step > after and not _over_other_axis(event):
                break
            (damaged if event is None else good).append(data[begin:end])
        begin = end
    aside = path.with_name(DAMAGED_EVENTS)
    return _rewrite(path, aside, b"".join(good), b"".join(damaged))


def _over_other_axis(event: Any) -> bool:
    """Whether the step of a TensorBoard event is no iteration; it follows that of its iteration."""
    return any(value.tag.endswith(tuple(OVER_AXES.values())) for value in event.summary.value)


def _rewrite(path: Path, aside: Path, good: bytes, damaged: bytes) -> list[str]:
    """Let a file have what is good alone, and append what is damaged to `aside`; warnings."""
    if not damaged:
        os.truncate(path, len(good))
        return []
    with aside.open("ab") as file:
        file.write(damaged)
    with written_whole(path) as file:
        file.write(good)
    return [f"{path} is damaged: {len(damaged):,} bytes of it are kept in {aside.name}"]
