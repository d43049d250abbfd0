"""Throughput of each layer of training, from bare physics to training end to end.

  uv run python benchmarks/phases.py cartpole-balance
  uv run python benchmarks/phases.py go1-velocity-flat --device cuda:0 --num-envs 4096

Prints one JSON line for each of: physics (MuJoCo's batch alone, or the engine's replayed CUDA
graph), env_step (with terms and resets), rollout (with policy and storage), update (PPO alone) and
training (rollout and update). Physics gets the controls that random actions led to in a block of
environment steps, from the states that this block started in.

Layers are measured in turn, round after round, so that a machine whose speed drifts still gives
honest ratios. Figures are medians over rounds, in environment steps per second. On a GPU every
block ends when the device is done.
"""

from __future__ import annotations

# ruff: noqa: E402 - the OpenMP runtime reads its settings when torch is imported
from simtrain.launch.spinning import limit_spinning

limit_spinning()

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from simtrain.cli.exits import run_command
from simtrain.cli.parse import parse_flags
from simtrain.config import TrainConfig
from simtrain.env.env import Env
from simtrain.errors import ConfigError
from simtrain.launch.rank import Rank
from simtrain.registry import discover
from simtrain.sim import EngineName
from simtrain.sim.engine import Engine
from simtrain.training.ppo import PPO
from simtrain.training.trainer import Iteration, Trainer

LAYERS = ("physics", "env_step", "rollout", "update", "training")


@dataclass
class Options:
    """Measure the throughput of each layer of training."""

    engine: Literal["auto", "mujoco", "warp"] = "auto"
    """Physics engine; auto takes warp on a GPU and mujoco on the CPU."""
    device: str = "auto"
    """Where the networks are, and the simulations of warp: cpu or cuda:0; auto takes a GPU if
    there is one."""
    num_envs: int | None = None
    """Environments; the task's own number if not given."""
    rounds: int = 9
    """How often each layer is measured."""
    threads: int = len(os.sched_getaffinity(0))
    """CPU threads."""


@dataclass(frozen=True)
class Throughput:
    """How fast one layer is."""

    layer: str
    """Which: one of `LAYERS`."""
    steps_per_second: int
    """Environment steps, in the median of all rounds."""
    of_physics: float
    """The same as a part of bare physics."""
    median_s: float
    """Seconds of a block, in the median."""
    fastest_s: float
    """Seconds of the fastest block."""


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        raise ConfigError("the task comes first: phases.py <task> [flags]")
    task, *flags = sys.argv[1:]
    options = parse_flags(f"phases.py {task}", Options(), flags)
    config = TrainConfig.of_task(task, discover().find(task).configuration())
    config.num_envs = options.num_envs or config.num_envs
    config.check()
    device = find_device(options.device)
    engine: EngineName = (
        options.engine if options.engine != "auto" else config.engine_on(device.type)
    )
    trainer = build(config, engine, device, options.threads)
    for throughput in measure(trainer, config.env.decimation, options.rounds):
        about = {
            "task": task,
            "engine": engine,
            "device": str(device),
            "device_name": device_name(device),
            "threads": options.threads,
            "num_envs": config.num_envs,
            "rounds": options.rounds,
        }
        print(json.dumps({**about, **asdict(throughput)}))
    overflow = trainer.env.sim.overflow()
    for message in overflow.messages().values() if overflow else ():
        print(f"warning: {message}", file=sys.stderr)
    return 0


