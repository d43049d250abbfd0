"""Starts a job again after one of its ranks died: from the last saved state, a few times."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import mujoco

from simtrain.config import TrainConfig
from simtrain.errors import RankError
from simtrain.launch.plan import Job
from simtrain.launch.stop import StopSignals
from simtrain.run.console import TrainingConsole
from simtrain.run.resume import can_resume, open_run
from simtrain.training.resume_plan import Resumption, plan_resumption
from simtrain.training.run_files import Outcome

_LONGEST_PAUSE = 60.0  # seconds


def train_with_restarts(
    train: Callable[[Resumption | None], Outcome],
    config: TrainConfig,
    job: Job,
    model: mujoco.MjModel,
    run: Path,
    resumption: Resumption | None,
    console: TrainingConsole,
    stop: StopSignals,
) -> Outcome:
    """Run `train`, and up to ``--max-restarts`` times again if a rank dies; what it returned.

    The pause before a restart is one second, and twice as long at each further one.

    Raises:
        RankError: a rank died, and there are no restarts left.
    """
    restarts = 0
    while True:
        try:
            return train(resumption)
        except RankError as error:
            if restarts == config.max_restarts or stop():
                raise
            cause = error
        restarts += 1
        pause = min(2.0 ** (restarts - 1), _LONGEST_PAUSE)
        console.close()
        console.say(str(cause))
        console.say(f"restart {restarts} of {config.max_restarts} in {pause:g} s (--max-restarts)")
        deadline = time.monotonic() + pause
        while time.monotonic() < deadline:
            if stop():
                raise cause
            time.sleep(0.1)
        if can_resume(run):
            resumption, lines = plan_resumption(open_run(run), config, job, model)
            for line in lines:
                console.say(line)
