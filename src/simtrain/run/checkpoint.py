"""Checkpoints of a policy: rsl_rl's keys, loadable without running code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from simtrain.run.directory import written_whole


def model_path(run: Path, iteration: int) -> Path:
    """Where the checkpoint of an iteration lies."""
    return run / f"model_{iteration}.pt"


def latest_model(run: Path) -> Path | None:
    """The checkpoint of the latest iteration, or None."""
    found = {int(path.stem.removeprefix("model_")): path for path in run.glob("model_[0-9]*.pt")}
    return found[max(found)] if found else None


def save_model(run: Path, iteration: int, networks: dict[str, Any], infos: dict[str, Any]) -> Path:
    """Write ``model_<iteration>.pt``, whole or not at all; its path.

    Args:
        run: the run directory.
        iteration: how many iterations were trained.
        networks: what ``PPO.save`` returned: state of actor, critic and optimizer.
        infos: plain values to keep beside them.
    """
    path = model_path(run, iteration)
    with written_whole(path) as file:
        torch.save({**networks, "iter": iteration, "infos": infos}, file)
    return path
