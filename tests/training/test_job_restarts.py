"""A job is started again after a rank died, from the last saved state, as often as allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny_task import tiny_task
from tiny_training import Console

from simtrain.config.train import TrainConfig
from simtrain.config.tree import resolved
from simtrain.env.model import compile_model, model_digest
from simtrain.errors import ConfigError, DivergenceError, RankError
from simtrain.launch.plan import plan_job
from simtrain.run.directory import versions
from simtrain.training import job as job_module
from simtrain.training.context import TrainingResult
from simtrain.training.job import train_with_restarts
from simtrain.training.resumption import (
    FORMAT,
    can_resume,
    open_run,
    plan_resumption,
    write_resume_state,
)

DONE = TrainingResult(Path("model_9.pt"), None)


class Job:
    """A job that dies as often as it is told; every attempt saves one iteration more."""

    def __init__(self, run, deaths, *, error=RankError, saves=True, monkeypatch=None):
        self.run, self.deaths, self.error, self.saves = run, deaths, error, saves
        self.console = Console()
        self.pauses, self.starts = [], []
        monkeypatch.setattr(job_module.time, "sleep", self.pauses.append)
        clock = [0.0]

        def monotonic():
            clock[0] += sum(self.pauses[-1:]) if self.pauses else 0.0
            return clock[0]

        monkeypatch.setattr(job_module.time, "monotonic", monotonic)
        self.config = TrainConfig.of_task("tiny", tiny_task())
        self.config.gpu_ids, self.config.cpu_threads = None, 1
        self.model = compile_model(self.config.env)

    def train(self, resumption):
        self.starts.append(resumption)
        if self.saves:
            self._save(len(self.starts))
        if len(self.starts) <= self.deaths:
            raise self.error(f"rank 1 died for the {len(self.starts)}. time")
        return DONE

    def _save(self, iteration):
        state = {
            "format": FORMAT,
            "task": "tiny",
            "config": {**resolved(self.config), "engine": "mujoco"},
            "model": model_digest(self.model),
            "threads": 1,
            "versions": versions(),
            "iteration": iteration,
            "env_steps": 8,
            "ranks": [{"x": torch.zeros(1)}],
            "steps": 1,
            "trainer": {"iteration": iteration, "env_steps": 8},
            **{key: {} for key in ("default", "learner", "features")},
        }
        write_resume_state(self.run, state)

    def restart(self, most, stop=lambda: False):
        return train_with_restarts(self.train, self._plan, None, most, self.console, stop)

    def _plan(self):
        if not can_resume(self.run):
            return None
        resumption, lines = plan_resumption(
            open_run(self.run), self.config, plan_job(self.config), self.model
        )
        self.console.lines += lines
        return resumption


def test_every_restart_goes_on_from_the_last_saved_state_and_tells_the_cause(tmp_path, monkeypatch):
    job = Job(tmp_path, 3, monkeypatch=monkeypatch)
    assert job.restart(3) is DONE
    first, *later = job.starts
    assert first is None
    assert [r.file for r in later] == [tmp_path / "resume.pt"] * 3
    assert all(r.same_environments and not r.changed for r in later)
    assert job.console.lines == [
        text
        for i in (1, 2, 3)
        for text in (
            f"rank 1 died for the {i}. time",
            f"restart {i} of 3 in {2 ** (i - 1)} s (--max-restarts)",
            f"going on with {tmp_path} after iteration {i}",
        )
    ]


def test_there_are_no_more_restarts_than_allowed(tmp_path, monkeypatch):
    job = Job(tmp_path, 3, monkeypatch=monkeypatch)
    with pytest.raises(RankError, match=r"died for the 3\. time"):
        job.restart(2)
    assert len(job.starts) == 3


def test_without_a_saved_state_a_restart_begins_anew(tmp_path, monkeypatch):
    job = Job(tmp_path, 1, saves=False, monkeypatch=monkeypatch)
    assert job.restart(1) is DONE
    assert job.starts == [None, None]


@pytest.mark.parametrize("error", [ConfigError, DivergenceError])
def test_what_a_restart_would_not_mend_ends_the_job(error, tmp_path, monkeypatch):
    job = Job(tmp_path, 1, error=error, monkeypatch=monkeypatch)
    with pytest.raises(error):
        job.restart(5)
    assert len(job.starts) == 1


def test_whoever_wants_to_stop_waits_for_no_restart(tmp_path, monkeypatch):
    job = Job(tmp_path, 1, monkeypatch=monkeypatch)
    with pytest.raises(RankError):
        job.restart(5, stop=lambda: len(job.starts) > 0)
    assert len(job.starts) == 1
