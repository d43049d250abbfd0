"""What each rank runs: environment, PPO and trainer, and on rank 0 the run's files."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from simtrain.algorithms.ppo import PPO
from simtrain.config import TrainConfig, resolved
from simtrain.env.env import Env
from simtrain.env.phase_timer import NO_TIMER, make_timer
from simtrain.launch.plan import Devices
from simtrain.launch.rank import Rank
from simtrain.run.checkpoint import BEST
from simtrain.run.console import Status, StatusConsole
from simtrain.run.metrics_files import MetricsWriter
from simtrain.run.report import draw_finished
from simtrain.sim import choose_engine
from simtrain.training.agreement import check_same_tensors
from simtrain.training.features.evaluation import Judge
from simtrain.training.features.timing import Profile
from simtrain.training.gpu import check_gpu, too_little_memory_told
from simtrain.training.graphs.cuda import make_graph_backend
from simtrain.training.loop import Iteration, Trainer
from simtrain.training.resume_plan import Resumption
from simtrain.training.resume_state import gather_state, restore_state
from simtrain.training.run_files import Outcome, RunFiles

if TYPE_CHECKING:
    from simtrain.run.wandb_writer import WandbWriter
    from simtrain.training.features.video import TrainingVideo


def run_worker(
    config: TrainConfig,
    rank: Rank,
    run: Path,
    stop: Callable[[], bool],
    *,
    console: StatusConsole,
    devices: list[str],
    default: TrainConfig,
    resumption: Resumption | None = None,
    evaluator: Devices | None = None,
) -> Outcome | None:
    """Train as one rank of a job.

    Args:
        config: the whole configuration.
        rank: this process.
        run: the run directory; only rank 0 writes to it.
        stop: asked at the end of every iteration; training ends, saved, once it is true on a rank.
        console: where rank 0 shows what it does.
        devices: what each rank runs on.
        default: the task's own configuration.
        resumption: how to go on with a run; None starts from the beginning.
        evaluator: what a process that evaluates beside training runs on, if there shall be one.

    Returns:
        What is left behind on rank 0, None on others.

    Raises:
        ConfigError: the GPU cannot be used, or has too little memory for so many environments, or
            the saved state does not fit.
        DivergenceError: nothing could be learned any more.
    """
    check_gpu(rank.device)
    with too_little_memory_told(config.num_envs, rank.device):
        return _train(config, rank, run, stop, console, devices, default, resumption, evaluator)


def _train(
    config: TrainConfig,
    rank: Rank,
    run: Path,
    stop: Callable[[], bool],
    console: StatusConsole,
    devices: list[str],
    default: TrainConfig,
    resumption: Resumption | None,
    evaluator: Devices | None,
) -> Outcome | None:
    rank.seed_everything()
    torch.set_num_threads(rank.threads)
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # as cuBLAS asks for
        torch.use_deterministic_algorithms(True)
    env = build_env(config, rank, console.say)
    obs = env.get_observations().to(rank.device)
    ppo = PPO(config.ppo, obs, env.num_actions, config.num_steps_per_env, rank)
    timer = make_timer(rank.device) if config.phase_times else NO_TIMER
    profile = Profile(run, timer, console.say) if config.profile and rank.is_main else None
    graphs = make_graph_backend(rank.device) if config.cuda_graphs else None
    trainer = Trainer(env, ppo, rank, timer if profile is None else profile.timer, graphs)
    saved = None if resumption is None else restore_state(trainer, rank, resumption)
    judge = Judge(config, rank, run, ppo, stop, console.say, evaluator)
    iterations = config.iterations(
        rank.world_size, iteration=trainer.iteration, env_steps=trainer.env_steps
    )
    recorder = (
        _Recorder(config, default, run, trainer, iterations, console, devices, saved, stop)
        if rank.is_main
        else None
    )
    with judge, recorder or nullcontext(), profile or nullcontext():

        def after(iteration: Iteration) -> None:
            state = None
            if iteration.number % config.save_interval == 0 or iteration.is_last:
                trainer.timer.begin("saving")
                check_same_tensors(ppo.tensors(), rank, iteration.number)
                state = gather_state(trainer, rank)
            if recorder is not None:
                recorder.report(iteration, state)
            if profile is not None:
                trainer.timer.begin("other")
                profile.step()

        trainer.run(iterations, after, stop, judge)
    return None if recorder is None else recorder.outcome


def build_env(config: TrainConfig, rank: Rank, say: Callable[[str], None]) -> Env:
    """The rank's environments; the first rank of a host compiles what is missing for all."""
    engine = choose_engine(config.engine, rank.device, rank.threads, config.deterministic)

    def build() -> Env:
        return Env(config.env, config.num_envs, engine)

    if engine.name == "mujoco":
        return build()

    from simtrain.sim.warp_compile import compilation_announced

    if rank.local_rank > 0:
        rank.barrier()
    with compilation_announced(say if rank.is_main else lambda message: None):
        env = build()
        start = env.sim.state()
        # The first step compiles its kernels, the second makes a graph of it.
        env.sim.step(config.env.decimation)
        env.sim.step(config.env.decimation)
        env.sim.set_state(start)
    if rank.local_rank == 0:
        rank.barrier()
    return env


