"""Saved states: found, checked, and never taken for what they are not."""

from __future__ import annotations

import os
import random
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from simtrain.config.tasks import default_config
from simtrain.config.tree import resolved
from simtrain.env.model import compile_model, model_digest
from simtrain.errors import ConfigError
from simtrain.launch.plan import plan_job
from simtrain.run.checkpoint import read_checkpoint
from simtrain.training.resumption import (
    FORMAT,
    NEWEST,
    PREVIOUS,
    can_resume,
    find_run,
    open_run,
    part_of,
    plan_resumption,
    write_resume_state,
)


def state(iteration: int, task: str = "hop") -> dict[str, Any]:
    random = torch.Generator().manual_seed(iteration)
    return {
        "format": FORMAT,
        "task": task,
        "iteration": iteration,
        "env_steps": 8 * iteration,
        **dict.fromkeys(("steps", "threads", "world_size"), 1),
        "model": "digest",
        **{key: {} for key in ("versions", "config", "default", "learner", "features")},
        "trainer": {"iteration": iteration, "env_steps": 8 * iteration},
        "save": [iteration, 7],
        "ranks": [{"env": {"x": torch.randn(64, generator=random)}, "none": None}],
        "numbers": [1, 2.5, float("nan"), True, "text"],
    }


def digest(content: Any) -> str:
    """Tensors and plain values, bit for bit, as a text."""
    if isinstance(content, torch.Tensor):
        return f"{content.dtype} {tuple(content.shape)} {content.numpy().tobytes().hex()}"
    if isinstance(content, dict):
        return str({key: digest(item) for key, item in content.items()})
    return str([digest(item) for item in content]) if isinstance(content, list) else repr(content)


def run_of(folder: Path, *states: int | dict[str, Any]) -> Path:
    """A run with these states, given whole or by their iterations."""
    folder.mkdir(parents=True, exist_ok=True)
    for content in states:
        write_resume_state(folder, state(content) if isinstance(content, int) else content)
    return folder


