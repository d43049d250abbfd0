"""A job is started again after a rank died, from the last saved state, as often as allowed."""

from __future__ import annotations

from dataclasses import dataclass, field
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
from simtrain.training.context import Resumption, TrainingResult
from simtrain.training.job import Attempts
from simtrain.training.resumption import FORMAT, write_resume_state

DONE = TrainingResult(Path("model_9.pt"), None)
CONFIG = TrainConfig.of_task("tiny", tiny_task())
CONFIG.gpu_ids, CONFIG.cpu_threads = None, 1
MODEL = compile_model(CONFIG.env)


@dataclass(frozen=True)
class Dying(Attempts):
    """Attempts of which the first fail; each saves one iteration more."""

    deaths: int
    error: type[Exception] = RankError
    saves: bool = True
    starts: list[Resumption | None] = field(default_factory=list)

    def attempt(self, resumption: Resumption | None) -> TrainingResult:
        self.starts.append(resumption)
        iteration = len(self.starts)
        if self.saves:
            state = {
                "format": FORMAT,
                "task": "tiny",
                "config": {**resolved(CONFIG), "engine": "mujoco"},
                "model": model_digest(MODEL),
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
        if iteration <= self.deaths:
            raise self.error(f"rank 1 died for the {iteration}. time")
        return DONE


@pytest.fixture
def attempts(tmp_path, monkeypatch):
    """Makes attempts whose pauses take no time."""
    clock = [0.0]
    monkeypatch.setattr(job_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(job_module.time, "sleep", lambda seconds: clock.append(clock.pop() + 1.0))

    def make(restarts: int, deaths: int, stop=lambda: False, **more) -> Dying:
        CONFIG.max_restarts = restarts
        job = plan_job(CONFIG)
        return Dying(CONFIG, job, None, MODEL, tmp_path, Console(), stop, deaths=deaths, **more)

    return make


def test_every_restart_goes_on_from_the_last_saved_state_and_tells_the_cause(attempts, tmp_path):
    dying = attempts(3, deaths=3)
    assert dying.train(None) is DONE
    first, *later = dying.starts
    assert first is None
    assert [r.file for r in later] == [tmp_path / "resume.pt"] * 3
    assert all(r.same_environments and not r.changed for r in later)
    assert dying.console.lines == [
        text
        for i in (1, 2, 3)
        for text in (
            f"rank 1 died for the {i}. time",
            f"restart {i} of 3 in {2 ** (i - 1)} s (--max-restarts)",
            f"going on with {tmp_path} after iteration {i}",
        )
    ]


def test_without_a_saved_state_a_restart_begins_anew(attempts):
    dying = attempts(1, deaths=1, saves=False)
    assert dying.train(None) is DONE
    assert dying.starts == [None, None]


@pytest.mark.parametrize(
    ("restarts", "error", "stops", "starts"),
    [
        (2, RankError, False, 3),  # no more than allowed
        (5, ConfigError, False, 1),  # which a restart would not mend
        (5, DivergenceError, False, 1),
        (5, RankError, True, 1),  # whoever wants to stop waits for no restart
    ],
)
def test_a_job_is_not_started_again_for_ever(attempts, restarts, error, stops, starts):
    dying = attempts(restarts, deaths=9, error=error, stop=lambda: stops)
    with pytest.raises(error):
        dying.train(None)
    assert len(dying.starts) == starts
