"""Pytest puts this folder on the path for its conftest: tests import `tiny_task` from it."""

import pytest
import torch

# The tests' tensors are small, and xdist's workers share the cores.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start every test from the same random numbers."""
    torch.manual_seed(0)
