"""Checkpoints of a policy: rsl_rl's keys, loadable without running code."""

from __future__ import annotations

import io
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from simtrain.errors import ConfigError
from simtrain.run.directory import written_whole

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
    with written_whole(path) as file:
        torch.save({**networks, "iter": iteration, "infos": infos}, file)


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
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the checkpoint {path} cannot be read: {error.strerror}") from error
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected pickle protocol")
            content = torch.load(io.BytesIO(data), map_location=device, weights_only=True)
    except pickle.UnpicklingError as error:
        pickled = data.startswith((b"PK", b"\x80"))  # the bytes of a text can look like a class
        if pickled and ("Unsupported global" in str(error) or "Unsupported class" in str(error)):
            raise ConfigError(
                f"the checkpoint {path} is refused: it holds more than tensors and plain values, "
                "and loading it could run code that somebody put there"
            ) from error
        raise ConfigError(f"{path} is not a checkpoint, or it is damaged") from error
    except Exception as error:  # what torch raises for broken bytes is not documented
        raise ConfigError(f"{path} is not a checkpoint, or it is damaged") from error
    if not isinstance(content, dict) or not all(key in content for key in _KEYS):
        raise ConfigError(f"{path} is no checkpoint of simtrain: it needs {', '.join(_KEYS)}")
    return content
