"""Videos in training: they are there, and training is the same to the bit without them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import pytest
from job import ONE_RANK, Job, assert_same_networks, timeless_metrics
from needs_opengl import needs_opengl
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

VIDEO = ("--video", "--video-interval", "3", "--video-length", "10")


def _train(folder: Path, *flags: str, **options: Any) -> Job:
    (folder / "tasks").mkdir()
    shutil.copy(Path(__file__).parents[1] / "view" / "rover.py", folder / "tasks")
    job = Job(folder, "rover", *ONE_RANK, "--save-interval", "4", *flags, **options)
    assert job.wait() == 0, job.output
    return job


@pytest.fixture(scope="module")
def without(tmp_path_factory) -> Path:
    return _train(tmp_path_factory.mktemp("without"), warm=True).run


@needs_opengl
def test_videos_are_recorded_and_training_is_the_same(without, tmp_path):
    run = _train(tmp_path, *VIDEO).run
    videos = sorted((run / "videos").iterdir())
    # At every interval, and at the end.
    assert [path.name for path in videos] == ["iteration_3.mp4", "iteration_4.mp4"]
    for path in videos:
        assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 5
    events = EventAccumulator(str(run), size_guidance={"images": 0})
    events.Reload()
    shown = events.Images("Video")
    sizes = [(image.step, image.width, image.height) for image in shown]
    assert sizes == [(3, 320, 180), (4, 320, 180)]
    assert shown[0].encoded_image_string.startswith(b"GIF89a")

    assert not (without / "videos").exists()
    assert len(timeless_metrics(run)) == 4
    assert timeless_metrics(run) == timeless_metrics(without)
    assert_same_networks(run / "model_4.pt", without / "model_4.pt")


def test_without_opengl_training_warns_and_goes_on(without, tmp_path):
    # MuJoCo itself could not even be imported, as with a library that is not installed.
    job = _train(tmp_path, *VIDEO, MUJOCO_GL="vulkan")
    text = "training goes on without videos: MUJOCO_GL is 'vulkan'; it must be"
    assert job.output.count(text) == 1
    assert not (job.run / "videos").exists()
    assert timeless_metrics(job.run) == timeless_metrics(without)
