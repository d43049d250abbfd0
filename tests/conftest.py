"""Pytest puts this folder on the path for its conftest, so that tests can import `tiny_task`."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start every test from the same random numbers."""
    torch.manual_seed(0)
