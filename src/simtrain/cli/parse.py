"""From a command line to a configuration, with tyro; its errors become ConfigErrors of one line."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import tyro
from tyro import _errors as tyro_errors

from simtrain.errors import ConfigError, did_you_mean

ConfigT = TypeVar("ConfigT")

_VALUE = (
    r"invalid literal for int\(\) with base 10: (.*)"
    r"|could not convert string to float: (.*)"
    r"|could be instantiated from \[(.*?)\]"
    r"|Could not find valid parse for arguments: \[(.*?)\]"
)
"""How tyro's messages about a value of the wrong kind give the value."""
_KINDS = {
    "INT": "a whole number",
    "FLOAT": "a number",
    "FLOAT FLOAT": "two numbers",
    "INTs": "one or more whole numbers",
    "FLOATs": "one or more numbers",
    "STRs": "pairs of a name and a number",
}
"""How tyro's help names kinds of values, in plain words; s is for one or more."""


def parse_flags(prog: str, default: ConfigT, arguments: Sequence[str]) -> ConfigT:
    """A copy of `default` with the values that the flags in `arguments` give.

    Raises:
        ConfigError: an unknown flag or a value of the wrong kind.
        SystemExit: ``--help`` was printed.
    """
    hook = _Hook(default)
    with tyro_errors.on_parse_error(hook):
        return tyro.cli(
            type(default),
            prog=prog,
            args=list(arguments),
            default=default,
            config=(tyro.conf.AvoidSubcommands, tyro.conf.FlagConversionOff),
        )


def split_paths(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The paths that a command line begins with, up to its first flag, and the rest."""
    flags = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    return [Path(path) for path in arguments[:flags]], list(arguments[flags:])


class _Hook:
    """Called by tyro before it prints an error of many lines; raises a ConfigError instead."""

    def __init__(self, default: object) -> None:
        self._default = default

    def __call__(self, event: tyro_errors.ParseErrorEvent) -> None:
        message = self._message(event)
        if message is not None:
            raise ConfigError(f"{message}; `{event.prog} --help` lists all flags")

    def _message(self, event: tyro_errors.ParseErrorEvent) -> str | None:
        if isinstance(event, tyro_errors.UnrecognizedArgs):
            unknown = [token for token in event.tokens if token.startswith("-")] or event.tokens
            flag = unknown[0].split("=", 1)[0]
            return f"there is no flag {flag}{did_you_mean(flag, _flags(self._default))}"
        if isinstance(event, tyro_errors.InvalidChoice):
            return (
                f"{_flag(event.argument)} is {event.value!r}; "
                f"it must be one of {', '.join(event.choices)}"
            )
        if isinstance(event, tyro_errors.BadValue):
            return f"{_flag(event.argument)} needs a value"
        if isinstance(event, tyro_errors.InstantiationFailure) and event.argument is not None:
            message = " ".join(event.message.split())
            value = re.search(_VALUE, message)
            pair = re.search(r"\[(.*)\] into tuple type tuple\[str, float\]", message)
            if pair is not None:
                given = pair[1].replace("'", "").replace(",", "")
                return f"{_flag(event.argument)} is {given!r}; it must be a name and a number"
            if value is not None:
                given = next(filter(None, value.groups()))
                allowed = _in_words(event.argument.lowered.metavar or "")
                return f"{_flag(event.argument)} is {given}; it must be {allowed}"
            return f"{_flag(event.argument)}: {message}"
        return None


def _in_words(kinds: str) -> str:
    """What a flag takes, from how tyro's help puts it."""
    alternatives: list[str] = []
    for kind in re.findall(r"\{[^{}]*\}|[^|{}]+", kinds):
        inner = kind.strip("{}")
        words = _KINDS.get(inner) or _KINDS.get(inner.strip("[]").split(" ")[0] + "s")
        alternatives += [words] if words else inner.split(",")
    *others, last = alternatives
    return f"{', '.join(others)} or {last}" if others else last


def _flag(argument: object) -> str:
    return str(argument.lowered.name_or_flags[-1])  # type: ignore[attr-defined]


def _flags(config: object, prefix: str = "--") -> list[str]:
    """All flags of a configuration, for near misses."""
    found: list[str] = []
    items: dict[str, object] = {}
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        for field in dataclasses.fields(config):
            if str(field.type).startswith("Suppress"):
                continue
            value = getattr(config, field.name)
            # A term's parameters are flags of the term itself.
            items.update(value if field.name == "params" else {field.name: value})
    elif isinstance(config, dict):
        items = config
    for name, value in items.items():
        flag = f"{prefix}{name.replace('_', '-')}"
        found += _flags(value, f"{flag}.") or [flag]
    return found