class _Recorder:
    """Rank 0's part: configuration, metrics, checkpoints and console."""

    def __init__(
        self,
        config: TrainConfig,
        default: TrainConfig,
        run: Path,
        trainer: Trainer,
        iterations: int,
        console: StatusConsole,
        devices: list[str],
        saved: dict[str, Any] | None,
        stop: Callable[[], bool],
    ) -> None:
        self._config = config
        self._run = run
        self._trainer = trainer
        self._iterations = iterations
        self._stop = stop
        self._console = console
        self._first = trainer.iteration
        self._metrics = MetricsWriter(
            run, tensorboard=config.logger == "tensorboard", after=trainer.iteration
        )
        self._files = RunFiles(config, default, run, trainer, devices, self._metrics.sync)
        self._wandb: WandbWriter | None = None
        if config.logger == "wandb":
            from simtrain.run.wandb_writer import WandbWriter

            self._wandb = WandbWriter(
                run,
                config.wandb_project,
                config.wandb_mode,
                resolved(config),
                console.say,
                run_id=saved["wandb"] if saved else None,
            )
        self._video: TrainingVideo | None = None
        if config.video:
            from simtrain.training.features.video import TrainingVideo

            self._video = TrainingVideo(config, run, console.say)
        self._uploaded: Path | None = None
        self._unwritten = False
        self._phases: dict[str, float] = {}
        self._before = float(saved["wall_s"]) if saved else 0.0
        self._start = time.perf_counter()

    def __enter__(self) -> _Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._trainer.timer.begin("saving")
        self._files.close()
        if kind is None:
            for phase, spent in self._trainer.timer.take("other"):  # since the last iteration
                self._add(phase, spent)
        self._say_what_is_new()
        self._metrics.close()
        if self._wandb is not None:
            if (self._run / BEST).exists():
                self._wandb.save(self._run / BEST)
            self._wandb.close(failed=kind is not None)
        if kind is None:
            draw_finished(self._run, self._console.say)

    @property
    def outcome(self) -> Outcome:
        """What is left behind, once this was exited."""
        iterations = max(1, self._trainer.iteration - self._first)
        phases = {phase: total / iterations for phase, total in self._phases.items()}
        return Outcome(self._files.saved, self._files.error or self._metrics.error, phases)

    def report(self, iteration: Iteration, state: dict[str, Any] | None) -> None:
        """Write and show an iteration, and save `state` if there is one."""
        timer = self._trainer.timer
        timer.begin("logging")
        for phase, spent in iteration.phases.items():
            self._add(phase, spent)
        seconds = time.perf_counter() - self._start
        wall_s = self._before + seconds
        metrics = iteration.metrics
        self._metrics.write(iteration.number, iteration.env_steps, wall_s, metrics)
        if self._wandb is not None:
            self._wandb.write(iteration.number, iteration.env_steps, wall_s, metrics)
        done = iteration.number - self._first
        remaining = self._iterations - iteration.number
        self._console.show(
            Status(
                iteration=iteration.number,
                iterations=self._iterations,
                env_steps=iteration.env_steps,
                steps_per_second=metrics["Perf/total_fps"],
                mean_return=metrics.get("Train/mean_reward"),
                mean_length=metrics.get("Train/mean_episode_length"),
                max_episode_length=self._trainer.env.max_episode_length,
                seconds_left=0.0 if iteration.is_last else seconds / done * remaining,
            )
        )
        for warning in iteration.warnings:
            self._console.say(f"warning: {warning}")
        for rank_number, dump in iteration.dumps:
            self._console.say(self._files.dump(iteration.number, rank_number, dump))
        if state is not None:
            timer.begin("saving")
            wandb = None if self._wandb is None else self._wandb.run_id
            self._files.save({**state, "wall_s": wall_s, "wandb": wandb})
            timer.begin("logging")
        self._say_what_is_new()
        due = iteration.is_last or iteration.number % self._config.video_interval == 0
        # Who told training to stop does not wait for a video, and has set it a deadline.
        if self._video is not None and due and not self._stop():
            self._record_video(self._video, iteration.number)

    def _add(self, phase: str, seconds: float) -> None:
        self._phases[phase] = self._phases.get(phase, 0.0) + seconds

    def _say_what_is_new(self) -> None:
        """Tell of saves, and upload them."""
        for message in self._files.messages():
            self._console.say(message)
        if (self._metrics.error is not None) != self._unwritten:
            self._unwritten = not self._unwritten
            self._console.say(
                f"warning: metrics cannot be written, trying again: {self._metrics.error}"
                if self._unwritten
                else "metrics are written again, without a gap"
            )
        saved = self._files.saved
        if self._wandb is not None and saved is not None and saved != self._uploaded:
            self._uploaded = saved
            self._wandb.save(saved)

    def _record_video(self, video: TrainingVideo, iteration: int) -> None:
        path = video.record(iteration, self._trainer.ppo.actor.state_dict())
        if path is None:
            return
        if self._wandb is not None:
            self._wandb.write_video(iteration, path)
        elif self._config.logger == "tensorboard":
            from simtrain.view.video import as_gif

            self._metrics.write_video(iteration, as_gif(path))
