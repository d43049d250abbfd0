"""Saved states: found, checked, and never taken for what they are not."""

from __future__ import annotations

import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from simtrain.errors import ConfigError
from simtrain.run.checkpoint import read_checkpoint, save_model
from simtrain.training.resumption import (
    FORMAT,
    NEWEST,
    PREVIOUS,
    find_run,
    open_run,
    write_resume_state,
)


def state(iteration: int, task: str = "hop") -> dict[str, Any]:
    random = torch.Generator().manual_seed(iteration)
    return {
        "format": FORMAT,
        "task": task,
        "iteration": iteration,
        "env_steps": 8 * iteration,
        **dict.fromkeys(("steps", "threads"), 1),
        "model": "digest",
        **{key: {} for key in ("versions", "config", "default", "learner", "features")},
        "trainer": {"iteration": iteration, "env_steps": 8 * iteration},
        "ranks": [{"env": {"x": torch.randn(64, generator=random)}, "none": None}] * 2,
        "numbers": [1, 2.5, float("nan"), True, "text"],
    }


def digest(content: Any) -> str:
    """Tensors and plain values, bit for bit, as a text."""
    if isinstance(content, torch.Tensor):
        return f"{content.dtype} {tuple(content.shape)} {content.numpy().tobytes().hex()}"
    if isinstance(content, dict):
        return str({key: digest(item) for key, item in content.items()})
    return str([digest(item) for item in content]) if isinstance(content, list) else repr(content)


def run_of(folder: Path, *iterations: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for iteration in iterations:
        write_resume_state(folder, state(iteration))
    return folder


def truncated(data: bytes, place: int) -> bytes:
    return data[:place]


def zeroed(data: bytes, place: int) -> bytes:
    return data[:place] + bytes(len(data[place : place + 512])) + data[place + 512 :]


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :]


DAMAGES = [truncated, zeroed, flipped]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_state_is_told_and_the_one_before_is_taken(damage, tmp_path):
    run = run_of(tmp_path / "run", 1, 2)
    newest, before = (open_run(run_of(tmp_path / str(i), i)).content for i in (2, 1))
    told = survive(
        run / NEWEST,
        damage,
        lambda: open_run(run),
        lambda found: (
            str(run / NEWEST) in "".join(found.warnings) and digest(found.content) == digest(before)
        ),
        lambda found: not found.warnings and digest(found.content) == digest(newest),
    )
    assert told > 25  # a bit may fall between the parts of the file


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_told(damage, tmp_path):
    path = tmp_path / "model_7.pt"
    network = torch.nn.Linear(8, 8)
    networks = {
        "actor_state_dict": network.state_dict(),
        "critic_state_dict": network.state_dict(),
        "optimizer_state_dict": torch.optim.Adam(network.parameters()).state_dict(),
    }
    save_model(path, 7, networks, {"task": "hop", "env_steps": 5})
    whole = digest(read_checkpoint(path))

    def read() -> str | None:
        try:
            return digest(read_checkpoint(path))
        except ConfigError as error:
            return None if str(path) in str(error) else "a message without the file"

    told = survive(path, damage, read, lambda found: found is None, lambda found: found == whole)
    assert told > 25  # a bit may fall between the parts of the file


def test_a_truncated_checkpoint_lacks_its_end(tmp_path):
    path = tmp_path / "model_7.pt"
    empty = {f"{name}_state_dict": {} for name in ("actor", "critic", "optimizer")}
    save_model(path, 7, empty, {})
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"or it is damaged: its end is missing$"):
        read_checkpoint(path)


def survive(
    path: Path,
    damage: Callable[[bytes, int], bytes],
    read: Callable[[], Any],
    is_told: Callable[[Any], bool],
    is_harmless: Callable[[Any], bool],
) -> int:
    """Damage a file at 50 places, one at a time; how often that was told. Nothing else happens."""
    data = path.read_bytes()
    places = random.Random(3).sample(range(len(data)), 50)
    told = 0
    for place in places:
        path.write_bytes(damage(data, place))
        found = read()
        assert is_told(found) or is_harmless(found), place
        told += is_told(found)
    return told


