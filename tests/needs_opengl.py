"""The mark of tests that draw: they are skipped where this machine has no OpenGL."""

from __future__ import annotations

import pytest

from simtrain.view.opengl import RenderingError, choose_backend


def _missing() -> str:
    try:
        choose_backend()
    except RenderingError as error:
        return str(error)
    return ""


needs_opengl = pytest.mark.skipif(bool(_missing()), reason=f"nothing can be drawn: {_missing()}")
