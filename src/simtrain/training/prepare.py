"""From the flags of a training to a checked configuration and the plan of its job.

Each check runs before the imports that it does not need, so that a mistake is reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from simtrain.config.train import TrainConfig
from simtrain.config.tree import check_storable
from simtrain.errors import ConfigError, flag
from simtrain.limits import field_default
from simtrain.sim import choose_engine
from simtrain.training.features.conditions import check_evaluation_flags
from simtrain.training.features.evolution import check_population_flags

if TYPE_CHECKING:
    from mujoco import MjModel

    from simtrain.launch.plan import Job
    from simtrain.training.resumption import SavedRun

_PROCESS_BYTES = 300 * 2**20  # of a process that has imported torch


class PreparedJob(NamedTuple):
    """A checked configuration with the plan of its job; the input of `run_job`."""

    config: TrainConfig
    job: Job
    model: MjModel
    """The task's compiled model."""
    saved: SavedRun | None
    """The resumed run; None for a new one."""


def prepare_job(
    default: TrainConfig, with_flags: Callable[[TrainConfig], TrainConfig] | None = None
) -> PreparedJob:
    """Check a configuration, and plan its job; ConfigError if it cannot be trained.

    `with_flags` returns a copy of a configuration with the values of the command line's flags. They
    are applied to `default`, the task's configuration adapted to GPUs and to the samples of an
    iteration, or to that of the resumed run. Without `with_flags`, `default` is not changed.
    """
    config = default if with_flags is None else with_flags(default)
    saved = None
    if config.resume is not None:
        from simtrain.training.resumption import find_run

        saved = find_run(config.resume, config.log_root, config.task)
        if with_flags is not None:
            from simtrain.training.saved_policy import check_programs

            given = config
            config = with_flags(run := saved.configuration(default))
            for name in ("init_from", "teacher"):
                if getattr(config, name) != getattr(run, name):
                    raise ConfigError(f"{flag(name)} is for new runs: leave it out with --resume")
            check_programs(config, given)
    config.check()
    config.check_on_machine()
    check_evaluation_flags(config)
    check_population_flags(config)
    if saved is None and config.logger != "wandb":
        for name in ("wandb_project", "wandb_mode"):
            if (value := getattr(config, name)) != field_default(TrainConfig, name):
                raise ConfigError(f"{flag(name)} {value} needs --logger wandb")

    from simtrain.env.model import check_task
    from simtrain.launch.plan import plan_job
    from simtrain.run.directory import check_folder
    from simtrain.training.reflection import Reflection
    from simtrain.training.transfer import read_networks, with_teacher

    check_folder(config.log_root, "--log-root")
    model = check_task(config.env)
    population = config.population, config.ranks_per_member
    job = plan_job(config, config.seed, config.eval_device, *population)
    if saved is None and with_flags is not None:
        of_task = default
        if simulates_on_gpu(config, job):
            of_task = TrainConfig.of_task(default.task, default.env, on_gpu=True)
            config = with_flags(of_task)
        scaled = of_task.for_samples(config.samples(job.world_size // job.members))
        if scaled is not of_task:
            config = with_flags(scaled)
        config.check()
    # The run's files name the engine that it takes, now and when it is resumed.
    config = replace(config, engine=choose_engine(config.engine, job.devices[0].kind).name)
    check_storable(config)
    if config.init_from is not None and saved is None:
        read_networks(config.init_from, config.init_only)
    if config.teacher is not None and saved is None:
        config = with_teacher(config)
    if config.ppo.symmetry.is_used:
        Reflection(config.env, model)
    return PreparedJob(config, job, model, saved)


def simulates_on_gpu(config: TrainConfig, job: Job) -> bool:
    """Whether physics runs on GPUs, for which a task may have another number of environments."""
    return choose_engine(config.engine, job.devices[0].kind).device == "cuda"


def check_on_devices(config: TrainConfig, job: Job, model: MjModel) -> None:
    """Check settings that depend on the job's devices; ConfigError if one does not fit them."""
    from simtrain.env.control.actuators import check_networks
    from simtrain.files import check_memory
    from simtrain.launch.launcher import check_log_level
    from simtrain.run.directory import make_folder

    devices = job.devices[0]
    simulator = choose_engine(config.engine, devices.kind)
    check_networks(config.env.actuators, simulator.device)
    for network in ("actor", "critic"):
        if ":" in (cfg := getattr(config.ppo, network)).model:
            from simtrain.algorithms.networks import find_model

            find_model(cfg, network)
    if devices.kind == "cpu":
        needed = devices.ranks * _bytes_of_rank(config, model)
        check_memory(needed, config.num_envs, devices.ranks)
    if not job.in_process:
        check_log_level()
        variable = os.environ.get("TORCHRUNX_LOG_DIR")
        if folder := config.torchrunx_log_dir if variable is None else variable:
            name = "--torchrunx-log-dir" if variable is None else "TORCHRUNX_LOG_DIR"
            make_folder(Path(folder), name)
    elif simulator.name == "warp":
        # Several ranks check it themselves: Warp initializes CUDA, and launching them forks.
        from simtrain.sim.warp_model import check_model

        check_model(model)


def _bytes_of_rank(config: TrainConfig, model: MjModel) -> int:
    """Approximate memory of a rank on the CPU: process, environments, rollout, networks.

    The size of observations is not known before environments are built; that of the model's state
    is used.
    """
    from simtrain.env.model import bytes_per_env

    envs, samples = config.num_envs, config.num_envs * config.num_steps_per_env
    observed, actions = int(model.nq + model.nv + model.nu), int(model.nu)
    rows = max(envs, samples // config.ppo.num_mini_batches)
    floats = samples * ((len(config.env.observations) + 4) * observed + 4 * actions + 12)
    for network in (config.ppo.actor, config.ppo.critic):
        layers = [observed, *network.hidden_dims, actions]
        if network.model in ("gru", "lstm"):  # its states, before each step, and by autograd
            layers.insert(1, network.rnn_hidden_dim)
            units = network.rnn_hidden_dim * network.rnn_num_layers
            floats += units * (samples + 8 * rows)
        # As measured: outputs and gradients; weights with gradients, moments and copies.
        floats += 2 * rows * sum(network.hidden_dims) + 6 * sum(a * b for a, b in pairwise(layers))
    return _PROCESS_BYTES + envs * bytes_per_env(model) + 4 * floats
