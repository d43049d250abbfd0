"""The whole configuration of a training run: what the command line parses, config.yaml stores.

Imports neither torch nor MuJoCo, so that a command can print its help at once.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

import tyro
from tyro.conf import Suppress, UseAppendAction, arg

from simtrain.env.cfg import TaskCfg
from simtrain.errors import ConfigError
from simtrain.ppo_cfg import PpoCfg

ConfigT = TypeVar("ConfigT")
TagsAndValues = Annotated[
    UseAppendAction[tuple[tuple[str, float], ...]], arg(metavar="METRIC VALUE")
]

Flag = Annotated[
    bool,
    tyro.constructors.PrimitiveConstructorSpec(
        nargs=(0, 1),
        metavar="[True|False]",
        instance_from_str=lambda words: _truth(words[0]) if words else True,
        is_instance=lambda value: isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    ),
]
"""A boolean whose flag alone means True."""


@dataclass
class TrainConfig:
    """Train a policy with PPO."""

    task: Suppress[str]
    gpu_ids: tuple[int, ...] | Literal["auto", "all"] | None = "auto"
    """GPUs to train on, a rank each, as indices into CUDA_VISIBLE_DEVICES if that is set; None is
    the CPU, auto the first GPU if there is one."""
    cpu_workers: int = 1
    """Ranks when training on the CPU."""
    cpu_threads: int | None = None
    """Threads of each rank, for physics and for torch; None shares the cores among the ranks."""
    hosts: tuple[str, ...] = ()
    """Machines to train on, by SSH, or slurm for those of the SLURM allocation; none is this one.
    --gpu-ids and --cpu-workers hold for each."""
    ssh_config: str | None = None
    """File with SSH settings of the hosts; None for ~/.ssh/config."""
    collective_timeout: float = 60.0
    """Seconds that several ranks have to reach each other at the start."""
    grace_seconds: float = 30.0
    """Seconds that a run has to finish its iteration and save once it is told to stop."""
    torchrunx_log_dir: str | None = None
    """Folder for what several ranks print; "" for none, None for <run>/torchrunx. The variable
    TORCHRUNX_LOG_DIR wins over this."""
    engine: Literal["auto", "mujoco", "warp"] = "auto"
    """Physics engine: mujoco is MuJoCo on CPU threads, warp is MuJoCo Warp; auto takes warp on GPUs
    and mujoco on the CPU."""
    deterministic: bool = False
    """Give the same results in every run on a GPU too; slower. The CPU engine always does."""
    cuda_graphs: Flag = True
    """Replay whole steps of rollouts and mini-batches of updates as CUDA graphs, where a task's
    terms allow it; False launches each operation by itself, and tells the phases apart."""
    num_envs: int = 1024
    """Environments of each rank: a second GPU doubles the experience of an iteration."""
    num_steps_per_env: int = 24
    """Steps of a rollout."""
    max_iterations: int = 1000
    """Iterations to train, each a rollout and a PPO update."""
    total_env_steps: int | None = None
    """Environment steps to train, over all ranks, instead of --max-iterations."""
    seed: int = 0
    """Seed of everything random; each rank adds its number."""
    log_root: Path = Path("logs")
    """Folder of all runs; this one goes to <log-root>/<task>/<date>_<time>[_<run-name>]."""
    run_name: str = ""
    """Added to the name of the run's folder."""
    save_interval: int = 50
    """Iterations between checkpoints."""
    keep_checkpoints: int | None = None
    """How many of the newest model_<iteration>.pt to keep; None for all."""
    resume: str | None = None
    """Go on with a run, in its folder: the folder, or latest for the newest run of this task below
    --log-root. Flags that are not given are those of the run."""
    resume_with_changes: bool = False
    """Let --resume go on although the configuration has changed."""
    max_restarts: int = 0
    """How often to start the ranks again from the last saved state after one of them died."""
    eval_interval: int | None = None
    """Iterations between evaluations: the policy acts without exploration, noise and pushes in
    environments of its own. None for no evaluation."""
    eval_episodes: int = 32
    """Episodes of an evaluation."""
    eval_device: str | None = None
    """Evaluate in a process of its own, on cpu or cuda:N with N as in --gpu-ids, while training
    goes on; None lets training wait for rank 0 to evaluate."""
    stop_at_return: float | None = None
    """End training when an evaluation's mean return reaches this."""
    stop_at: TagsAndValues = ()
    """End training when a metric reaches or exceeds a value, e.g. Eval/mean_return 45."""
    stop_below: TagsAndValues = ()
    """End training when a metric falls to or below a value, e.g. Eval/failure_rate 0.01."""
    logger: Literal["tensorboard", "wandb", "none"] = "tensorboard"
    """Where metrics go besides metrics.jsonl and the console."""
    wandb_project: str = "simtrain"
    """Project of --logger wandb."""
    wandb_mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    """Mode of --logger wandb; auto is online with an API key, offline without."""
    phase_times: Flag = True
    """Time the phases of every iteration, as Perf/time/* and a table at the end."""
    profile: Flag = False
    """Trace the 10th to the 12th iteration of this command, to <run>/trace.json."""
    video: Flag = False
    """Record the policy while it trains, to <run>/videos; changes nothing in training."""
    video_interval: int = 50
    """Iterations between videos."""
    video_length: int = 250
    """Control steps of a video."""
    env: TaskCfg = field(default_factory=lambda: TaskCfg(Path(), 0.0, 0, 0.0))
    ppo: PpoCfg = field(default_factory=PpoCfg)

    @staticmethod
    def of_task(name: str, task: TaskCfg) -> TrainConfig:
        """The configuration that a task asks for."""
        return TrainConfig(
            task=name,
            num_envs=task.num_envs,
            num_steps_per_env=task.num_steps_per_env,
            max_iterations=task.max_iterations,
            env=task,
            ppo=task.ppo,
        )

    def iterations(self, world_size: int, *, iteration: int = 0, env_steps: int = 0) -> int:
        """Iterations to have trained at the end, with `world_size` ranks.

        `iteration` and `env_steps` are how many a resumed run has trained.
        """
        if self.total_env_steps is None:
            return self.max_iterations
        each = self.num_envs * self.num_steps_per_env * world_size
        return iteration + math.ceil((self.total_env_steps - env_steps) / each)

    def engine_on(self, device: str) -> Literal["mujoco", "warp"]:
        """The physics engine of a rank on this kind of device, ``cuda`` or ``cpu``."""
        if self.engine != "auto":
            return self.engine
        return "warp" if device == "cuda" else "mujoco"

    def check(self) -> None:
        """Raise ConfigError for values that cannot be; names are checked with the model."""
        for name in (
            "num_envs",
            "num_steps_per_env",
            "max_iterations",
            "save_interval",
            "eval_episodes",
            "video_interval",
            "video_length",
            "cpu_workers",
        ):
            _at_least_one(f"--{name}", getattr(self, name))
        for name in ("total_env_steps", "cpu_threads", "keep_checkpoints", "eval_interval"):
            if getattr(self, name) is not None:
                _at_least_one(f"--{name}", getattr(self, name))
        most = max(64, 4 * (os.cpu_count() or 1))
        if self.cpu_threads is not None and self.cpu_threads > most:
            raise ConfigError(
                f"--cpu-threads is {self.cpu_threads}; at most {most} make sense here"
            )
        check_finite(self)
        for name in ("num_learning_epochs", "num_mini_batches"):
            _at_least_one(f"--ppo.{name}", getattr(self.ppo, name))
        for name in ("gamma", "lam"):
            if not 0.0 <= getattr(self.ppo, name) <= 1.0:
                raise ConfigError(f"--ppo.{name} is {getattr(self.ppo, name)}, not in [0, 1]")
        for name in ("learning_rate", "clip_param", "desired_kl", "max_grad_norm"):
            if not getattr(self.ppo, name) > 0.0:
                raise ConfigError(
                    f"--ppo.{name.replace('_', '-')} is {getattr(self.ppo, name)}; "
                    "it must be greater than 0"
                )
        if not self.ppo.actor.init_std > 0.0:
            raise ConfigError(
                f"--ppo.actor.init-std is {self.ppo.actor.init_std}; it must be greater than 0"
            )
        low, high = self.ppo.actor.std_range
        if not 0.0 < low <= self.ppo.actor.init_std <= high:
            raise ConfigError(
                f"--ppo.actor.std-range is {low} {high}; it must be greater than 0 and contain "
                f"--ppo.actor.init-std, {self.ppo.actor.init_std}"
            )
        samples = self.num_envs * self.num_steps_per_env
        if samples < self.ppo.num_mini_batches:
            raise ConfigError(
                f"{self.ppo.num_mini_batches} mini-batches (--ppo.num-mini-batches) cannot be made "
                f"of {samples} samples (--num-envs x --num-steps-per-env)"
            )
        for network in ("actor", "critic"):
            cfg = getattr(self.ppo, network)
            if not cfg.hidden_dims or min(cfg.hidden_dims) < 1:
                raise ConfigError(
                    f"--ppo.{network}.hidden-dims is {cfg.hidden_dims}; give one or more sizes"
                )
            if not cfg.obs_groups:
                raise ConfigError(f"--ppo.{network}.obs-groups needs one or more names")
            for group in cfg.obs_groups:
                fallback = network == "critic" and group == "critic"
                if group not in self.env.observations and not fallback:
                    raise ConfigError(
                        f"--ppo.{network}.obs-groups names {group!r}; the task has "
                        f"{', '.join(self.env.observations)}"
                    )
        for name in ("collective_timeout", "grace_seconds"):
            if not getattr(self, name) > 0.0:
                raise ConfigError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}; "
                    "it must be greater than 0"
                )
        if self.profile and self.iterations(self.cpu_workers) < 10:
            raise ConfigError(
                "--profile traces iterations 10 to 12, and training ends before; "
                "use --max-iterations 12 or more"
            )
        if self.max_restarts < 0:
            raise ConfigError(f"--max-restarts is {self.max_restarts}; it must be 0 or more")
        if not 0 <= self.seed < 2**32:
            raise ConfigError(f"--seed is {self.seed}, not in [0, 2^32)")
        if "/" in self.run_name or self.run_name in (".", ".."):
            raise ConfigError(f"--run-name is {self.run_name!r}; it must not contain '/'")
        if not self.run_name.isprintable():
            raise ConfigError(
                f"--run-name is {self.run_name!r}; it must be of printable characters, in one line"
            )


