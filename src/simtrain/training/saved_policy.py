"""Trained policies: from a run directory back to a task, its environments and the actions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensordict import TensorDict

from simtrain.algorithms.policy import Policy
from simtrain.config import TrainConfig
from simtrain.config_tree import CONFIG_DIGEST, check_types, config_digest, overlay
from simtrain.env.model import check_task
from simtrain.errors import ConfigError
from simtrain.files import damage_as_config_error
from simtrain.registry import default_config
from simtrain.run.checkpoint import find_checkpoint, model_path, model_paths, read_checkpoint
from simtrain.run.directory import read_config_file


@dataclass(frozen=True)
class SavedPolicy:
    """A checkpoint and the configuration of the run that it belongs to."""

    checkpoint: Path
    config: TrainConfig
    content: dict[str, Any]
    """The checkpoint's content, see `simtrain.run.checkpoint`."""
    changed: bool = False
    """Whether the configuration, in ``config.yaml``, is not that of the training."""

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.checkpoint.parent

    @property
    def iteration(self) -> int:
        """Iterations that were trained."""
        return int(self.content["iter"])

    @property
    def difference(self) -> str:
        """What is to be said if it `changed`."""
        file = self.run / "config.yaml"
        return f"{file} is not the configuration that {self.checkpoint.name} was trained with"

    def policy(self, obs: TensorDict, num_actions: int) -> Policy:
        """The policy for such an environment; ConfigError if that does not fit it."""
        return Policy(self.config.ppo.actor, obs, num_actions, self.content["actor_state_dict"])


def open_policy(path: Path) -> SavedPolicy:
    """The policy in a run directory or checkpoint; ConfigError if there is none that is whole."""
    checkpoint = find_checkpoint(path)
    plain = read_config_file(checkpoint.parent)["config"]
    content = read_checkpoint(checkpoint)
    infos = content["infos"] if isinstance(content["infos"], dict) else {}
    if (task := infos.get("task")) != plain["task"]:
        raise ConfigError(
            f"{checkpoint} is of the task {task!r}, but lies in a run of {plain['task']!r}"
        )
    if not all(tensor.isfinite().all() for tensor in content["actor_state_dict"].values()):
        raise ConfigError(f"the policy in {checkpoint} has parameters that are not finite numbers")
    own_name = model_path(checkpoint.parent, content["iter"])
    if checkpoint.name != own_name.name and checkpoint in model_paths(checkpoint.parent):
        raise ConfigError(f"{checkpoint} is damaged: it is {own_name.name}, by what it holds")
    config, digest = _configuration(checkpoint.parent / "config.yaml", plain)
    # Checkpoints of before have no digest.
    changed = infos.get(CONFIG_DIGEST, digest) != digest
    return SavedPolicy(checkpoint, config, content, changed)


def _configuration(path: Path, plain: dict[str, Any]) -> tuple[TrainConfig, str]:
    """The configuration in a file, checked as that of a training, and its digest."""
    default = default_config(plain["task"])
    own = default.env.model
    try:
        with damage_as_config_error(f"it does not fit the task {plain['task']!r} as it is now"):
            digest, model = config_digest(plain), Path(plain["env"]["model"])
            # The run may come from another machine, where the task's folder was elsewhere.
            if isinstance(own, Path) and not model.exists() and model.name == own.name:
                plain = {**plain, "env": {**plain["env"], "model": str(own)}}
            config = overlay(default, plain)
            check_types(config)
            config.check()
        check_task(config.env)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return config, digest
