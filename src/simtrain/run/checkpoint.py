"""Checkpoints of a policy: rsl_rl's keys, loadable without running code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from simtrain.errors import ConfigError
from simtrain.run.tensor_file import checksum, read_tensors, write_tensors

BEST = "best.pt"
"""The checkpoint with the best evaluation of a run."""

_KEYS = ("actor_state_dict", "critic_state_dict", "iter", "infos")


def model_path(run: Path, iteration: int) -> Path:
    """Where the checkpoint of an iteration lies."""
    return run / f"model_{iteration}.pt"


def model_paths(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; without `BEST`."""
    numbered = {
        int(match[1]): path
        for path in run.glob("model_*.pt")
        if (match := re.fullmatch(r"model_(\d+)\.pt", path.name))
    }
    return [numbered[iteration] for iteration in sorted(numbered)]


def save_model(path: Path, iteration: int, networks: dict[str, Any], infos: dict[str, Any]) -> None:
    """Write a checkpoint, whole or not at all.

    Args:
        path: the file, see `model_path`.
        iteration: how many iterations were trained.
        networks: what ``PPO.save`` returned: state of actor, critic and optimizer.
        infos: plain values to keep beside them.
    """
    content = {**networks, "iter": iteration, "infos": infos}
    # rsl_rl has no key of its own for a checksum, and hands on the infos as they are.
    write_tensors(path, {**content, "infos": {**infos, "checksum": checksum(content)}})


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that a user names: a file, or the newest of a run directory.

    Raises:
        ConfigError: there is none; says what is there.
    """
    if path.is_file():
        return path
    if not path.exists():
        raise ConfigError(f"there is no run or checkpoint {path}")
    newest = model_paths(path)
    if newest:
        return newest[-1]
    runs = sorted({file.parent for file in path.glob("*/**/model_*.pt")})
    if runs:
        raise ConfigError(f"{path} is no run directory; the newest run below it is {runs[-1]}")
    if (path / "config.yaml").exists():
        raise ConfigError(f"the run {path} has no checkpoint yet (model_<iteration>.pt)")
    raise ConfigError(f"{path} is no run directory: it has no config.yaml and no checkpoint")


def read_checkpoint(path: Path, device: torch.device | str = "cpu") -> dict[str, Any]:
    """What `save_model` wrote; a file that would need to run code is refused.

    Raises:
        ConfigError: the file is damaged, is something else, or cannot be read; says which.
    """
    content = read_tensors(path, "checkpoint", device)
    if not all(key in content for key in _KEYS):
        raise ConfigError(f"{path} is no checkpoint of simtrain: it needs {', '.join(_KEYS)}")
    infos = content["infos"]
    # Checkpoints of rsl_rl itself have none.
    if isinstance(infos, dict) and "checksum" in infos:
        content["infos"] = {key: item for key, item in infos.items() if key != "checksum"}
        if checksum(content) != infos["checksum"]:
            raise ConfigError(f"{path} is damaged: its checksum is wrong")
    return content