def find_device(name: str) -> torch.device:
    """The device of that name, made torch's current one; ConfigError if there is none."""
    if name == "auto":
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if name not in ("cpu", *gpus):
        raise ConfigError(f"--device is {name!r}; here it can be {', '.join(('cpu', *gpus))}")
    device = torch.device(name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def device_name(device: torch.device) -> str:
    """What a person calls the device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def build(config: TrainConfig, engine: EngineName, device: torch.device, threads: int) -> Trainer:
    """A trainer of one rank, as the train command makes it."""
    rank = Rank(0, 0, 1, device, config.seed, threads)
    rank.seed_everything()
    env = Env(
        config.env,
        config.num_envs,
        engine=engine,
        device=device if engine == "warp" else "cpu",
        threads=threads,
    )
    obs = env.get_observations().to(device)
    ppo = PPO(config.ppo, obs, env.num_actions, config.num_steps_per_env, rank)
    return Trainer(env, ppo, rank)


def measure(trainer: Trainer, decimation: int, rounds: int) -> list[Throughput]:
    """Each layer's throughput, in the order of `LAYERS`."""
    env, steps = trainer.env, trainer.ppo.storage.num_transitions_per_env
    actions = torch.randn(steps, env.num_envs, env.num_actions, device=env.device)
    start = env.sim.state()
    physics = bare_physics(env.sim, start, record_controls(env, actions), decimation)
    device = trainer.rank.device
    seconds: dict[str, list[float]] = {layer: [] for layer in LAYERS}
    latest: list[Iteration] = []

    def training() -> None:
        trainer.run(trainer.iteration + 1, latest.append, lambda: False)

    for _ in range(rounds + 1):
        seconds["physics"].append(physics())
        seconds["env_step"].append(timed(env.device, lambda: step_through(env, actions)))
        seconds["training"].append(timed(device, training))
        seconds["rollout"].append(latest[-1].metrics["Perf/collection_time"])
        seconds["update"].append(latest[-1].metrics["Perf/learning_time"])
    # The first round compiles, captures and fills caches.
    medians = {layer: statistics.median(times[1:]) for layer, times in seconds.items()}
    return [
        Throughput(
            layer,
            steps_per_second=round(env.num_envs * steps / medians[layer]),
            of_physics=round(medians["physics"] / medians[layer], 3),
            median_s=round(medians[layer], 5),
            fastest_s=round(min(seconds[layer][1:]), 5),
        )
        for layer in LAYERS
    ]


def timed(device: torch.device, block: Callable[[], None]) -> float:
    """Seconds that a block takes, until the device is done with it."""
    synchronize(device)
    start = time.perf_counter()
    block()
    synchronize(device)
    return time.perf_counter() - start


def synchronize(device: torch.device) -> None:
    """Wait for a GPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@torch.inference_mode()
def step_through(env: Env, actions: Tensor) -> None:
    """Step the environments by `actions`, ``(steps, num_envs, num_actions)``."""
    torch.set_num_threads(1)  # as in a rollout of small networks
    for action in actions:
        env.step(action)


@torch.inference_mode()
def record_controls(env: Env, actions: Tensor) -> list[Tensor]:
    """Step the environments by `actions`; what stood in ``ctrl`` at each step."""
    controls = []
    for action in actions:
        env.step(action)
        controls.append(env.bind("ctrl").clone())
    return controls


def bare_physics(
    engine: Engine, start: dict[str, Tensor], controls: list[Tensor], decimation: int
) -> Callable[[], float]:
    """A function that simulates `controls` from `start` and returns the seconds that it took.

    On the CPU engine it is MuJoCo's batch without the engine's float32 mirrors; on warp it is the
    engine itself, whose step then is one replay of a graph. `engine` is left as it is found.
    """
    if "state" not in start:  # warp

        def replay() -> None:
            ctrl = engine.bind("ctrl")
            for control in controls:
                ctrl.copy_(control)
                engine.step(decimation)

        def warp_seconds() -> float:
            present = engine.state()
            engine.set_state(start)
            seconds = timed(engine.device, replay)
            engine.set_state(present)
            return seconds

        return warp_seconds

    from mujoco.batch import Batch

    batch = Batch(engine.model, engine.num_envs, nthread=engine.threads)  # type: ignore[attr-defined]
    for name, value in start.items():
        if name.startswith("model/"):
            batch.expand(name.removeprefix("model/"))[...] = value.numpy()
    if start["const_follows"]:
        batch.set_const()
    rows = [control.double().numpy() for control in controls]

    def step() -> None:
        for row in rows:
            batch.ctrl = row
            batch.step(nstep=decimation)

    def batch_seconds() -> float:
        batch.state[...] = start["state"].numpy()
        return timed(engine.device, step)

    return batch_seconds


if __name__ == "__main__":
    run_command(main)
