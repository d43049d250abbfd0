"""The newest complete training state of a run: ``resume.pt``, and the one before it.

What stands in it comes from `simtrain.training.resume_state`; here it is a file that is found,
checked, and replaced only by a complete one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from simtrain.errors import ConfigError
from simtrain.run.tensor_file import checksum, read_tensors, write_tensors

NEWEST, PREVIOUS = "resume.pt", "resume.previous.pt"
FORMAT = 1
"""Changes when a later simtrain could not go on with what an earlier one saved."""


@dataclass(frozen=True)
class SavedRun:
    """A run that can go on."""

    path: Path
    """The run directory."""
    file: Path
    """Its newest state that is whole."""
    content: dict[str, Any]
    """What was saved."""
    complaints: tuple[str, ...] = ()
    """What is the matter with newer states, or with newer runs that were passed over."""

    @property
    def iteration(self) -> int:
        """How many iterations were trained."""
        return int(self.content["iteration"])

    @property
    def env_steps(self) -> int:
        """Environment steps that were trained, over all ranks."""
        return int(self.content["env_steps"])


def write_resume_state(run: Path, content: dict[str, Any]) -> None:
    """Write `content` as the newest state, whole or not at all; keeps the one before."""
    content = {"format": FORMAT, **content}
    stamped = {**content, "checksum": checksum(content)}
    write_tensors(run / NEWEST, stamped, previous=run / PREVIOUS)


def read_resume_state(path: Path) -> dict[str, Any]:
    """What `write_resume_state` wrote.

    Raises:
        ConfigError: the file is damaged or of another version of simtrain; says which.
    """
    content = read_tensors(path, "training state")
    if content.pop("checksum", None) != checksum(content):
        raise ConfigError(f"{path} is damaged: its checksum is wrong")
    if content.get("format") != FORMAT:
        raise ConfigError(f"{path} was saved by another version of simtrain")
    return content


def open_run(run: Path) -> SavedRun:
    """The newest whole state of a run.

    Raises:
        ConfigError: there is none; says what is there.
    """
    complaints = []
    for file in (run / NEWEST, run / PREVIOUS):
        if file.exists():
            try:
                content = read_resume_state(file)
            except ConfigError as error:
                complaints.append(str(error))
            else:
                return SavedRun(run, file, content, tuple(complaints))
    if complaints:
        raise ConfigError(f"the run {run} cannot be resumed: {'; '.join(complaints)}")
    if not run.is_dir():
        raise ConfigError(f"there is no run {run} (--resume)")
    raise ConfigError(
        f"{run} cannot be resumed: it has no {NEWEST}, which is written with the first checkpoint"
    )


def can_resume(run: Path) -> bool:
    """Whether a run has a training state, whole or not."""
    return (run / NEWEST).exists() or (run / PREVIOUS).exists()


def find_run(name: str, log_root: Path, task: str) -> SavedRun:
    """The run that ``--resume`` names: a folder, or ``latest`` for the newest of a task.

    Raises:
        ConfigError: there is no such run, it is of another task, or has no whole state.
    """
    if name != "latest":
        found = open_run(Path(name))
    else:
        runs = sorted((path for path in (log_root / task).glob("*") if path.is_dir()), reverse=True)
        if not runs:
            raise ConfigError(f"there is no run of {task} below --log-root {log_root}")
        able = [run for run in runs if can_resume(run)]
        if not able:
            raise ConfigError(
                f"no run of {task} below --log-root {log_root} can be resumed: none has a {NEWEST}"
            )
        found = open_run(able[0])
        if able[0] != runs[0]:
            newer = f"{runs[0]}, the newest run, has no {NEWEST} yet"
            found = replace(found, complaints=(newer, *found.complaints))
    its_task = found.content["task"]
    if its_task != task:
        raise ConfigError(f"{found.path} is a run of {its_task}: `uv run train {its_task} ...`")
    return found
