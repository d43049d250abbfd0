"""A training job from its configuration to its exit code."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simtrain.config import TrainConfig, as_plain, overlay
from simtrain.errors import ConfigError
from simtrain.launch.devices import Devices
from simtrain.launch.job import Job, plan_job
from simtrain.launch.launcher import check_logs, choose_log_dir, launch_ranks
from simtrain.launch.rank import Rank, share_of_cores
from simtrain.launch.stop import StopSignals
from simtrain.registry import discover
from simtrain.run.checkpoint import BEST
from simtrain.run.console import Status, TrainingConsole
from simtrain.run.directory import make_run_directory
from simtrain.run.report import PICTURE
from simtrain.stop_conditions import check_stop_conditions
from simtrain.training.stopping import Stopping, exit_code


def run_job(config: TrainConfig) -> int:
    """Run a training job whose configuration was checked; the exit code.

    Raises:
        ConfigError: there is no such device or host.
        SimulationError: MuJoCo failed.
        RankError: a rank of several failed.
    """
    job = plan_job(config)
    if job.in_process and job.devices[0].kind == "cuda":
        # CUDA reads the variable once: before Warp or torch first use it.
        os.environ["CUDA_VISIBLE_DEVICES"] = job.devices[0].visible
    engine = config.engine_on(job.devices[0].kind)
    check_stop_conditions(config, engine)
    if not job.in_process:
        check_logs(config.torchrunx_log_dir)
    elif engine == "warp":
        # Several ranks check it themselves: Warp initializes CUDA, and launching them forks.
        from simtrain.env.model import compile_model
        from simtrain.sim.warp_model import check_model

        check_model(compile_model(config.env))
    console = TrainingConsole(config.task, config.iterations(job.world_size))
    stopping = Stopping(config.grace_seconds, console)
    with stopping.signals as stop, console:
        for line in _introduction(config, job):
            console.say(line)
        run = make_run_directory(config.log_root, config.task, config.run_name).absolute()
        stopping.run = run
        train = _train_here if job.in_process else _train_on_ranks
        try:
            checkpoint = train(config, job, run, console, stop)
        except ConfigError:
            if not (run / "metrics.jsonl").exists():
                shutil.rmtree(run)
            raise
    _say_goodbye(run, checkpoint, stop)
    return 0 if stop.received is None else exit_code(stop.received)


def _train_here(
    config: TrainConfig, job: Job, run: Path, console: TrainingConsole, stop: StopSignals
) -> Path | None:
    import torch

    from simtrain.training.worker import run_worker

    devices = job.devices[0]
    rank = Rank(
        rank=0,
        local_rank=0,
        world_size=1,
        device=torch.device(devices.device(0)),
        seed=job.seed,
        threads=job.threads or share_of_cores(1),
    )
    return run_worker(
        config, rank, run, stop, console=console, devices=job.rank_names(), evaluator=job.evaluator
    )


def _train_on_ranks(
    config: TrainConfig, job: Job, run: Path, console: TrainingConsole, stop: StopSignals
) -> Path | None:
    def receive(content: object) -> None:
        if isinstance(content, Status):
            console.show(content)
        else:
            console.say(str(content))

    return launch_ranks(
        job,
        train_rank,
        config.task,
        as_plain(config),
        run,
        job.rank_names(),
        job.evaluator,
        receive=receive,
        stop=stop,
        log_dir=choose_log_dir(config.torchrunx_log_dir, run),
    )


def train_rank(
    rank: Rank,
    show: Callable[[object], None],
    stop: Callable[[], bool],
    task: str,
    values: dict[str, Any],
    run: Path,
    devices: list[str],
    evaluator: Devices | None,
) -> Path | None:
    """Train as one rank of several, in a process of its own.

    Task files are no modules that another process could import, so the configuration is made anew
    from the task's name and its values.
    """
    from simtrain.training.worker import run_worker

    config = overlay(TrainConfig.of_task(task, discover().find(task).configuration()), values)
    return run_worker(
        config, rank, run, stop, console=_RemoteConsole(show), devices=devices, evaluator=evaluator
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


def _say_goodbye(run: Path, checkpoint: Path | None, stop: StopSignals) -> None:
    if stop.received is not None:
        print(f"stopped by {stop.received.name}; the policy so far is saved")
    run = Path(os.path.relpath(run)) if run.is_relative_to(Path.cwd()) else run
    print(f"run:        {run}")
    print(f"checkpoint: {run / checkpoint.name if checkpoint else None}")
    if (run / BEST).exists():
        print(f"best:       {run / BEST}")
    if (run / PICTURE).exists():
        print(f"picture:    {run / PICTURE}")
    print(f"curves:     uv run tensorboard --logdir {shlex.quote(str(run.parent))}")
