"""A job is started again after a rank died, from the last saved state, as often as allowed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tiny_training import Console

from simtrain.config.train import TrainConfig
from simtrain.errors import ConfigError, DivergenceError, RankError
from simtrain.training import job as job_module
from simtrain.training.context import Resumption, TrainingResult
from simtrain.training.job import Attempts

DONE = TrainingResult(Path("model_9.pt"), None)


@dataclass
class Dying(Attempts):
    """Attempts of which the first fail; each saves one iteration more."""

    deaths: int = 0
    error: type[Exception] = RankError
    starts: list[Resumption | None] = field(default_factory=list)

    def attempt(self, resumption: Resumption | None) -> TrainingResult:
        self.starts.append(resumption)
        if len(self.starts) <= self.deaths:
            raise self.error(f"rank 1 died for the {len(self.starts)}. time")
        return DONE


@pytest.fixture
def attempts(monkeypatch):
    """Makes attempts whose pauses take no time, and whose states are their numbers."""
    clock = [0.0]

    def make(restarts: int, deaths: int, stop=lambda: False, saves=True, **more) -> Dying:
        config = TrainConfig("tiny", max_restarts=restarts)
        dying = Dying(config, None, None, None, Path("run"), Console(), deaths=deaths, **more)
        dying.stop = stop
        for name, function in {
            "can_resume": lambda run: saves,
            "open_run": lambda run: len(dying.starts),
            "plan_resumption": lambda saved, *job: (saved, [f"going on after {saved}"]),
        }.items():
            monkeypatch.setattr(job_module, name, function)
        return dying

    monkeypatch.setattr(job_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(job_module.time, "sleep", lambda seconds: clock.append(clock.pop() + 1.0))
    return make


def test_every_restart_goes_on_from_the_last_saved_state_and_tells_the_cause(attempts):
    dying = attempts(3, deaths=3)
    assert dying.train(None) is DONE
    assert dying.starts == [None, 1, 2, 3]
    assert dying.console.lines == [
        text
        for i in (1, 2, 3)
        for text in (
            f"rank 1 died for the {i}. time",
            f"restart {i} of 3 in {2 ** (i - 1)} s (--max-restarts)",
            f"going on after {i}",
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
