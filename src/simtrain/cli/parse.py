"""From a command line to a configuration, with tyro; its errors become ConfigErrors of one line.

Catching them takes tyro's private ``_errors``; ``tests/cli/test_parse.py`` fails if that changes.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import tyro
from tyro import _errors

from simtrain.config_tree import flags_of
from simtrain.errors import ConfigError, did_you_mean

ConfigT = TypeVar("ConfigT")
_KINDS: dict[object, str] = {
    NoneType: "None",
    int: "a whole number",
    float: "a number",
    (tuple, float, float): "two numbers",
    (tuple, int, ...): "one or more whole numbers",
    (tuple, float, ...): "one or more numbers",
    (tuple, tuple[str, float], ...): "a name and a number",
    dict: "pairs of a name and a number",
}
# The words given for a flag, as tyro's messages about a value of the wrong kind quote them.
_GIVEN = re.compile(r"'[^']*'(, '[^']*')*")


def parse_flags(
    prog: str, default: ConfigT, arguments: Sequence[str], description: str | None = None
) -> ConfigT:
    """A copy of `default` with the values that flags give; ConfigError, or SystemExit of --help.

    The help begins with `description`, None for the configuration's docstring.
    """

    def raise_config_error(event: _errors.ParseErrorEvent) -> None:
        if (message := _message(event, default)) is not None:
            raise ConfigError(f"{message}; `{event.prog} --help` lists all flags")

    kind, args = type(default), list(arguments)
    config = (tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff)
    with _errors.on_parse_error(raise_config_error):
        return tyro.cli(
            kind, prog=prog, description=description, args=args, default=default, config=config
        )


def split_paths(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The paths that a command line begins with, up to its first flag, and the rest."""
    flags = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    return [Path(path) for path in arguments[:flags]], list(arguments[flags:])


def _message(event: _errors.ParseErrorEvent, config: object) -> str | None:
    if isinstance(event, _errors.UnrecognizedArgs):
        unknown = [token for token in event.tokens if token.startswith("-")] or event.tokens
        flag = unknown[0].split("=", 1)[0]
        return f"there is no flag {flag}{did_you_mean(flag, flags_of(config))}"
    if (argument := getattr(event, "argument", None)) is None:
        return None
    flag = str(argument.lowered.name_or_flags[-1])
    if isinstance(event, _errors.InvalidChoice):
        return f"{flag} is {event.value!r}; it must be one of {', '.join(event.choices)}"
    if isinstance(event, _errors.BadValue):
        return f"{flag} needs a value"
    if isinstance(event, _errors.InstantiationFailure):
        message = " ".join(event.message.split())
        given, kinds = _GIVEN.search(message), _in_words(argument.field.type_stripped)
        if given is None or kinds is None:
            return f"{flag}: {message}"
        words = given[0]
        if kinds == "a name and a number":  # they are shown as one
            words = repr(words.replace("'", "").replace(",", ""))
        return f"{flag} is {words}; it must be {kinds}"
    return None


def _in_words(kind: Any) -> str | None:
    """A flag's type in plain words; None if there are none."""
    union = get_origin(kind) in (Union, UnionType)
    # As in tyro's help, None comes first.
    kinds = sorted(get_args(kind), key=lambda k: k is not NoneType) if union else [kind]
    words: list[str] = []
    for one in kinds:
        origin, parts = get_origin(one), get_args(one)
        if origin is Literal:
            words += map(str, parts)
        elif known := _KINDS.get((origin, *parts) if origin is tuple else origin or one):
            words.append(known)
        else:
            return None
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last
