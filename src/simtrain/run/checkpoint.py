"""Checkpoints of a policy: rsl_rl's keys, loadable without running code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from simtrain.run.directory import written_whole


def model_path(run: Path, iteration: int) -> Path:
    """Where the checkpoint of an iteration lies."""
    return run / f"model_{iteration}.pt"


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
