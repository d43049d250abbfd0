"""Entry points: ``simtrain <command> ...``; ``train`` and ``play`` by their own names, too.

Ctrl-C ends a command at once from before its slow imports on.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import make_dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from signal import SIGINT
from types import ModuleType
from typing import Annotated, Any, NoReturn, Union, cast

from simtrain.cli.terminal import DONE, end_at_once_on_signals, run_command
from simtrain.errors import ConfigError, did_you_mean

COMMANDS = {
    "new": "write tasks for a robot of your own, from its model",
    "train": "train a policy with PPO",
    "play": "watch a policy in a browser, or as a video",
    "evaluate": "measure how good policies are, and compare them",
    "report": "draw learning curves of runs, as a picture and a web page",
    "export": "write a policy as files for a robot",
    "list-tasks": "list all tasks, with their descriptions and files",
    "motion": "convert, check, show, make and record reference motions",
    "benchmark": "measure how fast training is on this machine",
}
_COMPLETION = "--tyro-print-completion"
_FILES_IN_BASH = """\
_simtrain() {
  _tyro_simtrain
  [[ -n "${COMPREPLY[*]}" ]] || COMPREPLY=($(compgen -f -- "$2"))
}
complete -o filenames -F _simtrain simtrain"""


def start(command: str, arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command with these arguments, None for those of this process, and exit."""
    import_when_used("torch", "tensordict", "wandb")
    # A benchmark stops its ranks on every signal that asks for it, once it has some; so does train.
    all_signals = command in ("train", "benchmark")
    end_at_once_on_signals(*(() if all_signals else (SIGINT,)))
    name = command.replace("-", "_")
    module = "train" if command == "list-tasks" else name
    function = getattr(import_module(f"simtrain.cli.{module}"), name)
    words = sys.argv[1:] if arguments is None else arguments
    run_command(lambda: function(words), outlives_output=command == "train")


def import_when_used(*names: str) -> None:
    """Let ``import`` of these modules execute them only when something of them is first used.

    PyTorch takes seconds: the help of a task does not need it, although the modules of the task's
    terms import it. W&B, which rsl_rl imports, takes half a second. tensordict marks functions for
    ``torch.compile``, which imports ``torch._dynamo`` and takes as long as PyTorch itself.
    """
    for name in names:
        spec = None if name in sys.modules else find_spec(name)
        if spec is not None:
            module = sys.modules[name] = module_from_spec(spec)
            module.__class__ = _Unused
            del module.__path__  # so that an import of a submodule is a use


def _without_compilation() -> None:
    """Import ``torch._dynamo`` when used, and replace the two functions that optimizers use."""
    import torch

    import_when_used("torch._dynamo")
    torch._dynamo = sys.modules["torch._dynamo"]
    vars(torch._dynamo).update(
        disable=lambda function, *_, **__: function, graph_break=lambda: None
    )


class _Unused(ModuleType):
    """A module of which nothing has been used; as `importlib.util.LazyLoader` makes them.

    That one executes a module at its second import already, before Python 3.12.
    """

    def __getattr__(self, name: str) -> Any:
        self.__class__ = ModuleType  # type: ignore[assignment]
        spec: Any = self.__spec__
        self.__path__ = list(spec.submodule_search_locations or ())
        with _without_marks() if self.__name__ == "tensordict" else nullcontext():
            spec.loader.exec_module(self)
        if self.__name__ == "torch":
            _without_compilation()
        return getattr(self, name)


@contextmanager
def _without_marks() -> Iterator[None]:
    """Within, no function is marked for ``torch.compile``, which commands do not use."""
    import torch.compiler

    names = ("allow_in_graph", "assume_constant_result")
    marks = {name: getattr(torch.compiler, name) for name in names}
    vars(torch.compiler).update(dict.fromkeys(names, lambda function: function))
    try:
        yield
    finally:
        vars(torch.compiler).update(marks)


def simtrain() -> NoReturn:
    """Entry point of ``simtrain``, which has all commands."""
    command, *arguments = sys.argv[1:] or ["--help"]
    if command in COMMANDS:
        start(command, arguments)
    end_at_once_on_signals(SIGINT)
    run_command(lambda: _simtrain(command, arguments))


