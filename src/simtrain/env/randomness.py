"""The random generators that a rank uses: seeded, saved, restored and forked."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_CPU = torch.device("cpu")


def seed_everything(seed: int) -> None:
    """Seed the generators of torch (on all devices), NumPy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """The states of all random generators that a rank on `device` uses, as plain data."""
    kind, keys, *rest = np.random.get_state()
    version, words, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
        "numpy": [str(kind), torch.from_numpy(np.asarray(keys, np.int64)), *rest],
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


@contextmanager
def forked_randomness(seed: int, device: torch.device = _CPU) -> Iterator[None]:
    """Draw from `seed` within, and go on as if nothing had been drawn; leaves other GPUs alone."""
    before = random_state(device)
    try:
        # Not torch.manual_seed, which seeds every GPU.
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        np.random.seed(seed % 2**32)  # for task files that use it
        random.seed(seed)
        yield
    finally:
        set_random_state(before, device)
