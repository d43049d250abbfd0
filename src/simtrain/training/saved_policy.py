"""Loading trained policies: of a run, or the shipped policy of a task.

A shipped policy is ``trained/<task>.pt`` next to the task's file, and ``<task>.yaml``. The latter
contains only the settings that are not the task's own, see `deployment.export.ship_policy`.
"""

import sys
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from tensordict import TensorDict

from simtrain.algorithms.networks import Policy
from simtrain.config.tasks import Task, default_config, discover
from simtrain.config.train import TrainConfig
from simtrain.config.tree import CONFIG_DIGEST, config_digest, overlay, resolved, set_leaves
from simtrain.env.model import check_task
from simtrain.errors import ConfigError, config_errors_of, did_you_mean, flag
from simtrain.files import damage_as_config_error
from simtrain.limits import leaves
from simtrain.run.checkpoint import (
    BEST,
    BEST_CONFIG,
    check_parameters,
    model_paths,
    read_checkpoint,
)
from simtrain.run.directory import newest_run, no_run, read_config_file

_OWN = ("rsl_rl", "simtrain")  # packages whose classes may be imported by their names


@dataclass(frozen=True)
class SavedPolicy:
    """A checkpoint and the configuration of its run or its task."""

    checkpoint: Path
    config: TrainConfig
    content: dict[str, Any]
    """The checkpoint's content, see `simtrain.run.checkpoint`."""
    changed: bool = False
    """Whether ``config.yaml`` differs from the configuration of the training."""
    ships: bool = False
    """Whether it is the shipped policy of its task."""

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.checkpoint.parent

    @property
    def iteration(self) -> int:
        """Number of trained iterations."""
        return int(self.content["iter"])

    @property
    def difference(self) -> str:
        """The warning if the configuration has `changed`."""
        file = self.run / "config.yaml"
        return f"{file} is not the configuration that {self.checkpoint.name} was trained with"

    def policy(self, obs: TensorDict, num_actions: int) -> Policy:
        """The policy for an environment; ConfigError if it does not fit."""
        return Policy(self.config.ppo.actor, obs, num_actions, self.content["actor_state_dict"])


def named_task(path: Path) -> Task | None:
    """The task of that name, unless `path` is a run or a checkpoint."""
    if path.is_file() or model_paths(path) or (path / BEST_CONFIG).exists():
        return None
    return discover().tasks.get(str(path))


def find_policy(path: Path) -> Path:
    """The checkpoint at `path`, a file or a run's newest, or the one shipped with the `named_task`.

    ConfigError if there is none.
    """
    task = named_task(path)
    if task is not None and task.trained.is_file():
        return task.trained
    if path.is_file():
        return path
    if newest := model_paths(path):
        return newest[-1]
    if (path / BEST_CONFIG).exists():
        return path / BEST
    if (path / "config.yaml").exists():
        raise ConfigError(f"the run {path} has no checkpoint yet (model_<iteration>.pt)")
    if path.exists():
        raise no_run(path)
    if task is not None:
        way = f"`uv run train {task.name}` trains one, to be named by its run"
        if run := newest_run(Path("logs", task.name)):
            way = f"its newest run is {run}"
        raise ConfigError(f"no trained policy ships with the task {task.name}; {way}")
    near = did_you_mean(str(path), discover().tasks)
    if others := model_paths(path.parent):
        near = f"; the newest checkpoint in {path.parent} is {others[-1].name}"
    raise ConfigError(f"there is no run, checkpoint or task {path}{near}")


