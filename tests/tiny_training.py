"""Small trainings in this process, for tests of the loop and its features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tiny_task import tiny_task

from simtrain import ActorCfg, CriticCfg, PpoCfg
from simtrain.config.train import TrainConfig
from simtrain.launch.phase_timer import NO_TIMER, PhaseTimer
from simtrain.launch.rank import Rank
from simtrain.training.context import RunContext, SharedContext
from simtrain.training.features import Feature, Iteration
from simtrain.training.loop import Trainer, train
from simtrain.training.worker import make_trainer

ALONE = Rank(rank=0, local_rank=0, world_size=1, device=torch.device("cpu"), seed=0, threads=1)
ENVS, STEPS = 4, 4


class Console:
    """Keeps what a run shows."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.iterations: list[int] = []

    def say(self, message: str) -> None:
        self.lines.append(message)

    def show(self, status: Any) -> None:
        self.iterations.append(status.iteration)

    def close(self) -> None: ...


class Collected(Feature):
    """Keeps the iterations."""

    def __init__(self) -> None:
        self.iterations: list[Iteration] = []

    def after_iteration(self, iteration: Iteration) -> None:
        self.iterations.append(iteration)


def tiny_config(**changes: Any) -> TrainConfig:
    """Four environments of the tiny task and networks of eight units; `changes` are the task's."""
    small = {"hidden_dims": (8,)}
    ppo = PpoCfg(ActorCfg(**small), CriticCfg(**small), num_learning_epochs=2, num_mini_batches=2)
    config = TrainConfig.of_task("tiny", tiny_task(**changes))
    config.ppo, config.num_envs, config.num_steps_per_env = ppo, ENVS, STEPS
    return config


def make_context(
    run: Path, config: TrainConfig | None = None, rank: Rank = ALONE, **values: Any
) -> RunContext:
    values = {"console": Console(), "stop": lambda: False, **values}
    shared = SharedContext(run, ("cpu",), values.pop("resumption", None))
    return RunContext(config=config or tiny_config(), rank=rank, shared=shared, **values)


def tiny_trainer(
    config: TrainConfig | None = None, timer: PhaseTimer = NO_TIMER, rank: Rank = ALONE
) -> Trainer:
    return make_trainer(config or tiny_config(), rank, timer)


def run_for(trainer: Trainer, iterations: int, *features: Feature) -> list[Iteration]:
    """Train so many iterations more, with some features; the iterations."""
    collected = Collected()
    train(trainer, [*features, collected], trainer.iteration + iterations, lambda: False)
    return collected.iterations
