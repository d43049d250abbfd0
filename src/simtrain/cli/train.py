"""``uv run train <task> [flags]``: train a policy with PPO; and ``uv run simtrain list-tasks``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.cli.terminal import DONE, FAILED
from simtrain.errors import ConfigError

if TYPE_CHECKING:
    from simtrain.config.tasks import Registry, Task
    from simtrain.config.train import TrainConfig
    from simtrain.training.prepare import PreparedJob

_HELP = """\
usage: train <task> [flags]

Train a policy with PPO on massively parallel MuJoCo simulation.

{tasks}

`train <task> --help` lists the flags, with the task's own values as defaults."""


def train(arguments: Sequence[str]) -> int:
    """Parse the command line, check it, and train; the exit code."""
    # Not above, so that from the first tenth of a second on Ctrl-C ends without a traceback.
    from simtrain.config.tasks import discover

    registry = discover()
    if not arguments:
        raise ConfigError(f"name a task: `uv run train <task>`.\n{_tasks(registry)}")
    name, *flags = arguments
    if name in ("-h", "--help"):
        print(_HELP.format(tasks=_tasks(registry)))
        return DONE
    if name.startswith("--task") and (words := [*name.split("=")[1:], *flags]):
        raise ConfigError(f"the task has no flag: `uv run train {' '.join(words)}`")
    if name.startswith("-"):
        raise ConfigError(f"the task comes first: `uv run train <task> {name} ...`")
    prepared = prepare_training(registry.find(name), flags)

    # Only now, so that help and mistakes do not wait for torch and MuJoCo.
    from simtrain.training.job import run_job

    return run_job(*prepared)[1]


def prepare_training(task: Task, flags: Sequence[str]) -> PreparedJob:
    """The job of a task with the flags of a command line; ConfigError if it cannot be trained."""
    from simtrain.cli.parse import parse_flags
    from simtrain.config.train import TrainConfig
    from simtrain.training.prepare import prepare_job

    default = TrainConfig.of_task(task.name, task.configuration())
    about = _description(task, default)
    return prepare_job(default, lambda cfg: parse_flags(f"train {task.name}", cfg, flags, about))


def _description(task: Task, default: TrainConfig) -> str:
    """The beginning of a task's help."""
    numbers = f"{default.num_envs:,} environments"
    if (on_gpu := default.env.num_envs_on_gpu) not in (None, default.num_envs):
        numbers += f" where physics runs on the CPU, and {on_gpu:,} on each GPU"
    return f"Train a policy with PPO. {task.description} Default: {numbers} (--num-envs)."


def _tasks(registry: Registry) -> str:
    width = max((len(name) for name in registry.tasks), default=0)
    lines = [f"  {t.name:<{width}}  {t.description}" for t in registry.tasks.values()]
    for path, trace in registry.broken.items():
        lines.append(f"  (not importable: {path}: {trace.strip().splitlines()[-1]})")
    return "tasks:\n" + "\n".join(lines or ["  none found"])


def list_tasks(arguments: Sequence[str]) -> int:
    """Print all tasks, and the tracebacks of task files that did not import; the exit code."""
    if list(arguments) in (["-h"], ["--help"]):
        print("usage: simtrain list-tasks\n\nList every task with its name, description and file.")
        return DONE
    if arguments:
        raise ConfigError(f"list-tasks takes no arguments, got {' '.join(arguments)}")

    from rich.table import Column, Table

    from simtrain.cli.terminal import table_console
    from simtrain.config.tasks import discover
    from simtrain.run.directory import shown

    registry = discover()
    folded = (Column(title, overflow="fold") for title in ("description", "from"))
    table = Table(Column("task", no_wrap=True), *folded, box=None, pad_edge=False)
    for task in registry.tasks.values():
        table.add_row(task.name, task.description, str(shown(Path(task.source))))
    table_console().print(table)
    for file, trace in registry.broken.items():
        print(f"\n{file} could not be imported:\n{trace}", file=sys.stderr)
    return FAILED if registry.broken else DONE
