"""``uv run list-tasks``: every task, what it is, and where it comes from."""

from __future__ import annotations

import sys
from pathlib import Path

from simtrain.cli.exits import DONE, FAILED, run_command
from simtrain.errors import ConfigError
from simtrain.registry import discover


def main() -> None:
    """Entry point of the ``list-tasks`` command."""
    run_command(lambda: list_tasks(sys.argv[1:]))


def list_tasks(arguments: list[str]) -> int:
    """Print all tasks, and the tracebacks of task files that did not import; the exit code."""
    if arguments in (["-h"], ["--help"]):
        print("usage: list-tasks\n\nList every task: its name, what it is, where it comes from.")
        return DONE
    if arguments:
        raise ConfigError(f"list-tasks takes no arguments, got {' '.join(arguments)}")

    from rich.console import Console
    from rich.table import Table

    registry = discover()
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000  # a program reads it: one task a line
    table = Table(box=None, pad_edge=False)
    for title in ("task", "description", "from"):
        table.add_column(title, overflow="fold")
    for task in registry.tasks.values():
        table.add_row(task.name, task.description, _short(task.source))
    console.print(table)
    for path, trace in registry.broken.items():
        print(f"\n{path} could not be imported:\n{trace}", file=sys.stderr)
    return FAILED if registry.broken else DONE


def _short(source: str) -> str:
    """Relative to the working directory where that is shorter."""
    path = Path(source)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        return str(path.relative_to(Path.cwd()))
    return source


if __name__ == "__main__":
    main()
