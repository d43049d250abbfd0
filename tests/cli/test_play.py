"""The real `play` command: videos, and mistakes that end in one line."""

from __future__ import annotations

import io
import shutil
import socket

import imageio_ffmpeg
import pytest
import torch
from needs_opengl import needs_opengl
from refusal import refused

from simtrain.cli.play import play
from simtrain.env.env import Env

TASK = "cartpole-balance"


@needs_opengl
@pytest.mark.parametrize("name", ["{run}", "{run}/model_1.pt", f"{TASK} --policy zero"])
def test_a_video_of_a_run_of_a_checkpoint_and_of_a_task(name, trained_run, here, capsys):
    words = name.format(run=trained_run).split()
    assert play([*words, "--video", "out.mp4", "--seconds", "0.5", "--num-envs", "1"]) == 0
    assert capsys.readouterr().out.split() == ["video:", "out.mp4"]
    # A control step of this task takes 0.05 s.
    assert imageio_ffmpeg.count_frames_and_secs(str(here / "out.mp4")) == (10, 0.5)


@needs_opengl
def test_a_command_is_kept_in_a_video(here, monkeypatch):
    monkeypatch.setattr("simtrain.view.video.record", lambda env, *others: seen.append(env))
    seen: list[Env] = []
    words = "go1-velocity-flat --command -0.5 0 0.25 --num-envs 2 --video out.mp4"
    assert play(words.split()) == 0
    (env,) = seen
    env.reset()
    env.step(torch.zeros(2, env.num_actions))
    assert env.command("velocity").tolist() == [[-0.5, 0.0, 0.25]] * 2


MISTAKES = [
    ("", "name one run, checkpoint or task first"),
    ("cartpole-balanse", "no run, checkpoint or task cartpole-balanse (did you mean 'cartpole-ba"),
    (f"{TASK} --policy zero --videos out.mp4", "no flag --videos (did you mean '--video'"),
    (f"{TASK} --headless", "no flag --headless; --video out.mp4 needs no display"),
    (f"{TASK} --checkpoint_file a.pt", "no flag --checkpoint_file; the run or checkpoint comes"),
    (f"{TASK} --policy zero --video out.gif", "--video is out.gif; give a file that ends with"),
    (f"{TASK} --policy zero --video no/out.mp4", "cannot be written: no is not a folder"),
    (f"{TASK} --policy zero --viewer none", "--viewer none shows nothing; add --video out.mp4"),
    (f"{TASK} --policy zero --host 192.0.2.1", "cannot listen on 192.0.2.1:8080: Cannot assign"),
    (f"{TASK} --policy zero --env.rewards.upright.pole-joints x", "no joint matches 'x'"),
    (f"{TASK} --policy zero --command 1", "--command is 1; the task has no command"),
    ("go1-velocity-flat --command 1 0", "--command velocity needs 3 numbers (forward"),
    ("go1-velocity-flat --command velocty 1 0 0", "no command 'velocty' (did you mean 'velocity'"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(command, message, here):
    with refused(message, here):
        play(command.split())


def test_a_port_in_use_is_told(here):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with refused(f"{port}: Address already in use; choose another", here):
            play([TASK, "--policy", "zero", "--port", port])


def test_the_page_follows_a_run_and_stays_with_what_it_has_when_a_file_is_damaged(
    trained_run, here, monkeypatch
):
    files = {n: (trained_run / f"model_{n}.pt").read_bytes() for n in (1, 2)}
    shutil.copytree(trained_run, here / "run")
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
