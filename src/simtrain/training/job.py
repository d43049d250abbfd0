"""A training job from its configuration to its exit code."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco

from simtrain.config import TrainConfig, as_plain, overlay
from simtrain.errors import ConfigError
from simtrain.launch.launcher import check_log_level, choose_log_dir, launch_ranks
from simtrain.launch.plan import Devices, Job, plan_job
from simtrain.launch.rank import Rank
from simtrain.launch.stop import StopSignals
from simtrain.registry import discover
from simtrain.run.checkpoint import BEST
from simtrain.run.console import Status, TrainingConsole
from simtrain.run.directory import VIDEOS, make_folder, make_run_directory, shown
from simtrain.run.metrics_files import METRICS, check_idle
from simtrain.run.phase_table import phase_table
from simtrain.run.report import PICTURE
from simtrain.run.resume import SavedRun
from simtrain.stop_conditions import check_stop_conditions
from simtrain.training.restarts import train_with_restarts
from simtrain.training.resume_plan import Resumption, plan_resumption
from simtrain.training.run_files import Outcome
from simtrain.training.stopping import Stopping, exit_code


def run_job(
    config: TrainConfig,
    default: TrainConfig,
    model: mujoco.MjModel,
    saved: SavedRun | None = None,
) -> int:
    """Run a training job whose configuration was checked; the exit code.

    Args:
        config: the whole configuration.
        default: the task's own configuration, without flags.
        model: the task's compiled model.
        saved: the run to go on with, or None for a new one.

    Raises:
        ConfigError: there is no such device or host, or the configuration is not the saved run's.
        DivergenceError: nothing could be learned any more.
        SimulationError: MuJoCo failed.
        RankError: a rank of several failed.
    """
    job = plan_job(config)
    # CUDA_VISIBLE_DEVICES is read once: set it before Warp or torch first uses a GPU.
    rank = job.make_rank() if job.in_process else None
    engine = config.engine_on(job.devices[0].kind)
    check_stop_conditions(config, engine)
    if not job.in_process:
        _check_logs(config.torchrunx_log_dir)
    elif engine == "warp":
        # Several ranks check it themselves: Warp initializes CUDA, and launching them forks.
        from simtrain.sim.warp_model import check_model

        check_model(model)
    resumption, lines = None, _introduction(config, job)
    done = (0, 0)
    if saved is not None:
        check_idle(saved.path)
        resumption, more = plan_resumption(saved, config, job, model)
        lines += more
        done = (saved.iteration, saved.env_steps)
    iterations = config.iterations(job.world_size, iteration=done[0], env_steps=done[1])
    if saved is not None and saved.iteration >= iterations:
        print(f"{saved.path} is done: it was trained for {saved.iteration} iterations")
        return 0
    console = TrainingConsole(config.task, iterations)
    stopping = Stopping(config.task, config.grace_seconds, console)
    with stopping.signals as stop, console:
        for line in lines:
            console.say(line)
        run = _run_directory(config, saved)
        stopping.run = run
        console.say(f"run:        {shown(run)}")

        def train(resumption: Resumption | None) -> Outcome:
            if rank is None:
                return _train_on_ranks(config, default, job, run, console, stop, resumption)
            return _train_here(config, default, job, rank, run, console, stop, resumption)

        try:
            outcome = train_with_restarts(train, config, job, model, run, resumption, console, stop)
        except ConfigError:
            if saved is None and not (run / METRICS).exists():
                shutil.rmtree(run)
            raise
        except BaseException:
            stopping.leave_the_end_to_its_thread()
            if command := stopping.command_to_go_on():
                console.say(f"to go on: {command}")
            raise
    if outcome.phases:
        console.show_table(phase_table(outcome.phases))
    _say_goodbye(run, outcome, stopping, console.say)
    if outcome.error is not None:
        return 1
    return 0 if stop.received is None else exit_code(stop.received)


def _run_directory(config: TrainConfig, saved: SavedRun | None) -> Path:
    if saved is not None:
        return saved.path.absolute()
    return make_run_directory(config.log_root, config.task, config.run_name).absolute()


def _check_logs(flag: str | None) -> None:
    check_log_level()
    variable = os.environ.get("TORCHRUNX_LOG_DIR")
    if folder := flag if variable is None else variable:
        name = "--torchrunx-log-dir" if variable is None else "TORCHRUNX_LOG_DIR"
        make_folder(Path(folder), name)


def _train_here(
    config: TrainConfig,
    default: TrainConfig,
    job: Job,
    rank: Rank,
    run: Path,
    console: TrainingConsole,
    stop: StopSignals,
    resumption: Resumption | None,
) -> Outcome:
    from simtrain.training.worker import run_worker

    outcome = run_worker(
        config,
        rank,
        run,
        stop,
        console=console,
        devices=job.rank_names(),
        default=default,
        resumption=resumption,
        evaluator=job.evaluator,
    )
    assert outcome is not None
    return outcome


def _train_on_ranks(
    config: TrainConfig,
    default: TrainConfig,
    job: Job,
    run: Path,
    console: TrainingConsole,
    stop: StopSignals,
    resumption: Resumption | None,
) -> Outcome:
    def receive(content: object) -> None:
        if isinstance(content, Status):
            console.show(content)
        else:
            console.say(str(content))

    outcome = launch_ranks(
        job,
        train_rank,
        config.task,
        as_plain(config),
        run,
        job.rank_names(),
        resumption,
        job.evaluator,
        receive=receive,
        stop=stop,
        log_dir=choose_log_dir(config.torchrunx_log_dir, run),
    )
    assert outcome is not None
    return outcome


def train_rank(
    rank: Rank,
    show: Callable[[object], None],
    stop: Callable[[], bool],
    task: str,
    values: dict[str, Any],
    run: Path,
    devices: list[str],
    resumption: Resumption | None,
    evaluator: Devices | None,
) -> Outcome | None:
    """Train as one rank of several, in a process of its own.

    Task files are no modules that another process could import, so the configuration is made anew
    from the task's name and its values.
    """
    from simtrain.training.worker import run_worker

    default = TrainConfig.of_task(task, discover().find(task).configuration())
    return run_worker(
        overlay(default, values),
        rank,
        run,
        stop,
        console=_RemoteConsole(show),
        devices=devices,
        default=default,
        resumption=resumption,
        evaluator=evaluator,
    )


class _RemoteConsole:
    """Shows things on the console of the command that launched this rank."""

    def __init__(self, show: Callable[[object], None]) -> None:
        self._show = show

    def say(self, message: str) -> None:
        self._show(message)

    def show(self, status: Status) -> None:
        self._show(status)


def _introduction(config: TrainConfig, job: Job) -> list[str]:
    """What a person should know before the first iteration."""
    lines = []
    if config.gpu_ids == "auto":
        found = "GPU 0" if job.devices[0].kind == "cuda" else "the CPU, for no GPU is visible"
        lines.append(f"training on {found} (--gpu-ids)")
    if config.engine == "mujoco" and job.devices[0].kind == "cuda":
        lines.append("physics on CPU threads (--engine mujoco), learning on the GPU")
    if not job.in_process:
        steps = config.num_envs * config.num_steps_per_env * job.world_size
        lines.append(
            f"{job}: {config.num_envs:,} environments each (--num-envs is per rank), "
            f"{steps:,} env steps an iteration"
        )
    return lines


def _say_goodbye(
    run: Path, outcome: Outcome, stopping: Stopping, say: Callable[[str], None]
) -> None:
    received = stopping.signals.received
    if outcome.error is not None:
        say(f"warning: the last checkpoint or metrics could not be written: {outcome.error}")
    elif received is not None:
        say(f"stopped by {received.name}; the policy so far is saved")
    path = shown(run)
    say(f"run:        {path}")
    say(f"checkpoint: {path / outcome.checkpoint.name if outcome.checkpoint else None}")
    if (run / BEST).exists():
        say(f"best:       {path / BEST}")
    if (run / PICTURE).exists():
        say(f"picture:    {path / PICTURE}")
    if any((run / VIDEOS).glob("*.mp4")):
        say(f"videos:     {path / VIDEOS}")
    if received is not None and (command := stopping.command_to_go_on()):
        say(f"to go on:   {command}")
    say(f"curves:     uv run tensorboard --logdir {shlex.quote(str(path.parent))}")
