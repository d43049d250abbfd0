import io

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from needs_opengl import needs_opengl
from PIL import Image
from rover import rover_env

from simtrain.view.video import as_gif, record

SIZE = (160, 90)


def _zero(obs, fresh):
    return torch.zeros(1, 1)


def _frames(path):
    frames = imageio_ffmpeg.read_frames(str(path))
    meta = next(frames)
    width, height = meta["size"]
    pixels = [np.frombuffer(f, np.uint8).reshape(height, width, 3) for f in frames]
    return meta, np.array(pixels).astype(int)


@needs_opengl
def test_a_video_plays_in_real_time_and_shows_the_robot_move(tmp_path):
    steps = 20
    calls = []

    def act(obs, fresh):
        calls.append(1)
        return torch.ones(1, 1)

    record(rover_env(), act, tmp_path / "out.mp4", range(steps), size=SIZE)
    meta, pixels = _frames(tmp_path / "out.mp4")
    # A control step takes 0.02 s; every second one is a frame.
    assert meta["fps"] == 25.0
    assert len(pixels) == 10
    assert pixels.shape[1:] == (90, 160, 3)
    assert np.abs(pixels[-1] - pixels[0]).max() > 50
    assert len(calls) == steps
    assert [path.name for path in tmp_path.iterdir()] == ["out.mp4"]
    gif = Image.open(io.BytesIO(as_gif(tmp_path / "out.mp4", width=80)))
    assert (gif.format, gif.size[0], gif.n_frames) == ("GIF", 80, 5)  # type: ignore[attr-defined]
    # Every step is a frame where steps are long.
    record(rover_env(timestep=0.05), _zero, tmp_path / "long.mp4", range(3), size=SIZE)
    meta, pixels = _frames(tmp_path / "long.mp4")
    assert (meta["fps"], len(pixels)) == (10.0, 3)


@needs_opengl
def test_a_policy_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError):
        record(rover_env(), lambda obs, fresh: 1 / 0, tmp_path / "out.mp4", range(3), size=SIZE)
    assert list(tmp_path.iterdir()) == []
