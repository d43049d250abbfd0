"""The thread that saves: one save at a time, the newest first, and again where the disk refuses."""

from __future__ import annotations

import threading
from pathlib import Path

import torch

from simtrain.run import saver as saver_module
from simtrain.run.resume import open_run
from simtrain.run.saver import Save, Saver


def save(iteration: int) -> Save:
    tensors = {"weight": torch.full((4,), float(iteration))}
    networks = dict.fromkeys(
        ("actor_state_dict", "critic_state_dict", "optimizer_state_dict"), tensors
    )
    return Save(
        iteration, networks, {"task": "hop"},
        lambda: {"task": "hop", "iteration": iteration, "env_steps": 0},
    )  # fmt: skip


def names(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir())


def test_a_save_writes_policy_and_state(tmp_path):
    saver = Saver(tmp_path, None, lambda: None)
    saver.submit(save(3))
    saver.close()
    assert names(tmp_path) == ["model_3.pt", "resume.pt"]
    assert (saver.saved, saver.error) == (tmp_path / "model_3.pt", None)
    assert open_run(tmp_path).iteration == 3
    assert saver.messages() == []


def test_only_the_newest_checkpoints_are_kept(tmp_path):
    saver = Saver(tmp_path, 2, lambda: None)
    for iteration in (8, 9, 10, 11):
        saver.submit(save(iteration))
        saver.wait()
    saver.close()
    assert names(tmp_path) == ["model_10.pt", "model_11.pt", "resume.previous.pt", "resume.pt"]


def test_training_does_not_wait_and_the_newest_save_comes_next(tmp_path):
    started, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        started.set()
        assert go_on.wait(60)

    saver = Saver(tmp_path, None, wait)
    saver.submit(save(1))
    assert started.wait(60)
    saver.submit(save(2))
    saver.submit(save(3))
    assert names(tmp_path) == []
    go_on.set()
    saver.close()
    assert names(tmp_path) == ["model_1.pt", "model_3.pt", "resume.previous.pt", "resume.pt"]
    (message,) = saver.messages()
    assert "model_2.pt is left out" in message


def test_a_vanished_folder_is_told_once_and_a_later_save_works_again(tmp_path, monkeypatch):
    monkeypatch.setattr(saver_module, "_RETRY_SECONDS", 0.01)
    run = tmp_path / "run"
    saver = Saver(run, None, lambda: None)
    saver.submit(save(1))
    saver.wait()
    assert saver.error == "No such file or directory"
    (message,) = saver.messages()
    assert message.startswith("warning: model_1.pt cannot be saved, trying again: No such file")
    run.mkdir()
    saver.submit(save(2))
    saver.close()
    assert saver.error is None
    assert run / "model_2.pt" == saver.saved
    assert open_run(run).iteration == 2
    (message,) = saver.messages()
    assert message.endswith("is saved, the disk can be written again")


def test_what_could_not_be_written_at_the_end_is_known(tmp_path):
    saver = Saver(tmp_path / "gone", None, lambda: None)
    saver.submit(save(1))
    saver.close()
    assert (saver.saved, saver.error) == (None, "No such file or directory")
