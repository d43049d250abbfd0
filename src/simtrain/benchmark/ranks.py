"""Throughput of each layer of training, from bare physics to training end to end, on some ranks.

First all cases are checked. Then each number of ranks and of threads is a job of processes of its
own, of which nothing is left when the next begins; the command itself uses no GPU or threads.
Layers are measured in turn, round after round, so that a machine whose speed drifts still gives
honest ratios. Several ranks go through each block at the same time, and the slowest counts. On a
GPU every block ends when the device is done.
"""

from __future__ import annotations

import gc
import itertools
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from simtrain.benchmark.figures import LAYERS, Case, Figure, figures_of
from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.env.model import check_task
from simtrain.errors import ConfigError
from simtrain.launch import GpuIds
from simtrain.launch.hosts import HostGpus
from simtrain.launch.launcher import launch_ranks
from simtrain.launch.plan import Devices, Job, find_gpus, resolve_devices
from simtrain.launch.processes import StopSignals
from simtrain.launch.rank import Rank
from simtrain.sim import EngineName, choose_engine
from simtrain.sim.engine import Engine

if TYPE_CHECKING:
    from simtrain.env.env import Env
    from simtrain.training.features import Iteration
    from simtrain.training.loop import Trainer


@dataclass(frozen=True)
class Settings:
    """How the cases of a benchmark are measured; n ranks take the first n devices."""

    devices: Devices
    repetitions: int
    cuda_graphs: bool
    tf32: bool = True


Clock = Callable[[torch.device, Callable[[], None]], float]
"""Seconds that a block takes on a device."""
Measured = tuple[tuple[Figure, ...], str]
"""The figures of a job of ranks, and the model of the device of rank 0."""


def choose_devices(gpu_ids: GpuIds, ranks: int) -> Devices:
    """The devices that ``--gpu-ids`` names, ``auto`` all GPUs or the CPU; at least `ranks`."""
    gpus = HostGpus(None, ()) if gpu_ids is None else find_gpus()
    if gpu_ids == "auto":
        gpu_ids = "all" if gpus.uuids else None
    devices = resolve_devices(gpu_ids, 1, gpus)
    if devices.kind == "cuda" and devices.ranks < ranks:
        raise ConfigError(
            f"--ranks {ranks} needs as many GPUs, and there are {devices.ranks} "
            "(--gpu-ids); --gpu-ids None measures on the CPU"
        )
    return devices


def all_cases(
    tasks: Iterable[str],
    engines: Iterable[EngineName | Literal["auto"]],
    kind: Literal["cuda", "cpu"],
    ranks: Iterable[int],
    num_envs: Iterable[int],
    threads: Iterable[int],
) -> list[Case]:
    """Every combination once, in the order given; ConfigError for one that cannot be trained.

    Without `num_envs`, a task has its own number where physics runs.
    """
    names, sizes = [choose_engine(engine, kind).name for engine in engines], list(num_envs)
    every: dict[Case, None] = {}
    for task, name in itertools.product(tasks, names):
        cfg, on_gpu = default_config(task).env, (name, kind) == ("warp", "cuda")
        own = TrainConfig.of_task(task, cfg, on_gpu=on_gpu).num_envs
        combinations = itertools.product([task], [name], [kind], ranks, sizes or [own], threads)
        every |= dict.fromkeys(itertools.starmap(Case, combinations))
    cases = list(every)
    configs = [case_config(case) for case in cases]
    for config in configs:
        config.check()
    for config in {config.task: config for config in configs}.values():
        check_task(config.env)
    return cases


def case_config(case: Case) -> TrainConfig:
    """The configuration that a case is trained with."""
    return replace(default_config(case.task), num_envs=case.num_envs, engine=case.engine)


def measure_cases(cases: Sequence[Case], settings: Settings, stop: StopSignals) -> Measured | None:
    """Measure all cases, and print each; None if a signal ended that."""
    figures: tuple[Figure, ...] = ()
    name = ""
    for ranks, threads in dict.fromkeys((case.ranks, case.threads) for case in cases):
        some = [case for case in cases if (case.ranks, case.threads) == (ranks, threads)]
        devices = (settings.devices.first(ranks),)
        job = Job(("localhost",), devices, threads=threads, grace_seconds=10.0)
        given = job, measure_rank, some, settings
        measured = launch_ranks(*given, receive=print, stop=stop, log_dir="")
        if measured is None or stop():
            return None
        figures, name = figures + measured[0], measured[1]
    return figures, name


def measure_rank(
    rank: Rank,
    show: Callable[[object], None],
    stop: Callable[[], bool],
    cases: Sequence[Case],
    settings: Settings,
) -> Measured | None:
    """Measure cases as one rank of a job; None if it was told to stop."""
    from simtrain.env.randomness import seed_everything
    from simtrain.launch.phase_timer import make_timer
    from simtrain.training.worker import make_trainer, out_of_memory_as_config_error

    rank.progress.iteration = 1  # all ranks work together, so one that hangs is found
    say = show if rank.is_main else lambda message: None
    figures: list[Figure] = []
    for case in cases:
        say(f"measuring {case}")
        config = case_config(case)
        config.cuda_graphs, config.tf32 = settings.cuda_graphs, settings.tf32
        seed_everything(rank.seed)
        with (
            out_of_memory_as_config_error(case.num_envs),
            closing(make_trainer(config, rank, make_timer(rank.device), say)) as trainer,
        ):
            try:
                seconds = measure_layers(trainer, settings.repetitions, stop, say)
            except StoppedError:
                return None
        steps = case.ranks * case.num_envs * config.num_steps_per_env
        figures += figures_of(case, steps, seconds)
        del trainer
        gc.collect()  # it is gone before the next is built
    return tuple(figures), device_name(rank.device)


class StoppedError(Exception):
    """A rank was told to stop."""


def seconds_of(
    rank: Rank, stop: Callable[[], bool], device: torch.device, block: Callable[[], None]
) -> float:
    """Seconds that `block`, which all ranks go through, takes on the slowest device.

    StoppedError if a rank is told to stop.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    block()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - start
    everyone = rank.all_gather([seconds, float(stop())])
    if everyone[:, 1].any():
        raise StoppedError
    return float(everyone[:, 0].max())


def measure_layers(
    trainer: Trainer, repetitions: int, stop: Callable[[], bool], say: Callable[[str], None]
) -> dict[str, list[float]]:
    """Seconds of each layer's blocks of one rollout; all ranks call it together.

    Bare physics gets the controls that random actions led to, from the states that they started in.
    A first round, which is not counted, compiles, captures graphs and fills caches.
    """
    env, steps = trainer.env, trainer.ppo.storage.num_transitions_per_env
    clock = partial(seconds_of, trainer.rank, stop)
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
        seconds["env_step"].append(clock(env.device, lambda: _step_through(env, actions)))
        seconds["training"].append(clock(trainer.rank.device, training))
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
            return clock(engine.device, simulate_batch)
        present = engine.state()
        engine.set_state(start)
        spent = clock(engine.device, simulate)
        engine.set_state(present)
        return spent

    return seconds