def open_policy(path: Path, default: TrainConfig | None = None) -> SavedPolicy:
    """The policy that `find_policy` finds; ConfigError if it is not complete.

    `default` has the terms of its task, if they are not those of the task's file.
    """
    checkpoint = find_policy(path)
    own = checkpoint.with_suffix(".yaml")  # of a policy that ships, or a population's best
    file = own if own.exists() else checkpoint.parent / "config.yaml"
    described = read_config_file(file.parent, file.name)
    content, task = read_checkpoint(checkpoint), described["config"]["task"]
    infos = content["infos"] if isinstance(content["infos"], dict) else {}
    if (trained := infos.get("task")) != task:
        raise ConfigError(f"{checkpoint} is of the task {trained!r}, but is in a run of {task!r}")
    check_parameters(content["actor_state_dict"], f"the policy in {checkpoint}")
    config, digest = read_configuration(file, described, default)
    # Older checkpoints have no digest, nor have those that ship.
    changed = infos.get(CONFIG_DIGEST, digest) != digest
    return SavedPolicy(checkpoint, config, content, changed, "observations" in described)


def read_configuration(
    file: Path, content: dict[str, Any], default: TrainConfig | None = None
) -> tuple[TrainConfig, str]:
    """The configuration in a file, checked as that of a training, and its digest.

    `content` is the whole content of the file, see `read_config_file`; `default` is the task's own
    configuration, None for the one of its name.
    """
    plain = content["config"]
    default = default or _default_config(plain["task"], content.get("task_file"))
    own = default.env.model
    does_not_fit = f"it does not fit the task {plain['task']!r} as it is now"
    with config_errors_of(str(file)):
        with damage_as_config_error(does_not_fit):
            if "observations" in content:
                plain = set_leaves(resolved(default), leaves(plain))
            digest, model = config_digest(plain), Path(plain["env"]["model"])
            # The run may come from another machine, where the task's folder was elsewhere.
            if isinstance(own, Path) and not model.exists() and model.name == own.name:
                plain = {**plain, "env": {**plain["env"], "model": str(own)}}
            config = overlay(default, plain)
            check_programs(config, default)
            config.check()
            trained, now = content.get("observations"), observed(config)
            if trained not in (None, now):
                what = ", ".join(sorted({*trained} ^ {*now})) or "their order"
                way = f"`uv run train {config.task}` trains another"
                raise ConfigError(f"the task's observations have changed since ({what}); {way}")
        check_task(config.env)
    return config, digest


def _default_config(task: str, trained_with: object) -> TrainConfig:
    """The configuration of the task's name; its ConfigError names the file of the training."""
    try:
        return default_config(task)
    except ConfigError as error:
        if not isinstance(trained_with, str) or task in discover(quiet=True).tasks:
            raise
        text = f"{error}. The run was trained with {trained_with}"
        raise ConfigError(f"{text}: use it there, or name the folder in SIMTRAIN_TASKS") from error


def check_programs(config: TrainConfig, trusted: TrainConfig) -> None:
    """Raise ConfigError for a program that only a file names.

    Such a program is a motor's network in TorchScript, or a network's class, whose import runs its
    module. Accepted are classes of rsl_rl, of simtrain and of modules that the task's file has
    imported, and all that is in `trusted`, the task's configuration with the flags of this command.
    """
    for name in ("ppo.actor.model", "ppo.critic.model", "distillation.teacher.model"):
        model, own = map(attrgetter(name), (config, trusted))
        module = model.partition(":")[0] if ":" in model else "rsl_rl"
        if model != own and module not in sys.modules and module.split(".")[0] not in _OWN:
            text = f"--{name} {model} is named by a run; its module is not run for that"
            raise ConfigError(f"{text}: import {module} in the task's file if it is yours")
    for name, motor in config.env.actuators.items():
        file = getattr(motor, "network", None)
        own_file = getattr(trusted.env.actuators.get(name), "network", None)
        if file is not None and file.suffix != ".onnx" and file != own_file:
            text = f"{flag('env', 'actuators', name, 'network')} {file} is named by a run;"
            text = f"{text} TorchScript is a program, which is not run for that"
            raise ConfigError(f"{text}: name the file in the task if it is yours, or take ONNX")


def observed(config: TrainConfig) -> list[str]:
    """The names of a policy's observations, with those of their groups, in order."""
    groups = config.env.observation_terms()
    return [f"{group}.{name}" for group in config.ppo.actor.obs_groups for name in groups[group]]
