"""simtrain from Python: environments, training and trained policies without a command.

`import simtrain` offers these functions, and the commands are built on them. Nothing heavy is
imported before one is called.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from simtrain.config.tasks import default_config, discover
from simtrain.config.train import TrainConfig
from simtrain.config.tree import as_plain, overlay, with_overrides
from simtrain.env.cfg import TaskCfg
from simtrain.errors import ConfigError
from simtrain.limits import NumEnvs, Repetitions, Seed, check, check_value
from simtrain.sim import EngineCfg, EngineName, choose_engine

if TYPE_CHECKING:
    from simtrain.algorithms.networks import Policy
    from simtrain.env.env import Env
    from simtrain.training.evaluator import Evaluation, Evaluator
    from simtrain.training.saved_policy import SavedPolicy

EngineFlag = Literal["auto", "mujoco", "warp"]
Overrides = Mapping[str, Any]
"""Names of settings, as in flags, with ``_`` or ``-``, and their values."""
_MAX_ENVS = 1024


def make_env(
    task: str | Path | TaskCfg,
    num_envs: int | None = None,
    overrides: Overrides | None = None,
    *,
    device: str = "cpu",
    engine: EngineFlag = "auto",
    seed: int = 0,
    disturbed: bool = True,
) -> Env:
    """Make environments of a task, reset and ready for `Env.step`.

    Args:
        task: name of a task, a run or checkpoint of the task, or the task's `TaskCfg`.
        num_envs: number of environments; None for the task's default.
        overrides: changes of the task, as ``{"rewards.upright.weight": 2.0}``.
        device: ``cpu``, ``cuda``, ``cuda:1``, or ``auto`` for the first GPU if there is one.
        engine: the physics engine; ``auto`` is Warp on a GPU and MuJoCo on the CPU.
        seed: seed for the random generators of torch, NumPy and Python, which this function sets.
        disturbed: whether to use observation noise, pushes and curricula, as in training.

    Raises:
        ConfigError: there is no such task, setting or device, or the task does not fit its model.
    """
    from simtrain.env.env import Env
    from simtrain.env.model import check_task, evaluation_task
    from simtrain.env.randomness import seed_everything

    cfg = with_overrides(_declaration(task), overrides or {})
    num_envs = cfg.num_envs if num_envs is None else num_envs
    check_value(num_envs, NumEnvs, "num_envs")
    check_value(seed, Seed, "seed")
    check_task(cfg)
    chosen = choose_device(device, engine)
    seed_everything(seed)
    with _announced_kernels(chosen.name):
        chosen = replace(chosen, threads=min(chosen.threads, num_envs))
        return Env(cfg if disturbed else evaluation_task(cfg), num_envs, chosen)


def train_config(task: str, overrides: Overrides | None = None) -> TrainConfig:
    """The configuration with which `train` trains a task; you can change it.

    Its ``env`` is the task's `TaskCfg`, its ``ppo`` the algorithm; all names are those of the
    flags. `overrides` are changes, as ``{"env.rewards.upright.weight": 2.0}``.
    """
    return with_overrides(default_config(task), overrides or {})


def train(cfg: TrainConfig | str, *, resume: str | Path | None = None) -> Path:
    """Train as the command ``train`` does, and return the run directory.

    Ctrl-C ends training after the iteration and saves; then the function returns. A second Ctrl-C
    raises KeyboardInterrupt at once. Without a terminal, one line is printed per iteration.

    Args:
        cfg: result of `train_config`, or a task's name. Its ``env`` can have terms of your own if
            training runs in this process: on one device, without an evaluator process.
        resume: a run of this configuration to continue, in its folder.

    Raises:
        ConfigError: the configuration cannot be trained; nothing was written.
        DivergenceError, SimulationError, RankError: training failed.
    """
    from simtrain.training.job import run_job
    from simtrain.training.prepare import prepare_job

    cfg = train_config(cfg) if isinstance(cfg, str) else cfg
    prepared = prepare_job(replace(cfg, resume=None if resume is None else str(resume)))
    if not prepared.job.in_process or prepared.job.evaluator is not None:
        _check_same_in_other_processes(prepared.config)
    with _process_as_before():
        return run_job(*prepared, ends_process=False)[0]


@contextmanager
def _process_as_before() -> Iterator[None]:
    """At the end, restore ``CUDA_VISIBLE_DEVICES``, torch threads and precision on GPUs."""
    import torch

    visible, threads = os.environ.get("CUDA_VISIBLE_DEVICES"), torch.get_num_threads()
    multiply, convolve = torch.backends.cuda.matmul, torch.backends.cudnn
    precision = multiply.allow_tf32, convolve.allow_tf32
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        multiply.allow_tf32, convolve.allow_tf32 = precision
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        if visible is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = visible


def load_policy(run: str | Path, cfg: TrainConfig | None = None, *, device: str = "cpu") -> Policy:
    """Load a trained policy, to be called with observations of its task: ``policy(obs)``.

    Args:
        run: a run, whose newest checkpoint is used, a checkpoint, or a task with a shipped policy.
        cfg: configuration of its training, if it has terms that are not in the task's file.
        device: device of the observations.

    Raises:
        ConfigError: there is no policy, it is damaged, or it no longer fits its task.
    """
    saved = open_policy(run, cfg)
    env = make_env(saved.config.env, 1, disturbed=False)
    obs = env.get_observations().to(choose_device(device, "auto").device)
    return saved.policy(obs, env.num_actions)


@dataclass
class EvaluationCfg:
    """Settings of an evaluation."""

    episodes: Repetitions = 100
    """Episodes of each policy."""
    num_envs: NumEnvs | None = None
    """Number of environments; None for one per episode, up to 1024."""
    seed: Seed = 0
    """Seed of starts and commands, the same for all policies."""
    device: str = "auto"
    """cpu or cuda:N; auto is the first GPU if there is one."""
    engine: EngineFlag = "auto"
    """Physics engine; auto takes warp on GPUs and mujoco on the CPU."""


def evaluate(
    run: str | Path,
    overrides: Overrides | None = None,
    cfg: TrainConfig | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate a policy as the command ``evaluate`` does: without exploration, noise and pushes.

    Args:
        run: as in `load_policy`.
        overrides: changes of the task, as ``{"episode_length_s": 5.0}``.
        cfg: as in `load_policy`.
        settings: fields of `EvaluationCfg`: ``episodes``, ``num_envs``, ``seed``, ``device`` and
            ``engine``.

    Raises:
        ConfigError: the policy cannot be evaluated with these settings.
        SimulationError: MuJoCo failed.
    """
    from simtrain.env.model import check_task, evaluation_task

    saved, how = open_policy(run, cfg), with_overrides(EvaluationCfg(), settings)
    task = with_overrides(evaluation_task(saved.config.env), overrides or {})
    check_task(task)
    evaluator = make_evaluator(how, task)
    evaluation = evaluator(saved.config.ppo.actor, saved.content["actor_state_dict"])
    assert evaluation is not None  # only where it may be stopped
    return evaluation


