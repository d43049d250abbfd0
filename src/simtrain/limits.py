"""Limits of a setting, declared at its field: ``num_envs: Annotated[int, Limits(1, 2**24)]``.

They are far from all that makes sense; beyond them numbers overflow, memory ends or a step takes
hours. `simtrain.config.check` checks them.
"""

import math
from dataclasses import dataclass
from typing import Annotated

LARGEST_INT, LARGEST_FLOAT32 = 10**15, 3e38


@dataclass(frozen=True)
class Limits:
    """The least and the greatest number that a setting may have, as each of several numbers."""

    low: float = -LARGEST_FLOAT32
    high: float = LARGEST_FLOAT32
    ordered: bool = False
    """Whether it is two numbers, of which the first must not be greater than the second."""


Count = Annotated[int, Limits(1, LARGEST_INT)]
NumEnvs = Annotated[int, Limits(1, 2**24)]
NumSteps = Annotated[int, Limits(1, 10**5)]
Seed = Annotated[int, Limits(0, 2**32 - 1)]
Port = Annotated[int, Limits(0, 65_535)]
Repetitions = Annotated[int, Limits(1, 10**6)]
"""Of episodes, or measurements, one after the other."""
Fraction = Annotated[float, Limits(0.0, 1.0)]
Factor = Annotated[float, Limits(0.0, 1e6)]
Positive = Annotated[float, Limits(1e-12, 1e12)]
Timeout = Annotated[float, Limits(1e-3, 1e6)]
"""Seconds of waiting."""
Duration = Annotated[float, Limits(1e-3, 86_400.0)]
"""Seconds of a recording, up to a day."""
FramesPerSecond = Annotated[float, Limits(1.0, 1e4)]
UNBOUNDED = Limits(-math.inf, math.inf, ordered=True)
"""Two numbers, which may be infinite."""