def check_finite(config: object) -> None:
    """Raise ConfigError for a number in a configuration that is NaN, or infinite and no bound."""
    for flag, value in _numbers(config):
        endless = math.isinf(value) and ".clip" not in flag
        if math.isnan(value) or endless:
            raise ConfigError(f"{flag} is {value}; it must be a finite number")


def _truth(word: str) -> bool:
    if word not in ("True", "False"):
        raise ValueError(f"{word!r} is neither True nor False")
    return word == "True"


def resolved(config: TrainConfig) -> dict[str, Any]:
    """A configuration as `as_plain` has it, with every value once.

    The run's own number of environments, say, and not what the task asks for.
    """
    plain: dict[str, Any] = as_plain(config)
    for name in ("num_envs", "num_steps_per_env", "max_iterations", "ppo"):
        del plain["env"][name]
    return plain


def as_plain(value: Any) -> Any:
    """A configuration as mappings, lists and scalars, for YAML; functions become their names."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: as_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [as_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if callable(value):
        return _function_name(value)
    return value


def overlay(default: ConfigT, plain: Any) -> ConfigT:
    """A copy of `default` with the values of `plain`, as `as_plain` made them.

    What is a function in `default` stays that function. Sequences become tuples.
    """
    result: Any = default
    if dataclasses.is_dataclass(default) and not isinstance(default, type) and plain is not None:
        values = {
            f.name: overlay(getattr(default, f.name), plain[f.name])
            if f.name in plain
            else getattr(default, f.name)
            for f in dataclasses.fields(default)
        }
        result = type(default)(**values)
    elif isinstance(default, dict) and isinstance(plain, dict):
        result = {key: overlay(default.get(key), item) for key, item in plain.items()}
    elif callable(default):
        result = default if plain == _function_name(default) else Path(plain)
    elif isinstance(default, Path):
        result = Path(plain)
    elif isinstance(plain, list):
        result = tuple(overlay(None, item) for item in plain)
    else:
        result = plain
    return cast(ConfigT, result)


def _numbers(value: Any, flag: str = "-") -> Iterator[tuple[str, float]]:
    """Every floating-point number of a configuration, with the flag that sets it."""
    if isinstance(value, float):
        yield flag, value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _numbers(item, flag)
    else:
        items = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        for name, item in items.items():
            below = flag if name == "params" else f"{flag}.{name.replace('_', '-')}"
            yield from _numbers(item, below.replace("-.", "--", 1) if flag == "-" else below)


def _function_name(function: Any) -> str:
    function = getattr(function, "func", function)  # of a functools.partial
    return f"{function.__module__}:{function.__qualname__}"


def _at_least_one(flag: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{flag.replace('_', '-')} is {value}; it must be 1 or more")