def _simtrain(command: str, arguments: Sequence[str]) -> int:
    if command == _COMPLETION:
        return _complete(arguments)
    if command not in ("-h", "--help"):
        near = did_you_mean(command, COMMANDS)
        raise ConfigError(
            f"simtrain has no command {command!r}{near}; it has {', '.join(COMMANDS)}"
        )
    print("usage: simtrain <command> [arguments]\n")
    for name, about in COMMANDS.items():
        print(f"  {name:<12}{about}")
    print(f"\n`simtrain <command> --help` shows more; {_COMPLETION} bash prints a completion.")
    return DONE


def _complete(arguments: Sequence[str]) -> int:
    """Print a shell's completion of ``simtrain``: its commands, tasks, flags and files."""
    if list(arguments) not in (["bash"], ["zsh"]):
        given = f", not {' '.join(arguments)}" if arguments else ""
        raise ConfigError(f"{_COMPLETION} takes the name of a shell, bash or zsh{given}")

    # Only now, so that no command waits for the others.
    import tyro

    from simtrain.cli.benchmark import BenchmarkFlags
    from simtrain.cli.evaluate import EvaluateFlags
    from simtrain.cli.export import ExportConfig
    from simtrain.cli.motion import COMMANDS as MOTION
    from simtrain.cli.new import NewConfig
    from simtrain.cli.parse import MARKERS
    from simtrain.cli.play import PlayConfig
    from simtrain.cli.report import ReportConfig
    from simtrain.config.tasks import discover
    from simtrain.config.train import TrainConfig

    with redirect_stdout(sys.stderr):  # output of task files is no part of it
        tasks = discover().tasks
        trainings = {n: TrainConfig.of_task(n, task.configuration()) for n, task in tasks.items()}
    commands = {
        "new": NewConfig(),
        "train": _subcommands(trainings, {name: task.description for name, task in tasks.items()}),
        "play": PlayConfig(),
        "evaluate": EvaluateFlags(),
        "report": ReportConfig(),
        "export": ExportConfig(),
        "benchmark": BenchmarkFlags(),
        "list-tasks": make_dataclass("ListTasks", ())(),
        "motion": _subcommands({name: flags for name, (flags, *_) in MOTION.items()}, {}),
    }
    kinds = _subcommands(commands, COMMANDS)()
    script = io.StringIO()
    with redirect_stdout(script), suppress(SystemExit):
        tyro.cli(kinds, prog="simtrain", args=[_COMPLETION, *arguments], config=MARKERS)
    # Words that are no flags, such as a run, are completed as files.
    if arguments[0] == "bash":
        print(script.getvalue() + _FILES_IN_BASH)
    else:
        flags_of_files = '"$completions" == "__TYRO_COMPLETE_FILES__"'
        print(script.getvalue().replace(flags_of_files, f'-z "$completions" || {flags_of_files}'))
    return DONE


def _subcommands(commands: dict[str, Any], about: Mapping[str, str]) -> Callable[[], Any]:
    """Makes the type of tyro's subcommands, from configurations and nested subcommands."""
    from tyro.conf import subcommand

    kinds, union = [], cast(Any, Union)
    for name, command in commands.items():
        if callable(command):
            nested = subcommand(name, constructor_factory=command, description=about.get(name))
            kinds.append(Annotated[Any, nested])
        else:
            config = subcommand(name, default=command, description=about.get(name))
            kinds.append(Annotated[type(command), config])
    return lambda: union[tuple(kinds)]


def _start_by_old_name(command: str) -> NoReturn:
    text = f"note: write `simtrain {command}`; the next version has no command `{command}`"
    print(text, file=sys.stderr)
    start(command)


train = partial(start, "train")
play = partial(start, "play")
evaluate = partial(_start_by_old_name, "evaluate")
report = partial(_start_by_old_name, "report")
motion = partial(_start_by_old_name, "motion")
benchmark = partial(_start_by_old_name, "benchmark")
list_tasks = partial(_start_by_old_name, "list-tasks")

if __name__ == "__main__":
    simtrain()
