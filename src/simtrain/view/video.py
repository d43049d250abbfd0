"""Videos of a policy: step its environments, draw one of them, write an MP4 file."""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import torch

from simtrain.env.env import Env
from simtrain.errors import ConfigError
from simtrain.run.directory import check_file
from simtrain.view.playback import Act
from simtrain.view.renderer import Picture

Size = tuple[int, int]  # width and height in pixels, even
_MAX_FPS = 30.0


def check_video_path(path: Path) -> None:
    """Raise ConfigError unless a video can be written to `path`."""
    if path.suffix.lower() != ".mp4":
        raise ConfigError(f"--video is {path}; give a file that ends with .mp4")
    check_file(path, "--video")


@torch.inference_mode()
def record(
    env: Env, act: Act, path: Path, steps: Iterable[int], note: str = "", size: Size = (960, 540)
) -> None:
    """Reset `env`, let `act` control it in place, and write a video of the first environment.

    `steps` are the numbers of the control steps from 0 on; an iterable can show progress.
    RenderingError if the machine cannot draw, ConfigError if `path` cannot be written.
    """
    stride = max(1, round(1.0 / (_MAX_FPS * env.step_dt)))
    frame_s = stride * env.step_dt
    with Picture(env, *size) as picture:
        obs = env.reset()
        with writing_video(path, size, 1.0 / frame_s) as write:
            for step in steps:
                if step % stride == 0:
                    line = f"{note}   {step * env.step_dt:.1f} s"
                    write(picture.draw(passed_s=frame_s, note=line))
                obs, _, _, _ = env.step(act(obs, env.is_fresh))


@contextmanager
def writing_video(path: Path, size: Size, fps: float) -> Iterator[Callable[[np.ndarray], None]]:
    """A function that appends a frame, uint8 ``(height, width, 3)``; ConfigError if it cannot."""
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.tmp.mp4")
    try:
        options: Any = {"codec": "libx264", "quality": 7, "macro_block_size": 2}
        with closing(
            imageio_ffmpeg.write_frames(str(temporary), size, fps=fps, **options)
        ) as writer:
            writer.send(None)
            yield lambda frame: writer.send(np.ascontiguousarray(frame))
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or "ffmpeg failed"
        raise ConfigError(f"the video {path} cannot be written: {reason}") from error
    finally:
        temporary.unlink(missing_ok=True)


def as_gif(path: Path, *, width: int = 320) -> bytes:
    """A small animated GIF of a video, for places that show no MP4."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-v", "error", "-i", str(path)]
    command += ["-vf", f"fps=12.5,scale={width}:-2", "-f", "gif", "-"]
    return subprocess.run(command, check=True, capture_output=True).stdout
