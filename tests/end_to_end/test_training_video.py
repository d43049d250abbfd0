"""Videos in training: they are there, and training is the same to the bit without them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg
import pytest
import torch
from needs_opengl import needs_opengl
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

FLAGS = ("rover", "--gpu-ids", "None", "--cpu-threads", "1", "--save-interval", "4")
VIDEO = ("--video", "--video-interval", "3", "--video-length", "10")


def _train(folder: Path, *flags: str, command: tuple[str, ...] = ()) -> tuple[Path, str]:
    """The run, and what was printed."""
    (folder / "tasks").mkdir()
    rover = Path(__file__).parents[1] / "view" / "rover.py"
    (folder / "tasks" / "rover.py").write_text(rover.read_text())
    result = subprocess.run(
        [*command, sys.executable, "-m", "simtrain.cli.start", "train", *FLAGS, *flags],
        cwd=folder, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    (run,) = (folder / "logs" / "rover").iterdir()
    return run, result.stdout + result.stderr


def _what_was_learned(run: Path) -> tuple[list[dict], dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [
        {tag: v for tag, v in line.items() if tag != "wall_s" and not tag.startswith("Perf/")}
        for line in lines
    ]
    return kept, torch.load(run / "model_4.pt", weights_only=True)


@pytest.fixture(scope="module")
def without(tmp_path_factory) -> Path:
    return _train(tmp_path_factory.mktemp("without"))[0]


@needs_opengl
def test_videos_are_recorded_and_training_is_the_same(without, tmp_path):
    run, _ = _train(tmp_path, *VIDEO)
    videos = sorted((run / "videos").iterdir())
    # At every interval, and at the end.
    assert [path.name for path in videos] == ["iteration_3.mp4", "iteration_4.mp4"]
    for path in videos:
        assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == 5
    events = EventAccumulator(str(run), size_guidance={"images": 0})
    events.Reload()
    shown = events.Images("Video")
    assert [(image.step, image.width, image.height) for image in shown] == [
        (3, 320, 180), (4, 320, 180)
    ]  # fmt: skip
    assert shown[0].encoded_image_string.startswith(b"GIF89a")

    assert not (without / "videos").exists()
    (metrics, model), (metrics_without, model_without) = map(_what_was_learned, (run, without))
    assert len(metrics) == 4
    assert metrics == metrics_without
    for network in ("actor_state_dict", "critic_state_dict"):
        for name, value in model_without[network].items():
            assert torch.equal(model[network][name], value), name


def test_without_opengl_training_warns_and_goes_on(without, tmp_path):
    # MuJoCo itself could not even be imported, as with a library that is not installed.
    run, said = _train(tmp_path, *VIDEO, command=("env", "MUJOCO_GL=vulkan"))
    assert said.count("training goes on without videos: MUJOCO_GL is 'vulkan'; it must be") == 1
    assert not (run / "videos").exists()
    assert _what_was_learned(run)[0] == _what_was_learned(without)[0]
