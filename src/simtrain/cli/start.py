"""Entry points of the commands that have nothing to save when they begin.

From before their imports on, Ctrl-C ends them at once and without a traceback. An exception would
not: some imports catch what is raised in them, and the command would go on. Imports nothing slow.
"""

from importlib import import_module

from simtrain.cli.exits import end_at_once_on_interrupt


def evaluate() -> None:
    """The ``evaluate`` command."""
    _start("evaluate")


def play() -> None:
    """The ``play`` command."""
    _start("play")


def export() -> None:
    """The ``export`` command."""
    _start("export")


def report() -> None:
    """The ``report`` command."""
    _start("report")


def benchmark() -> None:
    """The ``benchmark`` command."""
    _start("benchmark")


def list_tasks() -> None:
    """The ``list-tasks`` command."""
    _start("list_tasks")


def _start(command: str) -> None:
    end_at_once_on_interrupt()
    import_module(f"simtrain.cli.{command}").main()
