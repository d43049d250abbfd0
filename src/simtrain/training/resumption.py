"""Resuming a run: the files of its training state, and the plan for ``--resume``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mujoco

from simtrain.config.train import TrainConfig
from simtrain.config.tree import continued, differences, resolved
from simtrain.env.model import model_digest
from simtrain.errors import ConfigError, config_errors_of
from simtrain.files import damage_as_config_error
from simtrain.launch.plan import Job
from simtrain.launch.rank import share_of_cores
from simtrain.limits import check
from simtrain.run.checkpoint import check_kinds, read_tensors, write_tensors
from simtrain.run.directory import MEMBERS, newest_run, versions
from simtrain.training.context import Resumption

NEWEST, PREVIOUS = "resume.pt", "resume.previous.pt"
FORMAT = 2
"""Changes when simtrain can no longer continue what an earlier version saved."""
_KINDS: dict[str, Any] = dict.fromkeys(("iteration", "env_steps", "steps", "threads"), int)
_KINDS |= dict.fromkeys(("task", "model"), str) | {"ranks": list, "versions": dict[str, str]}
_KINDS |= {"world_size": int, "save": list[int]} | dict.fromkeys(
    ("config", "default", "trainer", "learner", "features"), dict
)
_ENVIRONMENT_FLAGS = ("--env", "--num-envs", "--engine", "--seed")


class NoStateError(ConfigError):
    """A run has no training state that all of its ranks have written."""


@dataclass(frozen=True)
class SavedRun:
    """A run that can be resumed."""

    path: Path
    """The run directory."""
    file: Path
    """Its newest complete state."""
    content: dict[str, Any]
    """The state."""
    warnings: tuple[str, ...] = ()
    """Newer states that are damaged, and newer runs that were skipped."""
    members: tuple[SavedRun, ...] = ()
    """Each member of a population; `file` and `content` are those of the least trained one."""

    @property
    def iteration(self) -> int:
        """Number of trained iterations."""
        return int(self.content["iteration"])

    def configuration(self, default: TrainConfig) -> TrainConfig:
        """The run's configuration without new flags; `default` is the present one of its task."""
        does_not_fit = f"{self.file} does not fit the task as it is now"
        with damage_as_config_error(does_not_fit):
            config = continued(default, self.content["default"], self.content["config"])
        with config_errors_of(does_not_fit):
            check(config)
        return config


def part_of(file: Path, rank: int) -> Path:
    """The file of a rank's part of a saved state; ``resume.rank1.pt`` for rank 1."""
    return file.with_name(f"{file.stem}.rank{rank}.pt") if rank else file


def write_resume_state(run: Path, content: dict[str, Any], rank: int = 0) -> None:
    """Write a rank's part as its newest, whole or not at all; keep the previous one."""
    newest, previous = (part_of(run / name, rank) for name in (NEWEST, PREVIOUS))
    write_tensors(newest, {"format": FORMAT, **content}, previous)


def read_resume_state(path: Path) -> dict[str, Any]:
    """Read rank 0's part; ConfigError if it is damaged or has another format."""
    content = _read_part(path, _KINDS)
    check_kinds(path, content["trainer"], dict.fromkeys(("iteration", "env_steps"), int))
    if not content["ranks"]:
        raise ConfigError(f"{path} is damaged: it has no ranks")
    return content


def find_part(run: Path, rank: int, save: list[int]) -> tuple[Path, dict[str, Any]]:
    """The file and the state of another rank that belong to rank 0's ``save``.

    NoStateError if the rank has not written it, another ConfigError if it is damaged.
    """
    newest, previous = (part_of(run / name, rank) for name in (NEWEST, PREVIOUS))
    error: ConfigError = NoStateError(f"{newest} is not of iteration {save[0]}, as {NEWEST} is")
    for path in filter(Path.exists, (newest, previous)):
        try:
            content = _read_part(path, {"save": list[int], "state": dict})
            if content["save"] == save:
                return path, content["state"]
        except ConfigError as damage:
            error = damage
    raise error


