"""The progress of training for people: a live view on a terminal, plain lines elsewhere."""

import re
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from simtrain.run.metric_tags import (
    FINISHED_ENVS,
    LENGTH,
    RETURN,
    REWARDS,
    SPEED,
    STEP_REWARD,
    is_complete,
)


@dataclass(frozen=True)
class Status:
    """The progress of training after an iteration."""

    iteration: int
    iterations: int
    env_steps: int
    metrics: dict[str, float]
    """TensorBoard tag -> value; return and length are missing before a first whole episode."""
    max_episode_length: int
    seconds_left: float

    def __str__(self) -> str:
        metrics, episodes = self.metrics, "no whole episode yet"
        if RETURN in metrics:
            episodes = f"return {metrics[RETURN]:.2f}  length {metrics[LENGTH]:.0f}"
            episodes += "" if is_complete(metrics) else " (incomplete)"
        steps = f"env steps {self.env_steps:,}  {metrics[SPEED]:,.0f} steps/s"
        count = f"{self.iteration:>{len(str(self.iterations))}}/{self.iterations}"
        reward = f"reward/step {metrics[STEP_REWARD]:.4g}"
        line = f"iteration {count}  {steps}  {reward}  {episodes}  left {self._time_left()}"
        return "  ".join([line, *self._largest_rewards()])

    def _largest_rewards(self) -> list[str]:
        """A text that names the three largest reward terms, a second; none before an episode."""
        metrics = self.metrics.items()
        rewards = {tag.removeprefix(REWARDS): v for tag, v in metrics if tag.startswith(REWARDS)}
        largest = sorted(rewards, key=lambda term: -abs(rewards[term]))[:3]
        named = ", ".join(f"{term} {rewards[term]:.3g}" for term in largest)
        return [f"largest rewards: {named}"] if largest else []

    def _time_left(self) -> str:
        return str(timedelta(seconds=round(self.seconds_left)))

    def view(self) -> Group:
        """The same for a live view, in 80 columns."""
        metrics, table = self.metrics, Table.grid(padding=(0, 2))
        for _ in range(3):
            table.add_column(style="dim", justify="right")
            table.add_column(justify="left", min_width=12)
        mean_return = length = "none yet"
        if RETURN in metrics:
            mean_return = f"{metrics[RETURN]:.2f}"
            length = f"{metrics[LENGTH]:.0f} of {self.max_episode_length}"
        steps, speed = f"{self.env_steps:,}", f"{metrics[SPEED]:,.0f}"
        table.add_row("env steps", steps, "steps/s", speed, "left", self._time_left())
        reward = f"{metrics[STEP_REWARD]:.4g}"
        table.add_row("reward/step", reward, "return", mean_return, "length", length)
        lines = self._largest_rewards()
        if RETURN in metrics and not is_complete(metrics):
            share = f"{100.0 * metrics[FINISHED_ENVS]:.0f} %"
            text = f"return and length are incomplete: {share} of environments have finished one"
            lines.append(text)
        return Group(table, *lines)


@dataclass(frozen=True)
class StatusConsole:
    """Where a rank shows its progress: functions that show a line, and an iteration."""

    say: Callable[[str], None]
    show: Callable[[Status], None]


def fitted(text: str, console: Console) -> str:
    """`text` in lines that a terminal does not break; as it is where there is no terminal.

    Lines end between words. A command is to be copied and stays in one piece: what is in
    backquotes, or after ``uv run``.
    """
    if not console.is_terminal:
        return text
    unbroken = re.sub(r"`[^`]*`|uv run .*", lambda command: command[0].replace(" ", "\0"), text)
    wrapper = textwrap.TextWrapper(
        console.width, replace_whitespace=False, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(map(wrapper.fill, unbroken.splitlines())).replace("\0", " ")


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
        self._console.print(fitted(message, self._console), markup=False, soft_wrap=True)

    def receive(self, content: object) -> None:
        """Show what a rank in another process sent: an iteration, or a line."""
        if isinstance(content, Status):
            self.show(content)
        else:
            self.say(str(content))

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
        self._live.update(Group(self._progress, status.view()))
