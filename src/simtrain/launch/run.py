"""Start a training job, wait for it, and say how it ended."""

from __future__ import annotations

import os
import shlex
import signal
from pathlib import Path

import torch

from simtrain.config import TrainConfig
from simtrain.launch.rank import Rank
from simtrain.launch.stop import StopSignals
from simtrain.run.directory import make_run_directory
from simtrain.training.worker import run_worker


def launch(config: TrainConfig) -> int:
    """Run a training job that was checked before; the exit code."""
    threads = config.cpu_threads or len(os.sched_getaffinity(0))
    rank = Rank(
        rank=0,
        local_rank=0,
        world_size=1,
        device=torch.device("cpu"),
        seed=config.seed,
        threads=threads,
    )
    run = make_run_directory(config.log_root, config.task, config.run_name)
    with StopSignals() as stop:
        checkpoint = run_worker(config, rank, run, stop)
    _say_goodbye(run, checkpoint, stop)
    return 0 if stop.received is None else 128 + stop.received


def _say_goodbye(run: Path, checkpoint: Path | None, stop: StopSignals) -> None:
    if stop.received is not None:
        print(f"stopped by {signal.Signals(stop.received).name}; the policy so far is saved")
    print(f"run:        {run}")
    print(f"checkpoint: {checkpoint}")
    print(f"curves:     uv run tensorboard --logdir {shlex.quote(str(run.parent))}")
