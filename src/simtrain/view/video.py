"""Videos of a policy at work: steps its environments, draws one of them, writes an MP4 file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import torch

from simtrain.env.env import Env
from simtrain.errors import ConfigError
from simtrain.view.playback import Act
from simtrain.view.renderer import Picture

_MOST_FPS = 30.0


def check_video_path(path: Path) -> None:
    """Raise ConfigError unless a video can be written to `path`."""
    if path.suffix.lower() != ".mp4":
        raise ConfigError(f"--video is {path}; give a file that ends with .mp4")
    folder = path.parent
    if not folder.is_dir():
        raise ConfigError(f"--video {path} cannot be written: there is no folder {folder}")
    if path.is_dir():
        raise ConfigError(f"--video {path} cannot be written: it is a folder")
    try:
        probe = _temporary(path)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise ConfigError(f"--video {path} cannot be written: {error.strerror}") from error


@torch.inference_mode()
def record(
    env: Env,
    act: Act,
    path: Path,
    steps: int,
    *,
    note: str = "",
    on_step: Callable[[], None] = lambda: None,
    width: int = 960,
    height: int = 540,
) -> None:
    """Reset `env`, let `act` control it for `steps` control steps, and write a video in real time.

    Args:
        env: the environment, changed in place; the first of its `num_envs` is shown.
        act: the policy.
        path: the MP4 file; written whole or not at all.
        steps: control steps.
        note: text to show in the picture.
        on_step: called after every step.
        width: in pixels, even.
        height: in pixels, even.

    Raises:
        RenderingError: the machine cannot draw.
        ConfigError: the file cannot be written.
    """
    stride = max(1, round(1.0 / (_MOST_FPS * env.step_dt)))
    frame_s = stride * env.step_dt
    with Picture(env, width=width, height=height) as picture:
        obs = env.reset()
        with writing_video(path, width, height, 1.0 / frame_s) as write:
            for step in range(steps):
                if step % stride == 0:
                    time = f"{step * env.step_dt:.1f} s"
                    write(picture.draw(passed_s=frame_s, note=f"{note}   {time}"))
                obs, _, _, _ = env.step(act(obs))
                on_step()


@contextmanager
def writing_video(
    path: Path, width: int, height: int, fps: float
) -> Iterator[Callable[[np.ndarray], None]]:
    """A function that appends a frame, uint8 ``(height, width, 3)``, to a video.

    Args:
        path: the MP4 file; written whole or not at all.
        width: in pixels, even.
        height: in pixels, even.
        fps: frames a second.

    Raises:
        ConfigError: the file cannot be written.
    """
    temporary = _temporary(path)
    try:
        writer = imageio_ffmpeg.write_frames(
            str(temporary), (width, height), fps=fps, codec="libx264", quality=7, macro_block_size=2
        )
        writer.send(None)
        try:
            yield lambda frame: writer.send(np.ascontiguousarray(frame))
        finally:
            writer.close()
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"the video {path} cannot be written: {error.strerror}") from error
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.stem}.{os.getpid()}.tmp.mp4")


def as_gif(path: Path, *, width: int = 320, fps: float = 12.5) -> bytes:
    """A small animated GIF of a video, for places that show no MP4."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path)]
    command += ["-vf", f"fps={fps},scale={width}:-2", "-f", "gif", "-"]
    return subprocess.run(command, check=True, capture_output=True).stdout
