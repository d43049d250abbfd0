"""Whether and how a saved run can go on, decided by the command before any rank starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import mujoco

from simtrain.config import TrainConfig
from simtrain.config_tree import differences, resolved
from simtrain.env.model import model_digest
from simtrain.errors import ConfigError
from simtrain.launch.plan import Job
from simtrain.launch.rank import share_of_cores
from simtrain.run.directory import versions
from simtrain.run.resume import SavedRun

_OF_ENVIRONMENTS = ("--env", "--num-envs", "--engine", "--seed")


@dataclass(frozen=True)
class Resumption:
    """How a run goes on, as the command decided it and each rank is told."""

    file: Path
    """The saved state, a path that rank 0 can read."""
    same_environments: bool
    """Whether environments go on as they were; else new episodes start."""
    changed: tuple[str, ...]
    """Flags that decide the results and differ from the run's."""


def plan_resumption(
    saved: SavedRun, config: TrainConfig, job: Job, model: mujoco.MjModel
) -> tuple[Resumption, list[str]]:
    """How to go on with a run, and what a person should know about it, in lines.

    Args:
        saved: the run.
        config: the configuration now.
        job: the ranks now.
        model: the task's model now.

    Raises:
        ConfigError: the configuration has changed, without ``--resume-with-changes``.
    """
    changed = _changes(saved, config, job, model)
    if changed and not config.resume_with_changes:
        shown = "\n".join(f"  {flag}: {what}" for flag, what in changed.items())
        raise ConfigError(
            f"the configuration is not that of {saved.path}:\n{shown}\n"
            "leave out these flags, or go on with --resume-with-changes True"
        )
    same_environments = not any(flag.startswith(_OF_ENVIRONMENTS) for flag in changed)
    lines = [f"warning: {complaint}" for complaint in saved.complaints]
    lines.append(f"going on with {saved.path} after iteration {saved.iteration}")
    differing = _differing(saved, job, changed)
    if differing:
        what = "" if same_environments else "; environments start new episodes"
        lines.append(f"the continuation is not exact: {', '.join(differing)}{what}")
    return Resumption(saved.file.absolute(), same_environments, tuple(changed)), lines


def _changes(
    saved: SavedRun, config: TrainConfig, job: Job, model: mujoco.MjModel
) -> dict[str, str]:
    """Flag -> what it was and is."""
    engine = config.engine_on(job.devices[0].kind)
    changed = differences(saved.content["config"], resolved(replace(config, engine=engine)))
    if saved.content["model"] != model_digest(model):
        changed["--env.model"] = "the model, or MuJoCo's version, is not the run's"
    return changed


def _differing(saved: SavedRun, job: Job, changed: dict[str, str]) -> list[str]:
    """Why the continuation is another than an uninterrupted run would have had."""
    before, now = len(saved.content["ranks"]), job.world_size
    threads = job.threads or share_of_cores(job.devices[0].ranks)
    its_versions, mine = saved.content["versions"], versions()
    differing = list(changed)
    if before != now:
        differing.append(f"{now} rank{'s' if now > 1 else ''} instead of {before}")
    if saved.content["threads"] != threads:
        differing.append(f"{threads} threads a rank instead of {saved.content['threads']}")
    differing += [
        f"{name} {mine.get(name)} instead of {its_versions.get(name)}"
        for name in {**its_versions, **mine}
        if its_versions.get(name) != mine.get(name)
    ]
    return differing
