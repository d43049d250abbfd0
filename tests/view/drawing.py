"""What tests of the viewer share: a folder with the rover."""

from __future__ import annotations

import shutil
from pathlib import Path


def folder_with_rover(folder: Path) -> Path:
    """The folder, with the rover in its ``tasks/``."""
    (folder / "tasks").mkdir()
    shutil.copy(Path(__file__).with_name("rover.py"), folder / "tasks")
    return folder
