"""How often a policy fails on the nominal robot, on randomized ones, and if these are pushed, too.

  uv run python benchmarks/disturbances.py go1-velocity-flat --episodes 1000

Three conditions, each with commands over their full ranges:

- nominal: the model as it is, without noise and pushes; only the starts are random.
- randomized: what training draws at the start and at resets, as `simtrain evaluate` has it.
- disturbed: with the observation noise and the pushes of training, too.

Prints a JSON line for each: means and rates of the episodes, with their 95 % intervals.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from simtrain import TaskCfg
from simtrain.api import EvaluationCfg, make_evaluator, open_policy
from simtrain.env.model import evaluation_task


@dataclass
class Options:
    """Evaluate a policy on nominal, on randomized and on disturbed robots."""

    run: Annotated[Path, tyro.conf.Positional]
    """A run directory, a checkpoint, or a task with a shipped policy."""
    episodes: int = 1000
    """Episodes of each condition."""
    seed: int = 1000
    """Seed of starts and commands."""


def main() -> None:
    options = tyro.cli(Options)
    saved = open_policy(options.run)
    for name, cfg in conditions(saved.config.env).items():
        evaluator = make_evaluator(EvaluationCfg(options.episodes, seed=options.seed), cfg)
        found = evaluator(saved.config.ppo.actor, saved.content["actor_state_dict"])
        assert found is not None
        row = {
            key: [round(v, 4) for v in (e.value, e.low, e.high)]
            for key, e in found.estimates.items()
        }
        print(json.dumps({"condition": name, "episodes": len(found.failed)} | row), flush=True)


def conditions(cfg: TaskCfg) -> dict[str, TaskCfg]:
    """The task under each condition, by name."""
    randomized = evaluation_task(cfg)
    nominal, disturbed = copy.deepcopy(randomized), copy.deepcopy(randomized)
    starts = ("reset_root_state_uniform", "reset_joints_uniform")
    nominal.events = {n: e for n, e in nominal.events.items() if e.func.__name__ in starts}
    disturbed.observations = copy.deepcopy(cfg.observations)
    pushes = {n: copy.deepcopy(e) for n, e in cfg.events.items() if e.mode == "interval"}
    for event in pushes.values():
        event.after_steps = 0
    disturbed.events |= pushes
    return {"nominal": nominal, "randomized": randomized, "disturbed": disturbed}


if __name__ == "__main__":
    main()
