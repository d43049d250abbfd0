"""Throughput of each layer of training, from bare physics to training end to end.

  uv run python benchmarks/phases.py cartpole-balance [--num-envs 256] [--rounds 9] [--threads 2]

Prints one JSON line for each of: physics (MuJoCo's batch alone, under random controls), env_step
(with terms and resets), rollout (with policy and storage), update (PPO alone) and training (rollout
and update). They are measured in turn, round after round, so that a machine whose speed drifts
still gives honest ratios; figures are medians over rounds, in environment steps per second.
"""

from __future__ import annotations

# ruff: noqa: E402 - the OpenMP runtime reads its settings when torch is imported
from simtrain.launch.spinning import limit_spinning

limit_spinning()

import json
import os
import statistics
import time
from dataclasses import dataclass

import torch
import tyro
from mujoco.batch import Batch

from simtrain.config import TrainConfig
from simtrain.env.env import Env
from simtrain.launch.rank import Rank
from simtrain.registry import discover
from simtrain.training.ppo import PPO
from simtrain.training.trainer import Iteration, Trainer


@dataclass
class Options:
    """Measure the throughput of each layer of training."""

    task: tyro.conf.Positional[str]
    num_envs: int | None = None
    """Environments; the task's own number if not given."""
    rounds: int = 9
    """How often each layer is measured."""
    threads: int = len(os.sched_getaffinity(0))
    """CPU threads."""


def main() -> None:
    options = tyro.cli(Options)
    config = TrainConfig.of_task(options.task, discover().find(options.task).make())
    num_envs = options.num_envs or config.num_envs
    steps = config.num_steps_per_env
    device = torch.device("cpu")
    rank = Rank(0, 0, 1, device, config.seed, options.threads)
    rank.seed_everything()
    env = Env(config.env, num_envs, threads=options.threads)
    ppo = PPO(config.ppo, env.get_observations(), env.num_actions, steps, rank)
    trainer = Trainer(env, ppo, rank)
    bare = Batch(env.model, num_envs, nthread=options.threads)
    bare.ctrl = torch.empty(num_envs, env.model.nu).uniform_(-1.0, 1.0).numpy()
    actions = torch.empty(num_envs, env.num_actions).uniform_(-1.0, 1.0)

    def physics() -> None:
        for _ in range(steps):
            bare.step(nstep=config.env.decimation)

    def env_steps() -> None:
        torch.set_num_threads(1)
        with torch.inference_mode():
            for _ in range(steps):
                env.step(actions)

    latest: list[Iteration] = []

    def training() -> None:
        latest.clear()
        trainer.run(trainer.iteration + 1, latest.append, lambda: False)

    layers = {"physics": physics, "env_step": env_steps, "training": training}
    seconds: dict[str, list[float]] = {name: [] for name in (*layers, "rollout", "update")}
    for round_ in range(options.rounds + 1):
        for name, run in layers.items():
            start = time.perf_counter()
            run()
            elapsed = time.perf_counter() - start
            if round_ == 0:  # warm-up
                continue
            seconds[name].append(elapsed)
        if round_ > 0:
            seconds["rollout"].append(latest[0].metrics["Perf/collection_time"])
            seconds["update"].append(latest[0].metrics["Perf/learning_time"])
    reference = statistics.median(seconds["physics"])
    for name in ("physics", "env_step", "rollout", "update", "training"):
        median = statistics.median(seconds[name])
        print(
            json.dumps(
                {
                    "task": options.task,
                    "num_envs": num_envs,
                    "layer": name,
                    "steps_per_second": round(num_envs * steps / median),
                    "of_physics": round(reference / median, 3),
                    "fastest_s": round(min(seconds[name]), 5),
                    "median_s": round(median, 5),
                }
            )
        )


if __name__ == "__main__":
    main()
