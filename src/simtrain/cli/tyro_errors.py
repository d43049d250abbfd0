"""tyro's errors as ConfigErrors of one line.

tyro reports errors in a box of many lines and exits; catching them before takes its private module
``tyro._errors``. Nothing else here uses it, and ``tests/cli/test_tyro_errors.py`` fails if a
version of tyro changes what is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from tyro import _errors

from simtrain.errors import ConfigError, did_you_mean

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
_GIVEN = re.compile(r"'[^']*'(, '[^']*')*")
"""The words given for a flag, as tyro's messages about a value of the wrong kind quote them."""


def one_line_errors(flags: Callable[[], Iterable[str]]) -> AbstractContextManager[None]:
    """Within, what `tyro.cli` rejects is a ConfigError; `flags` lists all flags for near misses."""

    def raise_config_error(event: _errors.ParseErrorEvent) -> None:
        message = _message(event, flags)
        if message is not None:
            raise ConfigError(f"{message}; `{event.prog} --help` lists all flags")

    return _errors.on_parse_error(raise_config_error)


def _message(event: _errors.ParseErrorEvent, flags: Callable[[], Iterable[str]]) -> str | None:
    if isinstance(event, _errors.UnrecognizedArgs):
        unknown = [token for token in event.tokens if token.startswith("-")] or event.tokens
        flag = unknown[0].split("=", 1)[0]
        return f"there is no flag {flag}{did_you_mean(flag, flags())}"
    argument = getattr(event, "argument", None)
    if argument is None:
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
        # A name and its number are one thing.
        words = given[0] if kinds != "a name and a number" else repr(_unquoted(given[0]))
        return f"{flag} is {words}; it must be {kinds}"
    return None


def _in_words(kind: Any) -> str | None:
    """What a flag of this type takes; None if there are no words for it."""
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


def _unquoted(words: str) -> str:
    return words.replace("'", "").replace(",", "")
