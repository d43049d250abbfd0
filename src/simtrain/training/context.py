"""The context of a training on one rank, and the result of a training."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from simtrain.config.train import TrainConfig
from simtrain.errors import ConfigError
from simtrain.launch.plan import Devices
from simtrain.launch.rank import Rank
from simtrain.run.console import StatusConsole
from simtrain.run.directory import MEMBERS, make_folder


@dataclass(frozen=True)
class Resumption:
    """How a run is resumed, decided by the command for all ranks."""

    file: Path
    """The saved state, a path that rank 0 can read."""
    same_environments: bool
    """Whether environments continue as they were; otherwise they start new episodes."""
    changed: tuple[str, ...]
    """Flags that influence the results and differ from the run's."""
    of_members: tuple[Path, ...] = ()
    """The saved state of each member of a population, instead of `file`."""


@dataclass(frozen=True)
class Member:
    """The member of a population that a rank trains."""

    number: int
    """Its place in the population, from 0."""
    leaders: Rank | None
    """The group of the first ranks of all members, numbered like the members; None on the other
    ranks of a member."""


@dataclass(frozen=True)
class SharedContext:
    """The part of a `RunContext` that is the same on all ranks; it is sent to them pickled."""

    run: Path
    """The run directory; for a population, the one that contains all members."""
    devices: tuple[str, ...]
    """Name of each rank's device, for the console."""
    resumption: Resumption | None = None
    """How to resume a run; None for a new one."""
    evaluator: Devices | None = None
    """Devices of the evaluator process; None without one."""
    members: tuple[tuple[int, ...], ...] = ()
    """The ranks of each member of a population; empty without one."""


@dataclass(frozen=True)
class RunContext:
    """Configuration, rank, console and files of one training: a run or a member of a population.

    A member is an ordinary training with its own ranks and its own run directory.
    """

    config: TrainConfig
    """The given configuration; a member's own hyper-parameters are in `Trainer.config`."""
    rank: Rank
    console: StatusConsole
    """Where rank 0 shows its progress."""
    stop: Callable[[], bool]
    """Whether the user or the system asked the run to stop."""
    shared: SharedContext
    member: Member | None = None
    """The member of a population that this rank trains; None without one."""

    def of_member(self) -> RunContext:
        """The context of the member of a population that this rank trains.

        All ranks of all members call it together. ConfigError if this host does not share the run
        directory.
        """
        members = self.shared.members
        leaders = self.rank.split([[ranks[0] for ranks in members]], on_device=False)
        own = self.rank.split(members)
        assert own is not None
        number = next(i for i, ranks in enumerate(members) if self.rank.rank in ranks)
        console = self.console
        if number > 0:  # the first member's progress stands for all
            say = partial(_say_of_member, console.say, number)
            console = StatusConsole(say, show=lambda status: None)
        context = replace(self, rank=own, console=console, member=Member(number, leaders))
        if own.is_main:
            if not self.shared.run.is_dir():
                raise ConfigError(
                    f"{platform.node()} has no {self.shared.run}: members of a population write "
                    "their own files there; name a folder that all hosts share (--log-root)"
                )
            make_folder(context.run, "--log-root")
        return context

    @property
    def run(self) -> Path:
        """The run directory."""
        run = self.shared.run
        return run if self.member is None else run / MEMBERS / str(self.member.number)

    @property
    def resumption(self) -> Resumption | None:
        """How to resume this training; None to begin one."""
        resumption = self.shared.resumption
        if resumption is None or self.member is None:
            return resumption
        return replace(resumption, file=resumption.of_members[self.member.number])

    def iterations(self, iteration: int, env_steps: int) -> int:
        """Number of iterations at the end of training; `iteration` of them are done."""
        return self.config.iterations(
            self.rank.world_size, iteration=iteration, env_steps=env_steps
        )


def _say_of_member(say: Callable[[str], None], number: int, message: str) -> None:
    warning = "warning: " if message.startswith("warning: ") else ""
    say(f"{warning}member {number}: {message.removeprefix(warning)}")


@dataclass(frozen=True)
class TrainingResult:
    """Files and times of a training that has ended."""

    checkpoint: Path | None
    """The last checkpoint that was written."""
    error: str | None
    """Why the last checkpoint or the last metrics could not be written; None if they were."""
    phases: dict[str, float] = field(default_factory=dict)
    """Mean seconds of an iteration in each phase on rank 0; empty without a timer."""
