"""Entry points of commands: Ctrl-C ends them at once from before their slow imports on."""

import sys
from functools import partial
from importlib import import_module
from signal import SIGINT

from simtrain.cli.exits import end_at_once_on_signals, run_command


def _start(command: str) -> None:
    # A benchmark stops its ranks on every signal that asks for it, once it has some.
    end_at_once_on_signals(*(() if command == "benchmark" else (SIGINT,)))
    module = import_module(f"simtrain.cli.{command}")
    run_command(lambda: getattr(module, command)(sys.argv[1:]))


evaluate = partial(_start, "evaluate")
play = partial(_start, "play")
export = partial(_start, "export")
report = partial(_start, "report")
motion = partial(_start, "motion")
benchmark = partial(_start, "benchmark")
list_tasks = partial(_start, "list_tasks")
