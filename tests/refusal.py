"""How mistakes end: with a ConfigError in one line, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from simtrain.errors import ConfigError


@contextmanager
def refused(message: str, folder: Path) -> Iterator[None]:
    """Within, a ConfigError in one line is raised that has `message`; `folder` stays as it is."""
    before = sorted(folder.iterdir())
    with pytest.raises(ConfigError) as error:
        yield
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert sorted(folder.iterdir()) == before
