"""The run directory: its name, its configuration, and what else is written beside it."""

import importlib.metadata
import itertools
import os
import subprocess
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from simtrain.errors import ConfigError
from simtrain.files import check_path, damage_as_config_error, read_yaml, written_whole
from simtrain.limits import LARGEST_CONFIG

VIDEOS = "videos"  # the folder of a run with the videos of its training
PICTURE = "report.png"  # of its curves
LINEAGE, MEMBERS = "population.jsonl", "members"  # of a population
_PACKAGES = ("simtrain", "mujoco", "mujoco-warp", "warp-lang", "torch", "rsl-rl-lib", "numpy")


def check_folder(folder: Path, flag: str) -> None:
    """Raise ConfigError if nothing can be written into `folder`, which `flag` names."""
    existing = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.exists())
    if not existing.is_dir():
        raise ConfigError(f"{flag} {folder} cannot be made: {existing} is not a folder")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{flag} {folder} cannot be written: no permission for {existing}")


def check_file(path: Path, flag: str) -> None:
    """Raise ConfigError if `path`, which `flag` names, cannot be written into its folder."""
    check_path(path, flag)
    if not path.parent.is_dir():
        raise ConfigError(f"{flag} {path} cannot be written: {path.parent} is not a folder")
    if path.is_dir():
        raise ConfigError(f"{flag} {path} cannot be written: it is a folder")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{flag} {path} cannot be written: it is no regular file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise ConfigError(f"{flag} {path} cannot be written: no permission for {path.parent}")


def make_folder(folder: Path, flag: str) -> None:
    """Make `folder`, which `flag` names, if it is missing; ConfigError if that cannot be."""
    check_folder(folder, flag)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{flag} {folder} cannot be written: {error.strerror}") from error


def make_run_directory(log_root: Path, task: str, run_name: str) -> Path:
    """Make ``<log_root>/<task>/<date>_<time>[_<run_name>]``, a new folder, or raise ConfigError."""
    name = datetime.now().strftime("%Y-%m-%d_%H-%M-%S") + (f"_{run_name}" if run_name else "")
    try:
        (log_root / task).mkdir(parents=True, exist_ok=True)
        for attempt in itertools.count(1):
            run = log_root / task / (name if attempt == 1 else f"{name}_{attempt}")
            with suppress(FileExistsError):
                run.mkdir()
                break
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}"
        raise ConfigError(f"--log-root {log_root} cannot be written: {reason}") from error
    return run


def write_config(
    path: Path, config: dict[str, Any], devices: list[str], task_file: str = ""
) -> None:
    """Write ``config.yaml``: the configuration as plain data, and the device of every rank.

    `task_file` is the file that declares the task, for people: no command imports it by this.
    """
    content: dict[str, Any] = {"config": config, "task_file": task_file, "versions": versions()}
    content |= {"git": _git_commit(), "devices": devices}
    with written_whole(path) as file:
        file.write(yaml.safe_dump(content, sort_keys=False, allow_unicode=True).encode())


def read_config_file(run: Path, name: str = "config.yaml") -> dict[str, Any]:
    """The content of the file of `write_config`; ConfigError if there is none, or it is damaged."""
    path = run / name
    with damage_as_config_error(f"{path} is damaged, or not the configuration of a run"):
        try:
            content: dict[str, Any] = read_yaml(path, "", LARGEST_CONFIG)
        except ConfigError as error:
            raise ConfigError(f"{error}; a checkpoint is used from its run directory") from error
        if not isinstance(content["config"]["task"], str):
            raise TypeError("it names no task")
    return content


def no_run(path: Path) -> ConfigError:
    """The error for a path that is no run directory; it names the newest run below it."""
    if not path.exists():
        return ConfigError(f"there is no run {path}")
    hint = f"; the newest run below it is {run}" if (run := newest_run(path)) else ""
    return ConfigError(f"{path} is no run directory: it has no config.yaml{hint}")


def newest_run(path: Path) -> Path | None:
    """The newest run one or two folders below `path`, a task's or all tasks'; None without one."""
    runs = sorted(file.parent for deep in ("*", "*/*") for file in path.glob(f"{deep}/config.yaml"))
    return runs[-1] if runs else None


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that decide the results."""
    numbers = {"python": sys.version.split()[0]}
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            numbers[package] = importlib.metadata.version(package)
    return numbers


def _git_commit() -> dict[str, Any] | None:
    """Commit of the repository in the working directory, and whether it has changes since."""
    commands = ("git", "rev-parse", "HEAD"), ("git", "status", "--porcelain")
    try:
        commit, changes = (subprocess.check_output(c, stderr=subprocess.DEVNULL) for c in commands)
    except (OSError, subprocess.CalledProcessError):
        return None
    return {"commit": commit.decode().strip(), "changed": bool(changes.strip())}


def shown(path: Path) -> Path:
    """The path relative to the working directory if it is below that, else as it is."""
    return Path(os.path.relpath(path)) if path.is_relative_to(Path.cwd()) else path
