"""A video of the last steps of a simulation that failed."""

from __future__ import annotations

from pathlib import Path

from simtrain.view.renderer import Canvas
from simtrain.view.replay import Replay
from simtrain.view.video import writing_video

_FPS = 30.0
_REST_S = 2.0
"""How long the last step stays."""


def record_replay(
    replay: Replay, path: Path, speed: float, *, width: int = 960, height: int = 540
) -> None:
    """Write a video of all steps, with what is worth knowing of each.

    Args:
        replay: the steps; stands in the last one afterwards.
        path: the MP4 file; written whole or not at all.
        speed: simulated seconds a second.
        width: in pixels, even.
        height: in pixels, even.

    Raises:
        RenderingError: the machine cannot draw.
        ConfigError: the file cannot be written.
    """
    step_dt = replay.dump.step_dt
    repeats = max(1, round(step_dt / speed * _FPS))
    with (
        Canvas(replay.model, width, height) as canvas,
        writing_video(path, width, height, _FPS) as write,
    ):
        for step in range(replay.dump.steps):
            lines = replay.show(step)
            frame = canvas.draw(replay.data, step_dt, lines)
            last = step == replay.dump.steps - 1
            for _ in range(max(repeats, round(_REST_S * _FPS)) if last else repeats):
                write(frame)
