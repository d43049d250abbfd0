"""Trained policies: from a run directory back to a task, its environments and the actions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensordict import TensorDict

from simtrain.algorithms.policy import Policy
from simtrain.config import TrainConfig
from simtrain.config_tree import overlay
from simtrain.errors import ConfigError
from simtrain.registry import default_config
from simtrain.run.checkpoint import BEST, BEST_CONFIG, find_checkpoint, read_checkpoint
from simtrain.run.directory import read_config_file


@dataclass(frozen=True)
class SavedPolicy:
    """A checkpoint and the configuration of the run that it belongs to."""

    checkpoint: Path
    config: TrainConfig
    content: dict[str, Any]
    """The checkpoint's content, see `simtrain.run.checkpoint`."""

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.checkpoint.parent

    @property
    def iteration(self) -> int:
        """Iterations that were trained."""
        return int(self.content["iter"])

    def policy(self, obs: TensorDict, num_actions: int) -> Policy:
        """The policy for such an environment; ConfigError if that does not fit it."""
        return Policy(self.config.ppo.actor, obs, num_actions, self.content["actor_state_dict"])


def open_policy(path: Path) -> SavedPolicy:
    """The policy in a run directory or checkpoint; ConfigError if there is none that is whole."""
    checkpoint = find_checkpoint(path)
    has_own = checkpoint.name == BEST and (checkpoint.parent / BEST_CONFIG).exists()
    name = BEST_CONFIG if has_own else "config.yaml"
    plain = read_config_file(checkpoint.parent, name)["config"]
    content = read_checkpoint(checkpoint)
    task = content["infos"].get("task") if isinstance(content["infos"], dict) else None
    if task != plain["task"]:
        raise ConfigError(
            f"{checkpoint} is of the task {task!r}, but lies in a run of {plain['task']!r}"
        )
    return SavedPolicy(checkpoint, _configuration(checkpoint.parent, plain), content)


def _configuration(run: Path, plain: dict[str, Any]) -> TrainConfig:
    default = default_config(plain["task"])
    model = plain["env"]["model"]
    own = default.env.model
    # The run may come from another machine, where the task's folder was elsewhere.
    moved = isinstance(own, Path) and not Path(model).exists() and Path(model).name == own.name
    if moved:
        plain = {**plain, "env": {**plain["env"], "model": str(own)}}
    try:
        return overlay(default, plain)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{run / 'config.yaml'} does not fit the task {plain['task']!r} as it is now: {error}"
        ) from error