DAMAGES = {
    "truncated": lambda data, place: data[:place],
    "zeroed": lambda data, place: (
        data[:place] + bytes(len(data[place:][:512])) + data[place + 512 :]
    ),
    "flipped": lambda data, place: (
        data[:place] + bytes([data[place] ^ (1 << place % 8)]) + data[place + 1 :]
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_reported_and_the_one_before_is_taken(damage, tmp_path):
    run = run_of(tmp_path / "run", 1, 2)
    before, newest = (digest(open_run(run_of(tmp_path / str(i), i)).content) for i in (1, 2))
    data = (run / NEWEST).read_bytes()
    reported = 0
    for place in random.Random(3).sample(range(len(data)), 50):
        (run / NEWEST).write_bytes(damage(data, place))
        saved = open_run(run)
        if saved.warnings:
            reported += 1
            assert str(run / NEWEST) in saved.warnings[0]
        assert digest(saved.content) == (before if saved.warnings else newest), place
    assert reported > 25  # a bit may fall between the parts of the file


def test_a_bomb_is_not_unpacked(tmp_path):
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("zeros", bytes(2**24))
    with pytest.raises(ConfigError, match="GiB are packed into"):
        read_checkpoint(tmp_path / "bomb.pt")


@pytest.mark.parametrize(
    ("call", "name"), [(torch.nn.Linear(1, 1), r"torch\.nn"), (os.system, r"posix\.system\)")]
)
def test_a_file_that_would_run_code_is_refused(call, name, tmp_path):
    torch.save({"call": call}, tmp_path / NEWEST)
    with pytest.raises(ConfigError, match=rf"refused: it holds more than .* \({name}"):
        open_run(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 99),
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
def test_a_crafted_state_is_reported_and_the_one_before_is_taken(key, value, tmp_path):
    run_of(tmp_path, 1, 2)
    torch.save({**state(2), key: value}, tmp_path / NEWEST)
    saved = open_run(tmp_path)
    assert (saved.file.name, saved.iteration) == (PREVIOUS, 1)
    assert str(tmp_path / NEWEST) in saved.warnings[0]
    (tmp_path / PREVIOUS).unlink()
    with pytest.raises(ConfigError, match=r"resume.pt (is|was saved by another version)"):
        open_run(tmp_path)


def test_members_of_a_population_go_on_from_states_after_the_same_meeting(tmp_path):
    """Not only after the same exchange: they also meet when they save."""
    saves = {"0": [(2, 2), (4, 4)], "1": [(4, 4), (6, 6)], "2": [(4, 4), (5, 4)]}
    for member, iterations in saves.items():
        states = ({**state(i), "features": {"Population": {"met": met}}} for i, met in iterations)
        run_of(tmp_path / "members" / member, *states)
    saved = open_run(tmp_path)
    assert [member.file.name for member in saved.members] == [NEWEST, PREVIOUS, NEWEST]
    assert saved.iteration == 4


@pytest.mark.parametrize(
    ("flags", "meets"),
    [
        ({}, True),
        ({"save_interval": 3}, True),  # all are beyond 3, and meet after 6
        ({"save_interval": 4}, False),
        ({"population_interval": 4}, False),
        ({"population_interval": 12}, True),
        ({"max_iterations": 6}, True),
        ({"max_iterations": 4}, False),  # the first one ends after 4, others are beyond
        ({"total_env_steps": 400}, True),
        ({"total_env_steps": 400, "num_envs": 3}, False),  # 16, 16 and 15 iterations
    ],
)
def test_members_that_stopped_apart_are_resumed_only_if_they_meet_again(flags, meets, tmp_path):
    config = replace(
        default_config("cartpole-balance"),
        num_envs=4,
        num_steps_per_env=8,
        population=3,
        population_interval=6,
        save_interval=6,
        max_iterations=13,
    )
    model = compile_model(config.env)
    for member, iteration in enumerate((3, 4, 5)):
        content = {
            **state(iteration, config.task),
            "env_steps": 32 * iteration,
            "trainer": {"iteration": iteration, "env_steps": 32 * iteration, "unfinished": None},
            "features": {"Population": {"met": 0}},
            "config": resolved(config),
            "default": resolved(default_config(config.task)),
            "model": model_digest(model),
        }
        run_of(tmp_path / "members" / str(member), content)
    now = replace(config, **flags, resume_with_changes=True)
    job = plan_job(now, 0, None, 3, 1)
    if meets:
        plan_resumption(open_run(tmp_path), now, job, model)
    else:
        with pytest.raises(ConfigError, match="stopped after 3, 4, 5 iterations and would wait"):
            plan_resumption(open_run(tmp_path), now, job, model)


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    run = run_of(tmp_path, 1)
    (run / NEWEST).rename(run / PREVIOUS)
    assert open_run(run).iteration == 1


def save_of_two_ranks(run: Path, iteration: int, checksum: int = 7) -> None:
    content, save = state(iteration), [iteration, checksum]
    content |= {"world_size": 2, "save": save}
    write_resume_state(run, content)
    write_resume_state(run, {"save": save, "state": {}}, rank=1)


SPOILED = {
    "missing": lambda part: part.unlink(),
    "cut": lambda part: part.write_bytes(part.read_bytes()[:-100]),
    "of another save": lambda part: torch.save(
        {"format": FORMAT, "save": [2, 8], "state": {}}, part
    ),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_state_of_which_a_part_is_not_whole_is_told_and_the_one_before_is_taken(how, tmp_path):
    for iteration in (1, 2):
        save_of_two_ranks(tmp_path, iteration)
    assert (open_run(tmp_path).iteration, open_run(tmp_path).warnings) == (2, ())
    part = part_of(tmp_path / NEWEST, 1)
    assert part == tmp_path / "resume.rank1.pt"
    SPOILED[how](part)
    saved = open_run(tmp_path)
    assert (saved.file.name, saved.iteration) == (PREVIOUS, 1)
    assert str(part) in saved.warnings[0]
    # A first save that was cut off is none, and a restart begins anew; damage is not passed over.
    for file in tmp_path.glob("resume.previous*"):
        file.unlink()
    assert can_resume(tmp_path) == (how == "cut")
    with pytest.raises(ConfigError, match=r"cannot be resumed: .*resume.rank1.pt is not"):
        open_run(tmp_path)


def test_a_part_that_was_written_sooner_than_others_does_not_cost_the_state_before(tmp_path):
    save_of_two_ranks(tmp_path, 1)
    write_resume_state(tmp_path, {"save": [2, 7], "state": {}}, rank=1)
    assert (open_run(tmp_path).file.name, open_run(tmp_path).iteration) == (NEWEST, 1)


def test_latest_is_the_run_of_the_task_that_was_saved_last_whatever_its_name(tmp_path):
    for seconds, name in ((1e9, "2030-01-02_00-00-00"), (2e9, "2030-01-01_00-00-00_wide")):
        run = run_of(tmp_path / "hop" / name, 3)
        os.utime(run / NEWEST, (seconds, seconds))
        os.utime(run, (seconds, seconds))
    run_of(tmp_path / "walk" / "2031-01-01_00-00-00", 3)
    saved = find_run("latest", tmp_path, "hop")
    assert (saved.path.name, saved.warnings) == ("2030-01-01_00-00-00_wide", ())

    newer = tmp_path / "hop" / "2030-01-03_00-00-00"
    newer.mkdir()
    os.utime(newer, (3e9, 3e9))
    saved = find_run("latest", tmp_path, "hop")
    assert saved.path.name == "2030-01-01_00-00-00_wide"
    assert saved.warnings == (f"{newer}, a newer run, has no resume.pt yet",)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("latest", "there is no run of hop below --log-root"),
        ("gone", r"there is no run gone \(--resume\)"),
        ("empty", "empty cannot be resumed: it has no resume.pt"),
        ("task", "it is no run directory; the newest run below it is task/run"),
        ("other", "other is a run of walk: `uv run train walk"),
        ("broken", r"broken cannot be resumed: .*resume.pt .*resume.previous.pt"),
    ],
)
def test_a_run_that_cannot_go_on_is_refused(name, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_of(Path("empty"))
    run_of(Path("other"), state(1, task="walk"))
    for file in (NEWEST, PREVIOUS):
        (run_of(Path("broken")) / file).write_bytes(b"gone")
    Path("task/run").mkdir(parents=True)
    Path("task/run/config.yaml").touch()
    with pytest.raises(ConfigError, match=message):
        find_run(name, Path("logs"), "hop")