def _read_part(path: Path, kinds: dict[str, Any]) -> dict[str, Any]:
    content = read_tensors(path, "training state")
    if type(version := content.get("format")) is not int or version != FORMAT:
        raise ConfigError(f"{path} was saved by another version of simtrain")
    check_kinds(path, content, kinds)
    return content


def can_resume(run: Path) -> bool:
    """Whether a run has a training state, even damaged; not if its first save was cut off."""
    try:
        open_run(run)
    except NoStateError:
        return False
    except ConfigError:
        pass
    return True


def _saved_at(run: Path) -> float:
    """When a run's newest state was saved, in seconds since 1970; 0 if it has none."""
    folders = (run, *run.glob(f"{MEMBERS}/*"))
    files = (folder / name for folder in folders for name in (NEWEST, PREVIOUS))
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def open_run(run: Path) -> SavedRun:
    """The newest complete state of a run; ConfigError, with the reason, if there is none.

    For a population, the newest states of all members after the same meeting.
    """
    members = sorted(run.glob(f"{MEMBERS}/[0-9]*"), key=lambda folder: int(folder.name))
    if not members:
        saved = _complete_states(run)[0]
        if saved.content["config"].get("population") is not None:
            raise ConfigError(
                f"{run} is one member of a population; resume the population, {run.parent.parent}"
            )
        return saved
    with damage_as_config_error(f"a member's state in {run} is damaged"):
        by_meeting = [
            {
                int(saved.content["features"]["Population"]["met"]): saved
                for saved in reversed(_complete_states(member))
            }
            for member in members
        ]
    common = set.intersection(*map(set, by_meeting))
    if not common:
        raise ConfigError(f"{run} cannot be resumed: its members have no state in common")
    states = [saved[max(common)] for saved in by_meeting]
    return replace(
        min(states, key=lambda saved: saved.iteration),
        path=run,
        warnings=tuple(warning for saved in states for warning in saved.warnings),
        members=tuple(states),
    )


def _complete_states(run: Path) -> list[SavedRun]:
    """The complete states of a training, newest first; ConfigError if there is none."""
    states: list[SavedRun] = []
    errors: list[ConfigError] = []
    for file in (run / NEWEST, run / PREVIOUS):
        if file.exists():
            try:
                content = read_resume_state(file)
                for rank in range(1, content["world_size"]):
                    find_part(run, rank, content["save"])
                states.append(SavedRun(run, file, content, tuple(map(str, errors))))
            except ConfigError as error:
                errors.append(error)
    if states:
        return states
    if not run.is_dir():
        raise NoStateError(f"there is no run {run} (--resume)")
    why = f"it has no {NEWEST}, which is written with the first checkpoint"
    if newest := newest_run(run):
        why = f"it is no run directory; the newest run below it is {newest}"
    text = f"the run {run} cannot be resumed: {'; '.join(map(str, errors)) or why}"
    is_damaged = not all(isinstance(error, NoStateError) for error in errors)
    raise ConfigError(text) if is_damaged else NoStateError(text)


def find_run(name: str, log_root: Path, task: str) -> SavedRun:
    """The run of ``--resume``: a folder, or ``latest`` for the one that was saved last.

    Raises:
        ConfigError: there is no such run, it is of another task, or has no complete state.
    """
    if name != "latest":
        saved = open_run(Path(name))
    else:
        runs = [path for path in (log_root / task).glob("*") if path.is_dir()]
        if not any(map(_saved_at, runs)):
            why = f"that can be resumed: none has a {NEWEST}" if runs else "to resume"
            raise ConfigError(f"there is no run of {task} below --log-root {log_root} {why}")
        saved = open_run(max(runs, key=lambda run: (_saved_at(run), run)))
        newer = [run for run in runs if run.stat().st_mtime > _saved_at(saved.path)]
        newer = [run for run in newer if not _saved_at(run)]
        warnings = tuple(f"{run}, a newer run, has no {NEWEST} yet" for run in newer)
        saved = replace(saved, warnings=(*warnings, *saved.warnings))
    its_task = saved.content["task"]
    if its_task != task:
        raise ConfigError(f"{saved.path} is a run of {its_task}: `uv run train {its_task} ...`")
    return saved


