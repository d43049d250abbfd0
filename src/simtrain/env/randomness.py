"""The random generators that a rank uses: their states, as plain data, and back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def random_state(device: torch.device) -> dict[str, Any]:
    """The states of all random generators that a rank uses, as plain data."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    version, words, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [
            str(kind),
            torch.from_numpy(np.asarray(keys, np.int64)),
            position,
            has_gauss,
            gauss,
        ],
        "python": [version, list(words), gauss_next],
    }


def set_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Continue all random generators from what `random_state` returned."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), *rest))
    version, words, gauss_next = state["python"]
    random.setstate((version, tuple(words), gauss_next))


def seed_everything(seed: int) -> None:
    """Seed torch (all devices), NumPy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # for task files that use it
    random.seed(seed)


@contextmanager
def forked_randomness(seed: int) -> Iterator[None]:
    """Draw from `seed`; afterwards the generators of torch, NumPy and Python are as they were."""
    of_numpy, of_python = np.random.get_state(), random.getstate()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        try:
            seed_everything(seed)
            yield
        finally:
            np.random.set_state(of_numpy)
            random.setstate(of_python)
