"""What each rank runs: environment, PPO and trainer, and on rank 0 the run's files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from simtrain.config import TrainConfig, as_plain
from simtrain.env.env import Env
from simtrain.launch.devices import Devices
from simtrain.launch.rank import Rank
from simtrain.run.checkpoint import BEST, model_path, save_model
from simtrain.run.console import Status, StatusConsole
from simtrain.run.directory import write_config
from simtrain.run.metrics import MetricsWriter
from simtrain.run.report import draw_finished
from simtrain.training.agreement import check_same_tensors
from simtrain.training.gpu import check_gpu, too_little_memory_told
from simtrain.training.judge import Judge
from simtrain.training.ppo import PPO
from simtrain.training.trainer import Iteration, Trainer

if TYPE_CHECKING:
    from simtrain.run.wandb_writer import WandbWriter
    from simtrain.training.video import TrainingVideo


def run_worker(
    config: TrainConfig,
    rank: Rank,
    run: Path,
    stop: Callable[[], bool],
    *,
    console: StatusConsole,
    devices: list[str],
    evaluator: Devices | None = None,
) -> Path | None:
    """Train as one rank of a job.

    Args:
        config: the whole configuration.
        rank: this process.
        run: the run directory; only rank 0 writes to it.
        stop: asked at the end of every iteration; training ends, saved, once it is true on a rank.
        console: where rank 0 shows what it does.
        devices: what each rank runs on.
        evaluator: what a process that evaluates beside training runs on, if there shall be one.

    Returns:
        The last checkpoint on rank 0, None on others.

    Raises:
        ConfigError: the GPU cannot be used, or has too little memory for so many environments.
    """
    check_gpu(rank.device)
    with too_little_memory_told(config.num_envs, rank.device):
        return _train(config, rank, run, stop, console, devices, evaluator)


def _train(
    config: TrainConfig,
    rank: Rank,
    run: Path,
    stop: Callable[[], bool],
    console: StatusConsole,
    devices: list[str],
    evaluator: Devices | None,
) -> Path | None:
    rank.seed_everything()
    torch.set_num_threads(rank.threads)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as cuBLAS asks for
        torch.use_deterministic_algorithms(True)
    env = _build_env(config, rank, console.say)
    obs = env.get_observations().to(rank.device)
    ppo = PPO(config.ppo, obs, env.num_actions, config.num_steps_per_env, rank)
    trainer = Trainer(env, ppo, rank)
    judge = Judge(config, rank, run, ppo, stop, console.say, evaluator)
    iterations = config.iterations(rank.world_size)
    recorder = (
        _Recorder(config, run, trainer, iterations, console, devices) if rank.is_main else None
    )
    with judge, recorder or nullcontext():

        def after(iteration: Iteration) -> None:
            save = iteration.number % config.save_interval == 0 or iteration.is_last
            if save:
                check_same_tensors(ppo.tensors(), rank, iteration.number)
            if recorder is not None:
                recorder.report(iteration, save=save)

        trainer.run(iterations, after, stop, judge)
    return None if recorder is None else recorder.saved


def _build_env(config: TrainConfig, rank: Rank, say: Callable[[str], None]) -> Env:
    """The rank's environments; the first rank of a host compiles what is missing for all."""
    engine = config.engine_on(rank.device.type)

    def build() -> Env:
        return Env(
            config.env,
            config.num_envs,
            engine=engine,
            # Physics on CPU threads can feed a network on a GPU.
            device=rank.device if engine == "warp" else "cpu",
            threads=rank.threads,
            deterministic=config.deterministic,
        )

    if engine == "mujoco":
        return build()

    from simtrain.sim.warp_compile import compilation_announced

    if rank.local_rank > 0:
        rank.wait_for_others()
    with compilation_announced(say if rank.is_main else lambda message: None):
        env = build()
        start = env.sim.state()
        # The first step compiles its kernels, the second makes a graph of it.
        env.sim.step(config.env.decimation)
        env.sim.step(config.env.decimation)
        env.sim.set_state(start)
    if rank.local_rank == 0:
        rank.wait_for_others()
    return env


def _resolved(config: TrainConfig) -> dict[str, Any]:
    """The configuration with every value once: the run's own instead of what the task asks for."""
    plain: dict[str, Any] = as_plain(config)
    for name in ("num_envs", "num_steps_per_env", "max_iterations", "ppo"):
        del plain["env"][name]
    return plain


class _Recorder:
    """Rank 0's part: configuration, metrics, checkpoints and console."""

    def __init__(
        self,
        config: TrainConfig,
        run: Path,
        trainer: Trainer,
        iterations: int,
        console: StatusConsole,
        devices: list[str],
    ) -> None:
        self._config = config
        self._run = run
        self._trainer = trainer
        self._iterations = iterations
        self._console = console
        self.saved: Path | None = None
        """The last checkpoint."""
        plain = _resolved(config)
        write_config(run / "config.yaml", plain, devices)
        self._metrics = MetricsWriter(run, tensorboard=config.logger == "tensorboard")
        self._wandb: WandbWriter | None = None
        if config.logger == "wandb":
            from simtrain.run.wandb_writer import WandbWriter

            self._wandb = WandbWriter(
                run, config.wandb_project, config.wandb_mode, plain, console.say
            )
        self._video: TrainingVideo | None = None
        if config.video:
            from simtrain.training.video import TrainingVideo

            self._video = TrainingVideo(config, run, console.say)
        self._start = time.perf_counter()

    def __enter__(self) -> _Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._metrics.close()
        if self._wandb is not None:
            if (self._run / BEST).exists():
                self._wandb.save(self._run / BEST)
            self._wandb.close(failed=kind is not None)
        if kind is None:
            draw_finished(self._run, self._console.say)

    def report(self, iteration: Iteration, *, save: bool) -> None:
        """Write and show an iteration, and save the policy if asked to."""
        wall_s = time.perf_counter() - self._start
        metrics = iteration.metrics
        self._metrics.write(iteration.number, iteration.env_steps, wall_s, metrics)
        if self._wandb is not None:
            self._wandb.write(iteration.number, iteration.env_steps, wall_s, metrics)
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
        for warning in iteration.warnings:
            self._console.say(f"warning: {warning}")
        if save:
            infos = {"task": self._config.task, "env_steps": iteration.env_steps}
            networks = self._trainer.ppo.save()
            self.saved = model_path(self._run, iteration.number)
            save_model(self.saved, iteration.number, networks, infos)
            if self._wandb is not None:
                self._wandb.save(self.saved)
        due = iteration.number % self._config.video_interval == 0
        if self._video is not None and (due or iteration.number == self._iterations):
            self._record_video(self._video, iteration.number)

    def _record_video(self, video: TrainingVideo, iteration: int) -> None:
        path = video.record(iteration, self._trainer.ppo.actor.state_dict())
        if path is None:
            return
        if self._wandb is not None:
            self._wandb.write_video(iteration, path)
        elif self._config.logger == "tensorboard":
            from simtrain.view.video import as_gif

            self._metrics.write_video(iteration, as_gif(path))
