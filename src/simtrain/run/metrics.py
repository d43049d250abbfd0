"""Where an iteration's numbers go: metrics.jsonl and TensorBoard."""

from __future__ import annotations

import json
import math
import struct
import time
from pathlib import Path
from typing import Any


class MetricsWriter:
    """Appends one JSON object an iteration to ``metrics.jsonl``, and the tags to TensorBoard."""

    def __init__(self, run: Path, *, tensorboard: bool) -> None:
        self._file = (run / "metrics.jsonl").open("a", encoding="utf-8")
        self._events: Any = None
        if tensorboard:
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._events = EventFileWriter(str(run))

    def write(
        self, iteration: int, env_steps: int, wall_s: float, metrics: dict[str, float]
    ) -> None:
        """Write the numbers of an iteration.

        Args:
            iteration: how many iterations were trained.
            env_steps: environment steps since the start, over all ranks.
            wall_s: seconds since the start.
            metrics: TensorBoard tag -> value; in metrics.jsonl null if it is not finite.
        """
        # JSON knows no NaN and no infinity.
        known = {tag: v if math.isfinite(v) else None for tag, v in metrics.items()}
        line = {"iteration": iteration, "env_steps": env_steps, "wall_s": wall_s, **known}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        if self._events is not None:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary

            values = [Summary.Value(tag=tag, simple_value=v) for tag, v in metrics.items()]
            self._events.add_event(
                Event(wall_time=time.time(), step=iteration, summary=Summary(value=values))
            )

    def write_video(self, iteration: int, gif: bytes) -> None:
        """Show an animated GIF in TensorBoard, if that is on."""
        if self._events is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        width, height = struct.unpack("<HH", gif[6:10])
        image = Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=gif)
        summary = Summary(value=[Summary.Value(tag="Video", image=image)])
        self._events.add_event(Event(wall_time=time.time(), step=iteration, summary=summary))

    def close(self) -> None:
        """Write what is buffered and close the files."""
        self._file.close()
        if self._events is not None:
            self._events.close()
