"""What a person sees while training: a live view on a terminal, plain lines elsewhere."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table


@dataclass(frozen=True)
class Status:
    """The progress of training after an iteration."""

    iteration: int
    iterations: int
    env_steps: int
    steps_per_second: float
    mean_return: float | None  # None until a first episode has finished, as the next
    mean_length: float | None
    max_episode_length: int
    seconds_left: float

    @property
    def time_left(self) -> str:
        """Hours, minutes and seconds."""
        return str(timedelta(seconds=round(self.seconds_left)))

    def __str__(self) -> str:
        episodes = "no episode has finished yet"
        if self.mean_return is not None:
            episodes = f"return {self.mean_return:.2f}  length {self.mean_length:.0f}"
        steps = f"env steps {self.env_steps:,}  {self.steps_per_second:,.0f} steps/s"
        count = f"{self.iteration:>{len(str(self.iterations))}}/{self.iterations}"
        return f"iteration {count}  {steps}  {episodes}  left {self.time_left}"


class StatusConsole(Protocol):
    """Where training shows its progress."""

    def say(self, message: str) -> None:
        """Show a line."""

    def show(self, status: Status) -> None:
        """Show an iteration."""


class TrainingConsole(AbstractContextManager["TrainingConsole"]):
    """Shows the progress of training on standard output."""

    def __init__(self, task: str, iterations: int, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._progress = Progress(
            TextColumn(f"[bold]{task}[/bold]"), BarColumn(bar_width=None), MofNCompleteColumn()
        )
        self._bar = self._progress.add_task(task, total=iterations)
        self._live: Live | None = None
        if self._console.is_terminal:
            self._live = Live(self._progress, console=self._console, refresh_per_second=4)

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the live view, and give the terminal back its cursor."""
        if self._live is not None:
            self._live.stop()

    def say(self, message: str) -> None:
        """Print a line, above the live view if there is one."""
        self._console.print(message, markup=False, soft_wrap=True)

    def show_table(self, table: Table) -> None:
        """Print a table."""
        self._console.print(table)

    def show(self, status: Status) -> None:
        """Show an iteration."""
        if self._live is None:
            self.say(str(status))
            return
        # Not sooner: launching forks, and would copy the view's thread in any state.
        self._live.start()
        self._progress.update(self._bar, completed=status.iteration)
        table = Table.grid(padding=(0, 3))
        for _ in range(3):
            table.add_column(style="dim", justify="right")
            table.add_column(justify="left", min_width=12)
        mean_return = length = "none yet"
        if status.mean_return is not None:
            mean_return = f"{status.mean_return:.2f}"
            length = f"{status.mean_length:.0f} of {status.max_episode_length}"
        steps, speed = f"{status.env_steps:,}", f"{status.steps_per_second:,.0f}"
        table.add_row("iteration", f"{status.iteration:,}", "env steps", steps, "steps/s", speed)
        left = status.time_left
        table.add_row("mean return", mean_return, "episode length", length, "left", left)
        self._live.update(Group(self._progress, table))
