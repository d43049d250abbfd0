"""Throughput of each layer of training on one rank, from bare physics to training end to end.

Layers are measured in turn, round after round, so that a machine whose speed drifts still gives
honest ratios. Several ranks go through each block at the same time, and the slowest counts. On a
GPU every block ends when the device is done.
"""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from simtrain.benchmark.figures import LAYERS
from simtrain.env.env import Env
from simtrain.launch.rank import Rank
from simtrain.sim.engine import Engine
from simtrain.training.features import Iteration
from simtrain.training.loop import Trainer


class StoppedError(Exception):
    """A rank was told to stop."""


@dataclass(frozen=True)
class Clock:
    """Times blocks over all ranks, which go through them together."""

    rank: Rank
    stop: Callable[[], bool]

    def time(self, device: torch.device, block: Callable[[], None]) -> float:
        """Seconds that `block` takes on the slowest device; StoppedError if told to stop."""
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        block()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
        everyone = self.rank.all_gather([seconds, float(self.stop())])
        if everyone[:, 1].any():
            raise StoppedError
        return float(everyone[:, 0].max())


def measure_layers(
    trainer: Trainer, repetitions: int, clock: Clock, say: Callable[[str], None]
) -> dict[str, list[float]]:
    """Seconds of each layer's blocks of one rollout; all ranks call it together.

    Bare physics gets the controls that random actions led to, from the states that they started in.
    A first round, which is not counted, compiles, captures graphs and fills caches.
    """
    env, steps = trainer.env, trainer.ppo.storage.num_transitions_per_env
    actions = torch.randn(steps, env.num_envs, env.num_actions, device=env.device)
    start = env.sim.state()
    controls: list[Tensor] = []
    _step_through(env, actions, controls)
    physics = _bare_physics(env.sim, start, controls, env.cfg.decimation)
    seconds: dict[str, list[float]] = {layer: [] for layer in LAYERS}
    latest: list[Iteration] = []

    def training() -> None:
        latest.clear()
        while not latest or trainer.iteration < 2:  # graphs of steps are captured in the second
            latest.append(trainer.iterate(trainer.iteration + 1, lambda: False))

    trainer.begin()
    for _ in range(1 + repetitions):
        seconds["physics"].append(physics(clock))
        seconds["env_step"].append(clock.time(env.device, lambda: _step_through(env, actions)))
        seconds["training"].append(clock.time(trainer.rank.device, training))
        for text in (text for iteration in latest for text in iteration.warnings):
            say(f"warning: {text}")
        seconds["rollout"].append(latest[-1].metrics["Perf/collection_time"])
        seconds["update"].append(latest[-1].metrics["Perf/learning_time"])
    return {layer: times[1:] for layer, times in seconds.items()}


def device_name(device: torch.device) -> str:
    """The model of a GPU or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


@torch.inference_mode()
def _step_through(env: Env, actions: Tensor, controls: list[Tensor] | None = None) -> None:
    """Step by `actions`, ``(steps, num_envs, num_actions)``; append each ``ctrl`` to `controls`."""
    torch.set_num_threads(1)  # as in a rollout of small networks
    for action in actions:
        env.step_in_place(action)
        if controls is not None:
            controls.append(env.bind("ctrl").clone())


def _bare_physics(
    engine: Engine, start: dict[str, Tensor], controls: list[Tensor], decimation: int
) -> Callable[[Clock], float]:
    """A function that times `controls` from `start`, and leaves the engine as it was.

    In place of the mujoco engine a batch of MuJoCo is simulated, without float32 mirrors.
    """
    if engine.name == "mujoco":
        from mujoco.batch import Batch

        batch = Batch(engine.model, engine.num_envs, nthread=engine.threads)  # type: ignore[attr-defined]
        for name, value in start.items():
            if name.startswith("model/"):
                batch.expand(name.removeprefix("model/"))[...] = value.numpy()
        if start["const_follows"]:
            batch.set_const()
        rows = [control.double().numpy() for control in controls]

    def simulate_batch() -> None:
        for row in rows:
            batch.ctrl = row
            batch.step(nstep=decimation)

    def simulate() -> None:
        ctrl = engine.bind("ctrl")
        for control in controls:
            ctrl.copy_(control)
            engine.step(decimation)

    def seconds(clock: Clock) -> float:
        if engine.name == "mujoco":
            batch.state[...] = start["state"].numpy()
            return clock.time(engine.device, simulate_batch)
        present = engine.state()
        engine.set_state(start)
        spent = clock.time(engine.device, simulate)
        engine.set_state(present)
        return spent

    return seconds
