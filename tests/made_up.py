"""Run directories with made-up metrics, whose means are known."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simtrain.run.directory import write_config


def make_run(
    path: Path,
    lines: Sequence[Mapping[str, Any]],
    *,
    devices: Sequence[str] = ("cpu",),
    **config: Any,
) -> Path:
    """A run directory; iteration i has 10 i environment steps and took i seconds."""
    path.mkdir(parents=True)
    plain = {
        "task": "walk",
        "seed": 0,
        "num_envs": 5,
        "num_steps_per_env": 2,
        "env": {"model": "/here/walker.xml", "rewards": {"upright": {"weight": 1.0, "params": {}}}},
        "ppo": {"learning_rate": 1e-3},
        **config,
    }
    write_config(path / "config.yaml", plain, list(devices))
    with (path / "metrics.jsonl").open("w") as file:
        for i, line in enumerate(lines, start=1):
            file.write(
                json.dumps({"iteration": i, "env_steps": 10 * i, "wall_s": 1.0 * i, **line}) + "\n"
            )
    return path


def returns(*values: float | None) -> list[dict[str, Any]]:
    """Lines of metrics with these returns."""
    return [{"Train/mean_reward": value} for value in values]
