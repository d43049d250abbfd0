"""All that one rank knows of the run that it trains, and the result of that."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from simtrain.config.train import TrainConfig
from simtrain.launch.plan import Devices
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
class Membership:
    """The place of a rank in a population."""

    member: int
    """The member that it belongs to, from 0."""
    count: int
    """Number of members."""
    firsts: Rank | None
    """This process as a rank of those that speak for their members, each numbered as its member;
    None on other ranks."""


def join_member(rank: Rank, members: Sequence[Sequence[int]]) -> tuple[Rank, Membership]:
    """This process as a rank of its member, one of these lists of ranks, and its place.

    All ranks of all members call it together.
    """
    firsts = rank.split([[ranks[0] for ranks in members]], on_device=False)
    place = next(i for i, ranks in enumerate(members) if rank.rank in ranks)
    own = rank.split(members)
    assert own is not None
    return own, Membership(place, len(members), firsts)


@dataclass(frozen=True)
class SharedContext:
    """The part of a `RunContext` that is the same on all ranks; it travels to them pickled."""

    run: Path
    """The run directory; only rank 0 writes to it."""
    devices: tuple[str, ...]
    """Device of each rank, for people."""
    resumption: Resumption | None = None
    """How to resume a run; None to begin one."""
    evaluator: Devices | None = None
    """Devices of a process that evaluates beside training; None for no such process."""
    members: tuple[tuple[int, ...], ...] = ()
    """The ranks of each member of a population; empty without one."""


@dataclass(frozen=True)
class RunContext:
    """Configuration, rank, console and files of a run."""

    config: TrainConfig
    rank: Rank
    console: StatusConsole
    """Where rank 0 shows its progress."""
    stop: Callable[[], bool]
    """Whether the user or the system asked the run to stop."""
    shared: SharedContext
    population: Membership | None = None
    """The rank's place in a population, whose member `rank` then is about; None for none."""

    @property
    def run(self) -> Path:
        """The run directory."""
        return self.shared.run

    def iterations(self, iteration: int, env_steps: int) -> int:
        """Iterations to have trained at the end, of a run that has trained so many already."""
        return self.config.iterations(
            self.rank.world_size, iteration=iteration, env_steps=env_steps
        )


@dataclass(frozen=True)
class TrainingResult:
    """The files and times that a training leaves."""

    checkpoint: Path | None
    """The last checkpoint that was written."""
    error: str | None
    """Why the last checkpoint or the last metrics could not be written, or None if they were."""
    phases: dict[str, float] = field(default_factory=dict)
    """Mean seconds of an iteration in each phase on rank 0; empty without a timer."""
