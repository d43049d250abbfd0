"""How many robots climb stairs of one height: out of a pit with steps on all sides.

  uv run python benchmarks/climb.py RUN --level 3

The policy of a run of a task on rough ground, without noise and pushes, is told to walk straight
ahead at `--speed` from the middle of an inverted pyramid, whose steps are those that the task's
`stairs_up` have on `--level` of its terrain. One that comes out of its tile within an episode and
does not fall has climbed. Prints a JSON line with the share and its 95 % interval.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import tyro
from torch import Tensor

from simtrain import MetricTermCfg, TerrainCfg
from simtrain.api import EvaluationCfg, make_evaluator, open_policy
from simtrain.env.env import Env
from simtrain.env.model import evaluation_task
from simtrain.training.evaluator import Estimate


@dataclass
class Options:
    """Let a policy climb out of pits with stairs."""

    run: Annotated[Path, tyro.conf.Positional]
    """A run directory or a checkpoint."""
    level: int = 3
    """Level of the task's terrain whose stairs are climbed."""
    episodes: int = 200
    """How many robots try."""
    speed: float = 0.6
    """Commanded velocity ahead, m/s."""


def main() -> None:
    options = tyro.cli(Options)
    saved = open_policy(options.run)
    cfg = evaluation_task(saved.config.env)
    terrain = cfg.terrain
    assert terrain is not None, "the task has no terrain"
    stairs = terrain.sub_terrains["stairs_up"]
    low, high = stairs.params["step_height"]
    height = low + (high - low) * options.level / (terrain.num_levels - 1)
    stairs.params["step_height"] = (height, height)
    cfg.terrain = TerrainCfg({"stairs_up": stairs}, num_levels=1, num_columns=1)
    velocity = cfg.commands["velocity"].params
    velocity |= {"lin_vel_x": (options.speed,) * 2, "lin_vel_y": (0.0, 0.0)}
    velocity |= {"ang_vel_z": (0.0, 0.0), "rel_heading_envs": 0.0, "rel_standing_envs": 0.0}
    cfg.metrics = {"way": MetricTermCfg(way_from_middle, reduce="last")}
    evaluator = make_evaluator(EvaluationCfg(options.episodes), cfg)
    found = evaluator(saved.config.ppo.actor, saved.content["actor_state_dict"])
    assert found is not None
    edge = terrain.tile_size / 2.0
    climbed = [
        way > edge and not fell
        for way, fell in zip(found.metrics["way"], found.failed, strict=True)
    ]
    share = Estimate.of_rate(sum(climbed), len(climbed))
    print(
        json.dumps(
            {
                "step_height": round(height, 4),
                "climbed": round(share.value, 4),
                "interval": [round(share.low, 4), round(share.high, 4)],
                "fell": sum(found.failed) / len(found.failed),
            }
        )
    )


def way_from_middle(env: Env) -> Tensor:
    """Distance from the middle of the tile, the larger of those along x and y, m."""
    assert env.terrain is not None
    position = env.bind("qpos")[:, env.base.position][:, :2]
    return torch.amax((position - env.terrain.origins[:, :2]).abs(), dim=1)


if __name__ == "__main__":
    main()