def make_evaluator(cfg: EvaluationCfg, task: TaskCfg) -> Evaluator:
    """Environments of `task` in which policies are evaluated, one after another."""
    from simtrain.training.evaluator import Evaluator

    engine, envs = choose_device(cfg.device, cfg.engine), cfg.num_envs or _MAX_ENVS
    with _announced_kernels(engine.name):
        return Evaluator(task, cfg.episodes, engine=engine, max_envs=envs, seed=cfg.seed)


def open_policy(run: str | Path, cfg: TrainConfig | None = None) -> SavedPolicy:
    """The policy of `load_policy` as it was saved; warns on stderr if its configuration changed."""
    from simtrain.training.saved_policy import open_policy

    saved = open_policy(Path(run), cfg)
    if saved.changed:
        print(f"warning: {saved.difference}", file=sys.stderr)
    return saved


def choose_device(device: str, engine: EngineFlag) -> EngineCfg:
    """The engine, and the device of environments and policy; ConfigError if there is none such."""
    from simtrain.launch.plan import find_gpus, use_gpu

    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
        allowed = "it must be auto, cpu, or cuda:0, cuda:1, ..."
        raise ConfigError(f"--device is {device!r}; {allowed}")
    gpus = 0 if device == "cpu" else len(find_gpus().uuids)
    name = {"auto": "cuda:0" if gpus else "cpu", "cuda": "cuda:0"}.get(device, device)
    if name != "cpu" and int(name.removeprefix("cuda:")) >= gpus:
        there = f"the visible GPUs are 0 to {gpus - 1}" if gpus else "no GPU is visible"
        raise ConfigError(f"--device {name}: {there}; --device cpu uses the CPU")
    if engine == "mujoco" and device not in ("auto", "cpu"):
        text = "simulates on the GPU, which --engine mujoco cannot; leave one of them out"
        raise ConfigError(f"--device {name} {text}")
    chosen = choose_engine(engine, name, len(os.sched_getaffinity(0)))
    if chosen.device != "cpu":
        use_gpu(chosen.device, "--device cpu uses the CPU")
    return chosen


def _announced_kernels(engine: EngineName) -> AbstractContextManager[None]:
    """Within, print a line when the engine's kernels are compiled, which takes minutes."""
    if engine == "mujoco":
        return nullcontext()

    from simtrain.sim.warp_compile import compilation_announced

    return compilation_announced(print)


def _declaration(task: str | Path | TaskCfg) -> TaskCfg:
    """The declaration itself, or that of a task's name, a run or a checkpoint."""
    if isinstance(task, TaskCfg):
        return task
    registry = discover()
    if str(task) not in registry.tasks and Path(task).exists():
        return open_policy(task).config.env
    return registry.find(str(task)).configuration()


def _check_same_in_other_processes(config: TrainConfig) -> None:
    """Raise ConfigError for a task that other processes would not find in its file."""
    try:
        there = overlay(default_config(config.task, quiet=True), as_plain(config))
        check(there)
        same = as_plain(there) == as_plain(config)
    except (TypeError, ConfigError):
        same = False
    if not same:
        text = f"the task {config.task!r} has terms that its file does not have, and other"
        raise ConfigError(f"{text} processes take part; write a task file, or use only one device")