def plan_resumption(
    saved: SavedRun, config: TrainConfig, job: Job, model: mujoco.MjModel
) -> tuple[Resumption, list[str]]:
    """How to resume a run with the present configuration, ranks and model, and lines to print.

    Raises:
        ConfigError: the configuration has changed, without ``--resume-with-changes``, or members of
            the population would no longer meet.
    """
    changed = differences(saved.content["config"], resolved(config))
    if saved.content["model"] != model_digest(model):
        changed["--env.model"] = "the model, or MuJoCo's version, is not the run's"
    if len(saved.members) not in (0, job.members):
        text = f"the population {saved.path} has {len(saved.members)} members"
        raise ConfigError(f"{text}; --population {config.population} cannot go on with it")
    _check_meetings(saved, config, job)
    if changed and not config.resume_with_changes:
        lines = [f"  {flag}: {what:.200}" for flag, what in changed.items()]
        lines[10:] = [f"  and {len(lines) - 10} more"] * (len(lines) > 10)
        advice = "leave out these flags, or go on with --resume-with-changes True"
        title = f"the configuration is not that of {saved.path}:"
        raise ConfigError("\n".join([title, *lines, advice]))
    same_environments = not any(flag.startswith(_ENVIRONMENT_FLAGS) for flag in changed)
    lines = [f"warning: {warning}" for warning in saved.warnings]
    lines.append(f"going on with {saved.path} after iteration {saved.iteration}")
    inexact = [*changed, *_differing_circumstances(saved, job)]
    if inexact:
        consequence = "" if same_environments else "; environments start new episodes"
        lines.append(f"the continuation is not exact: {', '.join(inexact)}{consequence}")
    of_members = tuple(member.file.absolute() for member in saved.members)
    resumption = Resumption(saved.file.absolute(), same_environments, tuple(changed), of_members)
    return resumption, lines


def _check_meetings(saved: SavedRun, config: TrainConfig, job: Job) -> None:
    """Raise ConfigError if members, stopped after different iterations, would not meet again."""
    meetings = set()
    trainers = [member.content["trainer"] for member in saved.members]
    for trainer in trainers:
        done, is_finished = trainer["iteration"], trainer.get("unfinished") is None
        ranks = job.world_size // job.members
        end = config.iterations(ranks, iteration=done, env_steps=trainer["env_steps"])
        following = min(config.next_meeting(done + is_finished), max(done, end))
        meetings.add((None if is_finished and done >= end else following, end))
    if len(meetings) > 1:
        counts = ", ".join(str(trainer["iteration"]) for trainer in trainers)
        raise ConfigError(
            f"the members of {saved.path} were stopped after {counts} iterations and would wait "
            "for each other forever; leave out --save-interval, --population-interval and flags "
            "that change the number of iterations"
        )


def _differing_circumstances(saved: SavedRun, job: Job) -> list[str]:
    """Ranks, threads and versions that differ from those of the run."""
    ranks = saved.content["world_size"] * max(1, len(saved.members))
    threads = job.threads or share_of_cores(job.devices[0].ranks)
    counts = {
        f"rank{'s' if job.world_size > 1 else ''}": (job.world_size, ranks),
        "threads a rank": (threads, saved.content["threads"]),
    }
    old, new = saved.content["versions"], versions()
    return [
        *(f"{now} {what} instead of {then}" for what, (now, then) in counts.items() if now != then),
        *(
            f"{name} {new.get(name)} instead of {old.get(name)}"
            for name in {**old, **new}
            if old.get(name) != new.get(name)
        ),
    ]
