"""Robots of the MuJoCo Menagerie for a task's ``model``. Nothing is downloaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import mujoco


def menagerie(robot: str, entry: str = "scene") -> mujoco.MjSpec:
    """Load a robot of the [Menagerie](https://github.com/google-deepmind/mujoco_menagerie).

    You can edit the result. The robot is searched in the folder ``MENAGERIE_ROOT``, a clone of the
    Menagerie, or, if this variable is not set, in the cache of the package ``mujoco-menagerie``.
    The package does not have to be installed.

    Args:
        robot: the name of its folder, such as ``unitree_go2``.
        entry: one of the MJCF files in the folder: ``scene`` is the robot with a floor and light;
            the file with the name of the robot, such as ``go2``, is the robot without them.

    Raises:
        ConfigError: the robot is not found, has no such file, or cannot be read.
    """
    import mujoco

    file = menagerie_file(robot, entry)
    try:
        return mujoco.MjSpec.from_file(str(file))
    except ValueError as error:
        raise ConfigError(f"{file} is not a valid model: {' '.join(str(error).split())}") from error


def menagerie_file(robot: str, entry: str = "scene") -> Path:
    """The file that `menagerie` reads; raises the same."""
    folder = _folder(robot)
    entries = {file.stem: file for file in sorted(folder.glob("*.xml"))}
    if entry not in entries:
        text = f"{robot} has no {entry}.xml{did_you_mean(entry, entries)}; {folder} has"
        raise ConfigError(f"{text} {', '.join(entries) or 'no MJCF file'}")
    return entries[entry]


def _folder(robot: str) -> Path:
    """Where a robot's files are."""
    if root := os.environ.get("MENAGERIE_ROOT"):
        where = f"MENAGERIE_ROOT={root}"
        get = "it is to be a clone of https://github.com/google-deepmind/mujoco_menagerie"
        robots = {file.parent.name: file.parent for file in Path(root).glob("*/*.xml")}
    else:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        where = os.environ.get("MENAGERIE_CACHE_DIR") or str(caches / "mujoco_menagerie")
        get = f"`uvx mujoco-menagerie prefetch {robot}` gets it, or set MENAGERIE_ROOT to a clone"
        # <robot>-<version>, complete once it has this file
        complete = [file.parent for file in Path(where).glob("models/*/.complete")]
        complete.sort(key=lambda folder: folder.stat().st_mtime)
        robots = {folder.name.rpartition("-")[0]: folder for folder in complete}
    if robot not in robots:
        near = did_you_mean(robot, robots)
        raise ConfigError(f"there is no robot {robot!r} in {where}{near}; {get}")
    return robots[robot]
