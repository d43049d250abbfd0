"""What each rank runs: environment, PPO and trainer, and on rank 0 the run's files."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch

from simtrain.config import TrainConfig, as_plain
from simtrain.env.env import Env
from simtrain.launch.rank import Rank
from simtrain.run.checkpoint import save_model
from simtrain.run.console import Status, TrainingConsole
from simtrain.run.directory import write_config
from simtrain.run.metrics import MetricsWriter
from simtrain.training.ppo import PPO
from simtrain.training.trainer import Iteration, Trainer


def run_worker(
    config: TrainConfig, rank: Rank, run: Path, stop: Callable[[], bool] = lambda: False
) -> Path | None:
    """Train as one rank of a job.

    Args:
        config: the whole configuration.
        rank: this process.
        run: the run directory; only rank 0 writes to it.
        stop: asked after every iteration; training ends, saved, once it is true.

    Returns:
        The last checkpoint on rank 0, None on others.
    """
    rank.seed_everything()
    torch.set_num_threads(rank.threads)
    env = Env(
        config.env,
        config.num_envs,
        engine="mujoco",
        device=rank.device,
        threads=rank.threads,
    )
    ppo = PPO(config.ppo, env.get_observations(), env.num_actions, config.num_steps_per_env, rank)
    trainer = Trainer(env, ppo, rank)
    iterations = config.iterations(rank.world_size)
    if not rank.is_main:
        trainer.run(iterations, lambda iteration: None, stop)
        return None
    with _Recorder(config, run, trainer, iterations) as recorder:
        trainer.run(iterations, recorder.report, stop)
        return recorder.save()


class _Recorder:
    """Rank 0's part: configuration, metrics, checkpoints and console."""

    def __init__(self, config: TrainConfig, run: Path, trainer: Trainer, iterations: int) -> None:
        self._config = config
        self._run = run
        self._trainer = trainer
        self._iterations = iterations
        self._saved: Path | None = None
        self._saved_iteration = -1
        write_config(run / "config.yaml", as_plain(config), [str(trainer.rank.device)])
        self._metrics = MetricsWriter(run, tensorboard=config.logger == "tensorboard")
        self._console = TrainingConsole(config.task, iterations)
        self._start = time.perf_counter()

    def __enter__(self) -> _Recorder:
        self._console.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._console.__exit__(*exception)
        self._metrics.close()

    def report(self, iteration: Iteration) -> None:
        """Write and show an iteration, and save if it is time."""
        wall_s = time.perf_counter() - self._start
        metrics = iteration.metrics
        self._metrics.write(iteration.number, iteration.env_steps, wall_s, metrics)
        self._console.show(
            Status(
                iteration=iteration.number,
                iterations=self._iterations,
                env_steps=iteration.env_steps,
                steps_per_second=metrics["Perf/total_fps"],
                mean_return=metrics.get("Train/mean_reward"),
                mean_length=metrics.get("Train/mean_episode_length"),
                max_episode_length=self._trainer.env.max_episode_length,
                seconds_left=wall_s / iteration.number * (self._iterations - iteration.number),
            )
        )
        if iteration.number % self._config.save_interval == 0:
            self.save()

    def save(self) -> Path:
        """Write the checkpoint of the present iteration, unless it is written already."""
        iteration = self._trainer.iteration
        if self._saved is None or iteration != self._saved_iteration:
            infos = {"task": self._config.task, "env_steps": self._trainer.env_steps}
            self._saved = save_model(self._run, iteration, self._trainer.ppo.save(), infos)
            self._saved_iteration = iteration
        return self._saved
