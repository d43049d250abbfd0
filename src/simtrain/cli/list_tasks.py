"""``uv run list-tasks``: every task, what it is, and where it comes from."""

import sys
from pathlib import Path

from simtrain.cli.exits import DONE, FAILED
from simtrain.cli.output import table_console
from simtrain.config.tasks import discover
from simtrain.errors import ConfigError


def list_tasks(arguments: list[str]) -> int:
    """Print all tasks, and the tracebacks of task files that did not import; the exit code."""
    if arguments in (["-h"], ["--help"]):
        print("usage: list-tasks\n\nList every task: its name, what it is, where it comes from.")
        return DONE
    if arguments:
        raise ConfigError(f"list-tasks takes no arguments, got {' '.join(arguments)}")

    from rich.table import Table

    registry = discover()
    table = Table(box=None, pad_edge=False)
    table.add_column("task", no_wrap=True)
    for title in ("description", "from"):
        table.add_column(title, overflow="fold")
    for task in registry.tasks.values():
        path, here = Path(task.source), Path.cwd()
        source = str(path.relative_to(here)) if path.is_relative_to(here) else task.source
        table.add_row(task.name, task.description, source)
    table_console().print(table)
    for file, trace in registry.broken.items():
        print(f"\n{file} could not be imported:\n{trace}", file=sys.stderr)
    return FAILED if registry.broken else DONE
