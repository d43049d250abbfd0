"""Saves: what is written when, in a thread, again where the disk refuses; and back."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_training import ALONE, make_context, run_for, tiny_config, tiny_trainer

from simtrain.config.train import TrainConfig
from simtrain.errors import ConfigError
from simtrain.run.checkpoint import read_checkpoint
from simtrain.training.context import Resumption, RunContext
from simtrain.training.features import checkpoint as checkpoint_module
from simtrain.training.features.checkpoint import Checkpoint
from simtrain.training.features.failures import FailureMonitor
from simtrain.training.loop import Trainer
from simtrain.training.resumption import find_part, open_run, read_resume_state, write_resume_state
from simtrain.training.worker import run_worker


class Records:
    """In the place of a recorder and its records: waits before a save if it is asked to."""

    def __init__(self) -> None:
        self.records = self.metrics = self
        self.saved: list[str] = []
        self.started, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def sync(self) -> None:
        self.started.set()
        assert self.go_on.wait(60)

    def save_checkpoint(self, path: Path) -> None:
        self.saved.append(path.name)


@pytest.fixture
def config(monkeypatch) -> TrainConfig:
    """The tiny task, which the registry finds by its name as well."""
    config = tiny_config()
    config.save_interval = 1
    monkeypatch.setattr(checkpoint_module, "default_config", lambda task, quiet: config)
    return config


def checkpoint(context: RunContext, trainer: Trainer, records: Records | None = None) -> Checkpoint:
    monitor = FailureMonitor(context, trainer)
    return Checkpoint(context, trainer, records or Records(), [monitor])


def save_next(trainer: Trainer, feature: Checkpoint, **changes: bool) -> None:
    """Train an iteration more, and let the feature act on it."""
    (iteration,) = run_for(trainer, 1)
    feature.after_iteration(replace(iteration, **changes))


def names(run: Path) -> list[str]:
    return sorted(path.name for path in run.iterdir())


def test_a_save_writes_policy_and_state_every_few_iterations_and_at_the_end(config, tmp_path):
    config.save_interval = 2
    context, trainer, records = make_context(tmp_path, config), tiny_trainer(config), Records()
    feature = checkpoint(context, trainer, records)
    run_for(trainer, 3, feature)
    assert {"model_3.pt", "resume.pt"} <= set(names(tmp_path))
    assert (feature.saved, feature.error) == (tmp_path / "model_3.pt", None)
    assert records.saved[-1] == "model_3.pt"
    content = open_run(tmp_path).content
    assert (content["iteration"], len(content["ranks"])) == (3, 1)
    assert content["features"] == {"FailureMonitor": {"counts": [0, 0, 0]}}
    saved = read_checkpoint(tmp_path / "model_3.pt")
    assert saved["infos"].keys() == {"task", "env_steps", "config_sha256"}
    assert (saved["infos"]["task"], saved["infos"]["env_steps"]) == ("tiny", trainer.env_steps)
    for name, tensor in trainer.ppo.actor.state_dict().items():
        assert torch.equal(saved["actor_state_dict"][name], tensor)
    assert context.console.lines == []  # type: ignore[attr-defined]


@pytest.mark.parametrize(("interval", "saved"), [(None, [1, 4]), (1, [1, 2, 3, 4])])
def test_where_iterations_are_short_saves_are_seconds_apart_unless_a_flag_says_how_often(
    interval, saved, config, tmp_path, monkeypatch
):
    monkeypatch.setitem(checkpoint_module.SECONDS_APART, "cpu", 1e6)
    monkeypatch.setattr("simtrain.config.train._SAVE_INTERVAL", 1)
    config.save_interval = interval
    trainer = tiny_trainer(config)
    with checkpoint(make_context(tmp_path, config), trainer) as feature:
        for number in range(1, 5):
            save_next(trainer, feature, is_last=number == 4)
            assert feature.has_written(60.0)
    assert names(tmp_path)[:-2] == [f"model_{number}.pt" for number in saved]


def test_only_the_newest_checkpoints_are_kept(config, tmp_path):
    config.keep_checkpoints = 2
    trainer = tiny_trainer(config)
    for _ in range(4):
        run_for(trainer, 1, checkpoint(make_context(tmp_path, config), trainer))
    assert names(tmp_path) == ["model_3.pt", "model_4.pt", "resume.previous.pt", "resume.pt"]


def test_parts_of_ranks_that_are_no_more_go_when_no_state_needs_them(config, tmp_path):
    part = tmp_path / "resume.rank1.pt"
    part.touch()
    trainer = tiny_trainer(config)
    with checkpoint(make_context(tmp_path, config), trainer) as feature:
        for is_needed in (True, False):  # for the state before, and then not
            save_next(trainer, feature)
            assert feature.has_written(60.0)
            assert part.exists() == is_needed


def test_training_does_not_wait_and_the_newest_save_comes_next(config, tmp_path):
    context, trainer, records = make_context(tmp_path, config), tiny_trainer(config), Records()
    records.go_on.clear()
    with checkpoint(context, trainer, records) as feature:
        save_next(trainer, feature)
        assert records.started.wait(60)
        for iteration in run_for(trainer, 2):
            feature.after_iteration(replace(iteration, is_last=True))
        assert names(tmp_path) == []
        records.go_on.set()
    assert names(tmp_path) == ["model_1.pt", "model_3.pt", "resume.previous.pt", "resume.pt"]
    (line,) = context.console.lines  # type: ignore[attr-defined]
    assert "is left out: the disk is slower than --save-interval" in line


@pytest.mark.parametrize("way", ["by a newer save", "after a pause", "at the end"])
def test_a_save_that_failed_is_told_once_and_tried_again(way, config, tmp_path, monkeypatch):
    """Here the folder of the run is gone for a while; a newer save waits for no pause."""
    pause = 0.01 if way == "after a pause" else 3600.0
    monkeypatch.setattr(checkpoint_module, "RETRY_SECONDS", pause)
    run, last = tmp_path / "run", 2 if way == "by a newer save" else 1
    context, trainer = make_context(run, config), tiny_trainer(config)
    with checkpoint(context, trainer) as feature:
        save_next(trainer, feature)
        while feature.error is None:
            time.sleep(0.001)
        assert (feature.saved, feature.error) == (None, "No such file or directory")
        run.mkdir()
        if way == "by a newer save":
            save_next(trainer, feature)
        while way == "after a pause" and not feature.has_written(60.0):
            time.sleep(0.001)
    assert (feature.saved, feature.error) == (run / f"model_{last}.pt", None)
    assert open_run(run).iteration == last
    refused, written = context.console.lines  # type: ignore[attr-defined]
    assert refused.startswith("warning: model_1.pt cannot be saved, trying again: No such file")
    assert written.endswith("is saved, the disk can be written again")


def train_in(run: Path, config: TrainConfig, iterations: int, resumption=None) -> list[dict]:
    """The metrics of a run that is trained, or resumed; without what a clock says."""
    run.mkdir(exist_ok=True)
    config.max_iterations = iterations
    result = run_worker(make_context(run, config, resumption=resumption))
    assert result is not None
    assert result.checkpoint == run / f"model_{iterations}.pt"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k != "wall_s" and not k.startswith("Perf/")}
        for line in lines
    ]


@pytest.mark.parametrize("model", ["mlp", "gru"])
def test_a_resumed_run_has_the_metrics_of_an_uninterrupted_one(config, tmp_path, model):
    config.ppo.actor.model = config.ppo.critic.model = model
    expected = train_in(tmp_path / "whole", config, 6)
    train_in(tmp_path / "parts", config, 3)
    saved = open_run(tmp_path / "parts")
    assert train_in(tmp_path / "parts", config, 6, Resumption(saved.file, True, ())) == expected
    whole, parts = (torch.load(tmp_path / n / "model_6.pt") for n in ("whole", "parts"))
    for name, tensor in whole["actor_state_dict"].items():
        assert torch.equal(parts["actor_state_dict"][name], tensor)


def test_episodes_that_begin_anew_are_judged_by_themselves(config, tmp_path):
    train_in(tmp_path, config, 5)  # 20 steps, of episodes of ten
    lines = train_in(tmp_path, config, 10, Resumption(tmp_path / "resume.pt", False, ()))
    finished = [line["Train/finished_envs"] for line in lines]
    assert (finished[4], finished[5], finished[9]) == (1.0, 0.0, 1.0)
    assert ["Train/mean_reward" in lines[i] for i in (4, 5, 9)] == [True, False, True]


def test_a_part_of_the_state_before_is_the_newest_once_a_run_goes_on_from_it(config, tmp_path):
    """Or the next save, if a kill cut it off, would cost that state."""
    train_in(tmp_path, config, 1)
    state = {**read_resume_state(tmp_path / "resume.pt"), "world_size": 2}
    for save in (state["save"], [2, 7]):  # rank 0 was killed before it wrote the second one
        write_resume_state(tmp_path, {"save": save, "state": {}}, rank=1)

    class Second(type(ALONE)):
        def broadcast_object(self, value):
            return state

    rank = Second(1, 1, 2, ALONE.device, seed=1, threads=1)
    resumption = Resumption(tmp_path / "resume.pt", False, ())
    context = make_context(tmp_path, config, rank, resumption=resumption)
    checkpoint(context, tiny_trainer(config)).restore()
    assert find_part(tmp_path, 1, state["save"])[0] == tmp_path / "resume.rank1.pt"


def test_a_state_of_other_networks_is_refused(config, tmp_path):
    train_in(tmp_path, config, 1)
    config.ppo.actor.hidden_dims = (5,)
    with pytest.raises(ConfigError, match=r"resume.pt cannot be resumed: "):
        train_in(tmp_path, config, 2, Resumption(tmp_path / "resume.pt", True, ()))
