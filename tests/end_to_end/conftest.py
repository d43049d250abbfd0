"""Commands in folders of their own, as a user starts them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from job import Job, make_tasks


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Starts `train` in a folder with the task of ``pendulum.py``; killed after the test."""
    jobs = []

    def start(*arguments: str, folder: str = "user", **options: Any) -> Job:
        here = tmp_path / folder
        make_tasks(here)
        jobs.append(Job(here, *arguments, **options))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()
