"""What tests of pictures share: whether this machine can draw, and a folder with the rover."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from simtrain.view.opengl import RenderingError, choose_backend


def _missing() -> str:
    try:
        choose_backend()
    except RenderingError as error:
        return str(error)
    return ""


needs_opengl = pytest.mark.skipif(bool(_missing()), reason=f"nothing can be drawn: {_missing()}")


def folder_with_rover(folder: Path) -> Path:
    """The folder, with the rover in its ``tasks/``."""
    (folder / "tasks").mkdir()
    shutil.copy(Path(__file__).with_name("rover.py"), folder / "tasks")
    return folder
