"""The real `play` command: videos, and mistakes that end in one line."""

from __future__ import annotations

import ctypes
import io
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import imageio_ffmpeg
import pytest
import torch
from needs_opengl import needs_opengl

from simtrain.cli.play import play
from simtrain.errors import ConfigError

TASK = "cartpole-balance"
TRAIN = "--gpu-ids None --num-envs 8 --num-steps-per-env 8 --max-iterations 2 --save-interval 1"


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("logs")
    command = [sys.executable, "-m", "simtrain.cli.start", "train", TASK, *TRAIN.split()]
    subprocess.run([*command, "--log-root", str(root)], check=True, capture_output=True)
    (path,) = root.glob("*/*")
    return path


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SIMTRAIN_TASKS", raising=False)
    return tmp_path


@needs_opengl
@pytest.mark.parametrize("what", ["run", "checkpoint", "task"])
def test_a_video_of_a_run_of_a_checkpoint_and_of_a_task(what, run, here, capsys):
    first = {
        "run": [str(run)],
        "checkpoint": [str(run / "model_1.pt")],
        "task": [TASK, "--policy", "zero"],
    }[what]
    assert play([*first, "--video", "out.mp4", "--seconds", "0.5", "--num-envs", "1"]) == 0
    assert capsys.readouterr().out.split() == ["video:", "out.mp4"]
    # A control step of this task takes 0.05 s.
    assert imageio_ffmpeg.count_frames_and_secs(str(here / "out.mp4")) == (10, 0.5)


def test_help_needs_no_run(capsys):
    assert play(["--help"]) == 0
    assert "play logs/<task>/<run> --video out.mp4" in capsys.readouterr().out


MISTAKES = [
    ("", "name one run, checkpoint or task first"),
    ("one two", "name one run, checkpoint or task first"),
    ("--video out.mp4", "name one run, checkpoint or task first"),
    ("cartpole-balanse", "no run, checkpoint or task cartpole-balanse (did you mean 'cartpole-ba"),
    ("empty", "empty is no run directory"),
    ("broken/model_1.pt", "not a checkpoint, or it is damaged"),
    (f"{TASK} --policy learned", "--policy is 'learned'; it must be one of trained, zero, random"),
    (f"{TASK} --policy zero --videos out.mp4", "no flag --videos (did you mean '--video'"),
    (f"{TASK} --policy zero --video out.gif", "--video is out.gif; give a file that ends with"),
    (f"{TASK} --policy zero --video no/out.mp4", "cannot be written: no is not a folder"),
    (f"{TASK} --policy zero --video a.mp4 --seconds 0", "--seconds is 0.0; it must be 0.001"),
    (f"{TASK} --policy zero --viewer none", "--viewer none shows nothing; add --video out.mp4"),
    (f"{TASK} --policy zero --num-envs 0", "--num-envs is 0; it must be 1 or more"),
    (f"{TASK} --policy zero --seed -1", "--seed is -1; it must be 0 or more"),
    (f"{TASK} --policy zero --port 70000", "--port is 70000; it must be 65535 or less"),
    (f"{TASK} --policy zero --host 192.0.2.1", "cannot listen on 192.0.2.1:8080: Cannot assign"),
    (f"{TASK} --policy zero --device tpu", "--device is 'tpu'; it must be auto, cpu, or cuda:0"),
    (f"{TASK} --policy zero --device cuda:99", "--device cuda:99: "),
    (f"{TASK} --policy zero --env.rewards.upright.pole-joints x", "no joint matches 'x'"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(command, message, here, run):
    (here / "empty").mkdir()
    (here / "broken").mkdir()
    (here / "broken" / "config.yaml").write_bytes((run / "config.yaml").read_bytes())
    whole = (run / "model_1.pt").read_bytes()
    (here / "broken" / "model_1.pt").write_bytes(whole[: len(whole) // 2])
    before = sorted(here.rglob("*"))
    with pytest.raises(ConfigError) as error:
        play(command.split())
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(here.rglob("*")) == before


def test_a_port_in_use_ends_with_exit_code_2_and_no_traceback(here):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = subprocess.run(
            [sys.executable, "-m", "simtrain.cli.start", "play", TASK, "--policy", "zero",
             "--port", str(port)],
            cwd=here, capture_output=True, text=True, timeout=100,
        )  # fmt: skip
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr == (
        f"error: the web viewer cannot listen on 127.0.0.1:{port}: Address already in use; "
        "choose another with --port, or 0 for any that is free\n"
    )


def test_without_opengl_the_missing_package_is_named(here, monkeypatch):
    real = ctypes.CDLL

    def load(library, *args, **kwargs):
        if library in ("libEGL.so.1", "libOSMesa.so.8"):
            raise OSError(library)
        return real(library, *args, **kwargs)

    monkeypatch.setattr(ctypes, "CDLL", load)
    for name in ("MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="apt-get install libegl1"):
        play([TASK, "--policy", "zero", "--video", "out.mp4"])
    assert list(here.iterdir()) == []


def test_the_page_follows_a_run_and_stays_with_what_it_has_when_a_file_is_damaged(
    run, here, monkeypatch
):
    files = {n: (run / f"model_{n}.pt").read_bytes() for n in (1, 2)}
    shutil.copytree(run, here / "run")
    newest, shown = here / "run" / "model_2.pt", []
    newest.unlink()

    def watch(viewer):
        panel, first = viewer._policy_panel, _weights(viewer)
        for content, changes in ((files[2][:5000], False), (_of_another(files[2]), False),
                                 (files[2], True)):  # fmt: skip
            newest.write_bytes(content)
            viewer._update_panels(1.0)
            shown.append(panel._failure.content if panel._failure.visible else "")
            assert torch.equal(_weights(viewer), first) is not changes
        state = torch.load(newest, weights_only=True)["actor_state_dict"]
        assert torch.equal(_weights(viewer), state["mlp.0.weight"])

    monkeypatch.setattr("simtrain.view.web.WebViewer.run", watch)
    assert play(["run", "--viewer", "web", "--port", "0", "--num-envs", "1"]) == 0
    assert "run/model_2.pt is not a checkpoint, or it is damaged" in shown[0]
    assert "the checkpoint is of another network" in shown[1]
    assert shown[2] == ""


def _weights(viewer) -> torch.Tensor:
    """The first of the policy that acts."""
    return viewer._playback._act.actor.state_dict()["mlp.0.weight"].clone()


def _of_another(checkpoint: bytes) -> bytes:
    """The same with a policy that sees one number less."""
    content, file = torch.load(io.BytesIO(checkpoint), weights_only=True), io.BytesIO()
    state = content["actor_state_dict"]
    state["mlp.0.weight"] = state["mlp.0.weight"][:, 1:].clone()
    torch.save(content, file)
    return file.getvalue()


def test_a_policy_of_another_task_is_told(run, here):
    with pytest.raises(ConfigError, match="the checkpoint is of another network, or of a task"):
        play([str(run), "--env.observations.actor.velocities.history-length", "3", "--port", "0"])
