"""From a command line to a configuration, with tyro; its errors become ConfigErrors of one line.

Catching them takes tyro's private ``_errors``; ``tests/cli/test_parse.py`` fails if that changes.
"""

import inspect
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import tyro
from tyro import _errors

from simtrain.cli.help import help_text, help_topic
from simtrain.errors import ConfigError, did_you_mean, flag
from simtrain.files import check_path
from simtrain.limits import check, in_words, leaves

ConfigT = TypeVar("ConfigT")
MARKERS = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff)
"""How tyro makes flags of a configuration."""
_OTHERS_FOR_TRAIN = {
    "--headless": "training opens no window; `play RUN` shows a policy",
    "--livestream": "`play RUN` serves a page in the browser",
    "--enable-cameras": "--video True draws videos while it trains",
    "--device": "--gpu-ids 0 for a GPU, --gpu-ids None for the CPU",
    "--distributed": "--gpu-ids 0 1 trains on two GPUs",
    "--num-gpus": "--gpu-ids 0 1 trains on two GPUs",
    "--checkpoint": "--resume RUN resumes a run, --init-from FILE starts with its policy",
    "--load-run": "--resume RUN resumes a run",
    "--load-checkpoint": "--init-from FILE begins with a policy",
    "--num-iterations": "--max-iterations N ends training",
    "--num-timesteps": "--total-env-steps N ends training",
    "--task": "the task comes first: `train <task>`",
    "--experiment-name": "--log-root names the folder of all runs, --run-name ends that of one",
    "--log-project-name": "--wandb-project names it",
    "--stop-at-return": 'write --until "mean_return>=VALUE"',
    "--stop-at": 'write --until "METRIC>=VALUE", such as "Train/mean_reward>=45"',
    "--stop-below": 'write --until "METRIC<=VALUE", such as "Eval/failure_rate<=0.01"',
}
"""Flags that people know from other trainers or earlier versions, and what is here instead."""
_OTHERS_FOR_PLAY = {
    "--headless": "--video out.mp4 needs no display",
    "--video-length": "--seconds is the length of the video, in s",
    "--task": "the task or run comes first: `play <task>`",
    "--agent": "--policy zero and --policy random act without a trained policy",
    **dict.fromkeys(
        ("--checkpoint", "--checkpoint-file", "--load-run", "--load-checkpoint"),
        "the run or checkpoint comes first: `play logs/<task>/<run>`",
    ),
}
# The words given for a flag, as tyro's messages about a value of the wrong kind quote them.
_GIVEN = re.compile(r"'[^']*'(, '[^']*')*")


def parse_flags(
    prog: str, default: ConfigT, arguments: Sequence[str], description: str | None = None
) -> ConfigT:
    """A copy of `default` with the values that flags give; ConfigError, or SystemExit of --help.

    The help begins with `description`, None for the configuration's docstring.
    """
    if (topic := help_topic(arguments)) is not None:
        print(help_text(prog, default, topic, description))
        raise SystemExit(0)

    def raise_config_error(event: _errors.ParseErrorEvent) -> None:
        if (message := _message(event, default)) is not None:
            raise ConfigError(f"{message}; `{event.prog} --help` lists all flags")

    with _errors.on_parse_error(raise_config_error):
        parsed = tyro.cli(type(default), prog=prog, args=arguments, default=default, config=MARKERS)
    _check_paths(parsed, arguments)
    check(parsed)
    return parsed


def split_paths(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The paths that a command line begins with, up to its first flag, and the rest.

    A picture or page that `report` wrote beside runs is left out: `logs/<task>/*` names it, too.
    """
    flags = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    for path in arguments[:flags]:
        check_path(path, "the path")
    if "" in arguments[:flags]:
        raise ConfigError("one of the paths is empty")
    paths = [Path(path) for path in arguments[:flags]]
    runs = [path for path in paths if path.suffix not in (".png", ".html")]
    return runs or paths, list(arguments[flags:])


def _check_paths(config: object, arguments: Sequence[str]) -> None:
    """Raise ConfigError for impossible paths, and empty ones, which would mean this folder."""
    words = [word for argument in arguments for word in argument.split("=", 1)]
    empty = {name.replace("_", "-") for name, value in pairwise(words) if not value}
    for path, value in leaves(config).items():
        if isinstance(value, Path) and flag(*path) in empty:
            raise ConfigError(f"{flag(*path)} is empty; it must be a path")
        if isinstance(value, Path) or (isinstance(value, str) and len(path) == 1):
            check_path(value, flag(*path))


def _default_of_term(name: str, config: Any) -> str:
    """If `name` would be a parameter that a term leaves at its default, what to do; else ``""``."""
    *path, parameter = name.removeprefix("--").replace("-", "_").split(".")
    for part in path:
        config = getattr(config, "terms", config)  # of observations
        config = config.get(part) if isinstance(config, dict) else getattr(config, part, None)
    function = getattr(config, "func", None)
    if function is None or parameter not in inspect.signature(function).parameters:
        return ""
    return f"the task leaves {parameter} at its default; set it in the task to get a flag"


def _message(event: _errors.ParseErrorEvent, config: object) -> str | None:
    if isinstance(event, _errors.UnrecognizedArgs):
        unknown = [token for token in event.tokens if token.startswith("-")] or event.tokens
        name = unknown[0].split("=", 1)[0]
        paths = leaves(config, suppressed=False)
        flags = [flag(*path) for path in paths if path[-1] != "params"]
        others = _OTHERS_FOR_TRAIN if "--until" in flags else {}
        others = _OTHERS_FOR_PLAY if "--policy" in flags else others
        here = others.get(name.replace("_", "-")) or _default_of_term(name, config)
        return f"there is no flag {name}{f'; {here}' if here else did_you_mean(name, flags)}"
    if (argument := getattr(event, "argument", None)) is None:
        return None
    name = str(argument.lowered.name_or_flags[-1])
    if isinstance(event, _errors.InvalidChoice):
        near = did_you_mean(event.value, event.choices)
        return f"{name} is {event.value!r}{near}; it must be one of {', '.join(event.choices)}"
    if isinstance(event, _errors.BadValue):
        return f"{name} needs a value"
    if isinstance(event, _errors.InstantiationFailure):
        message = " ".join(event.message.split())
        given, kinds = _GIVEN.search(message), in_words(argument.field.type_stripped)
        if given is None or kinds is None:
            return f"{name}: {message}"
        return f"{name} is {given[0]}; it must be {kinds}"
    return None
