"""RunContext: all that one rank knows of the run that it trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from simtrain.config import TrainConfig
from simtrain.launch.devices import Devices
from simtrain.launch.rank import Rank
from simtrain.run.console import StatusConsole


@dataclass(frozen=True)
class Resumption:
    """How a run is resumed, as the command decided it and each rank is told."""

    file: Path
    """The saved state, a path that rank 0 can read."""
    same_environments: bool
    """Whether environments continue as they were; else new episodes start."""
    changed: tuple[str, ...]
    """Flags that decide the results and differ from the run's."""


@dataclass(frozen=True)
class RunContext:
    """Configuration, rank, files and console of a run."""

    config: TrainConfig
    """The whole configuration."""
    rank: Rank
    """This process."""
    run: Path
    """The run directory; only rank 0 writes to it."""
    console: StatusConsole
    """Where rank 0 shows its progress."""
    stop: Callable[[], bool]
    """Whether the user or the system asked the run to stop."""
    devices: tuple[str, ...]
    """Device of each rank, for people."""
    resumption: Resumption | None = None
    """How to resume a run; None to begin one."""
    evaluator: Devices | None = None
    """Devices of a process that evaluates beside training; None for no such process."""

    def iterations(self, iteration: int, env_steps: int) -> int:
        """Iterations to have trained at the end, of a run that has trained so many already."""
        return self.config.iterations(
            self.rank.world_size, iteration=iteration, env_steps=env_steps
        )
