"""Random numbers of resets on the CPU, where a step at which no episode ends draws none.

What one environment sees must not depend on whether another was reset. So the draws of a reset
follow from the step alone, and leave torch's default generator as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class ResetSeeds:
    """A seed for each step, from one that torch's default generator gives at the beginning."""

    def __init__(self) -> None:
        self._first = int(torch.randint(2**62, ()))

    @contextmanager
    def at(self, step: int) -> Iterator[None]:
        """Let torch's default CPU generator go by the seed of `step` in a block."""
        generator = torch.default_generator
        before = generator.get_state()
        generator.manual_seed(self._first + step)
        try:
            yield
        finally:
            generator.set_state(before)
