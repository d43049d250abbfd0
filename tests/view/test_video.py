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


@needs_opengl
def test_a_video_plays_in_real_time_and_shows_the_robot_move(tmp_path):
    env, act = rover_env(), lambda obs, fresh: torch.ones(1, 1)
    record(env, act, tmp_path / "out.mp4", range(20), size=SIZE)
    frames = imageio_ffmpeg.read_frames(str(tmp_path / "out.mp4"))
    meta = next(frames)
    pixels = np.array([np.frombuffer(f, np.uint8).reshape(90, 160, 3) for f in frames]).astype(int)
    # A control step takes 0.02 s; every second one is a frame.
    assert meta["fps"] == 25.0
    assert len(pixels) == 10
    assert meta["size"] == SIZE
    assert np.abs(pixels[-1] - pixels[0]).max() > 50
    assert env.steps == 20
    assert [path.name for path in tmp_path.iterdir()] == ["out.mp4"]
    gif = Image.open(io.BytesIO(as_gif(tmp_path / "out.mp4", width=80)))
    assert (gif.format, gif.size[0], gif.n_frames) == ("GIF", 80, 5)  # type: ignore[attr-defined]


@needs_opengl
def test_a_policy_that_fails_leaves_no_file(tmp_path):
    with pytest.raises(ZeroDivisionError):
        record(rover_env(), lambda obs, fresh: 1 / 0, tmp_path / "out.mp4", range(3), size=SIZE)
    assert list(tmp_path.iterdir()) == []