def test_without_a_whole_state_the_run_cannot_go_on(tmp_path):
    run = run_of(tmp_path, 1, 2)
    for name in (NEWEST, PREVIOUS):
        (run / name).write_bytes(b"gone")
    with pytest.raises(ConfigError, match=r"cannot be resumed: .*resume.pt .*resume.previous.pt"):
        open_run(run)


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    run = run_of(tmp_path, 1)
    (run / NEWEST).rename(run / PREVIOUS)
    assert open_run(run).iteration == 1


def test_a_file_that_would_run_code_is_refused(tmp_path):
    torch.save({"call": torch.nn.Linear(1, 1)}, tmp_path / NEWEST)
    with pytest.raises(ConfigError, match=r"refused: it holds more than .* \(torch.nn"):
        open_run(tmp_path)
    torch.save({"call": os.system}, tmp_path / NEWEST)
    with pytest.raises(ConfigError, match=r"refused: it holds more than .* \(posix.system\)"):
        open_run(tmp_path)


def test_another_format_is_told(tmp_path):
    write_resume_state(tmp_path, {**state(1), "format": 99})
    with pytest.raises(ConfigError, match="another version of simtrain"):
        open_run(tmp_path)


def test_latest_is_the_newest_run_of_the_task_that_can_go_on(tmp_path):
    for name in ("2030-01-01_00-00-00", "2030-01-02_00-00-00_wide"):
        run_of(tmp_path / "hop" / name, 3)
    run_of(tmp_path / "walk" / "2031-01-01_00-00-00", 3)
    found = find_run("latest", tmp_path, "hop")
    assert found.path.name == "2030-01-02_00-00-00_wide"
    assert found.warnings == ()

    (tmp_path / "hop" / "2030-01-03_00-00-00").mkdir()
    found = find_run("latest", tmp_path, "hop")
    assert found.path.name == "2030-01-02_00-00-00_wide"
    assert "2030-01-03_00-00-00, a newer run, has no resume.pt yet" in found.warnings[0]


def test_latest_is_the_run_that_was_saved_last_whatever_its_name(tmp_path):
    for i, name in enumerate(("2030-01-02_00-00-00", "2030-01-01_00-00-00")):
        run = run_of(tmp_path / "hop" / name, 3)
        os.utime(run / NEWEST, (1000.0 + i, 1000.0 + i))
    assert find_run("latest", tmp_path, "hop").path.name == "2030-01-01_00-00-00"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("latest", "there is no run of hop below --log-root"),
        ("gone", r"there is no run gone \(--resume\)"),
        ("empty", "empty cannot be resumed: it has no resume.pt"),
        ("other", "other is a run of walk: `uv run train walk"),
    ],
)
def test_a_run_that_cannot_go_on_is_told(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("other").mkdir()
    write_resume_state(Path("other"), state(1, task="walk"))
    with pytest.raises(ConfigError, match=message):
        find_run(name, Path("logs"), "hop")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("iteration", "x"),
        ("iteration", -1),
        ("ranks", []),
        ("learner", [1]),
        ("trainer", {"iteration": torch.zeros(2), "env_steps": 16}),
        ("env_steps", 2**70),
        ("versions", {"torch": 5}),
        ("features", {"Recorder": torch.zeros(1).expand(2**36)}),  # 256 GiB in a few bytes
    ],
)
def test_a_crafted_state_is_told(key, value, tmp_path):
    for iteration in (1, 2):
        write_resume_state(tmp_path, state(iteration))
    torch.save({**state(2), key: value}, tmp_path / NEWEST)
    found = open_run(tmp_path)
    assert (found.file.name, found.iteration) == (PREVIOUS, 1)
    assert str(tmp_path / NEWEST) in found.warnings[0]
    (tmp_path / PREVIOUS).unlink()
    with pytest.raises(ConfigError, match=r"resume.pt is"):
        open_run(tmp_path)


def test_a_bomb_is_not_unpacked(tmp_path):
    torch.save({"x": torch.zeros(2**22)}, tmp_path / "model_1.pt")
    with (
        zipfile.ZipFile(tmp_path / "model_1.pt") as stored,
        zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for name in stored.namelist():
            bomb.writestr(name, stored.read(name))
    with pytest.raises(ConfigError, match="GiB are packed into"):
        read_checkpoint(tmp_path / "bomb.pt")
