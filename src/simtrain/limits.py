"""Settings by their names, and their limits: declared at fields, checked by one walk.

A field's type is its annotation, its limits a `Limits` in it: ``Annotated[int, Limits(1, 2**24)]``.
Numbers without limits must be finite, and whole ones below 10^15. Limits are far from all that
makes sense; beyond them numbers overflow, memory ends or a step takes hours.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from simtrain.errors import ConfigError, did_you_mean, flag

Leaves = dict[tuple[str, ...], Any]  # the names that lead to a value -> the value

LARGEST_INT, LARGEST_FLOAT32 = 10**15, 3e38
LARGEST_CONFIG = 2**19
"""Bytes of config.yaml; twenty times those of the tasks that ship."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The least and the greatest number that a setting may have, as each of several numbers."""

    low: float = -LARGEST_FLOAT32
    high: float = LARGEST_FLOAT32
    ordered: bool = False
    """Whether it is two numbers, of which the first must not be greater than the second."""
    required: bool = False
    """Whether it is a sequence that must have a value."""


Count = Annotated[int, Limits(1, LARGEST_INT)]
NumEnvs = Annotated[int, Limits(1, 2**24)]
NumSteps = Annotated[int, Limits(1, 10**5)]
Seed = Annotated[int, Limits(0, 2**32 - 1)]
Port = Annotated[int, Limits(0, 65_535)]
Repetitions = Annotated[int, Limits(1, 10**6)]
"""Of episodes, or measurements, one after the other."""
Fraction = Annotated[float, Limits(0.0, 1.0)]
Factor = Annotated[float, Limits(0.0, 1e6)]
Positive = Annotated[float, Limits(1e-12, 1e12)]
Timeout = Annotated[float, Limits(1e-3, 1e6)]
"""Seconds of waiting."""
Duration = Annotated[float, Limits(1e-3, 86_400.0)]
"""Seconds of a recording, up to a day."""
FramesPerSecond = Annotated[float, Limits(1.0, 1e4)]
UNBOUNDED = Limits(-math.inf, math.inf, ordered=True)
"""Two numbers, which may be infinite."""

_WORDS: dict[Any, tuple[str, str]] = {  # one, several
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "words"),
    bool: ("True or False", "True or False"),
    Path: ("a path", "paths"),
    NoneType: ("None", ""),
}
_COUNTS = {2: "two", 3: "three", 4: "four"}
_SCALARS = {int: Integral, float: Real}
_ANY_INT, _ANY_FLOAT = Limits(-LARGEST_INT, LARGEST_INT), Limits()


def check(config: Any, *path: str) -> None:
    """Raise ConfigError for a value that its field may not have; `path` leads to `config`.

    A dataclass may have a method ``check_fields(*path)`` for what several of its fields must be.
    """
    kind: Any = type(config)
    for name, hint in field_types(kind).items():
        check_value(getattr(config, name), hint, *path, name)
    if check_fields := getattr(config, "check_fields", None):
        check_fields(*path)


def check_value(value: Any, hint: Any, *path: str, limits: Limits | None = None) -> None:
    """Raise ConfigError for a value that is not of the type `hint`, or out of its limits."""
    fitting = [(kind, own) for kind, own in _alternatives(hint, limits) if _is_a(value, kind)]
    if not fitting:
        names = [n for kind in _kinds(hint) if get_origin(kind) is Literal for n in get_args(kind)]
        near = did_you_mean(value, map(str, names)) if isinstance(value, str) else ""
        text = f"{flag(*path)} is {value!r:.60}{near}"
        raise ConfigError(f"{text}; it must be {in_words(hint) or hint}")
    kind, limits = fitting[0]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        check(value, *path)
    elif isinstance(value, dict):
        item_type = get_args(kind)[1] if get_args(kind) else Any
        for name, item in value.items():
            check_value(item, item_type, *path, str(name), limits=limits)
    else:
        _check_limits(value, limits, flag(*path))


def leaves(tree: Any, path: tuple[str, ...] = (), *, suppressed: bool = True) -> Leaves:
    """Every value below `path`, of fields without flags only if `suppressed`; `{}` is a value."""
    parts = parts_of(tree, suppressed)
    if not parts:
        return {path: tree}
    below = (leaves(p, (*path, str(n)), suppressed=suppressed) for n, p in parts.items())
    return {at: value for part in below for at, value in part.items()}


def parts_of(value: Any, suppressed: bool = True) -> dict[str, Any] | None:
    """The named parts of a dataclass or a mapping; None for anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if suppressed or not str(field.type).startswith("Suppress")
        }
    return value if isinstance(value, dict) else None


@functools.cache
def field_types(kind: type) -> dict[str, Any]:
    """The annotations of a dataclass's fields."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def field_default(kind: type, name: str) -> Any:
    """The default of a dataclass's field; `dataclasses.MISSING` if it has none."""
    (field,) = (field for field in dataclasses.fields(kind) if field.name == name)
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def in_words(hint: Any) -> str | None:
    """The possible values of a setting of this type, in words; None if there are no plain words."""
    # As in tyro's help, None comes first.
    kinds = sorted(_kinds(hint), key=lambda kind: kind is not NoneType)
    words = [text for kind in kinds for text in _words_of(kind)]
    *others, last = words
    return (f"{', '.join(others)} or {last}" if others else last) if all(words) else None


def _words_of(kind: Any) -> list[str]:
    """The words for each value of one alternative of a type; an empty one if there are none."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return [str(part) for part in parts]
    if origin in (dict, Mapping):
        item = _kinds(parts[1])[0]
        is_plain = item is float or get_origin(item) is tuple
        return [f"pairs of a name and {_words_of(item)[0]}" if is_plain else ""]
    if origin is not tuple:
        name = getattr(kind, "__name__", "") if dataclasses.is_dataclass(kind) else ""
        return [_WORDS[kind][0] if kind in _WORDS else name and f"a {name}"]
    several = _WORDS.get(_kinds(parts[0])[0], ("", ""))[1]
    count = "one or more" if ... in parts else _COUNTS.get(len(parts), str(len(parts)))
    return [several and f"{count} {several}"]


def _alternatives(hint: Any, limits: Limits | None = None) -> list[tuple[Any, Limits | None]]:
    """The types of which a value may have any, each with its limits."""
    if get_origin(hint) is Annotated:
        own = [note for note in hint.__metadata__ if isinstance(note, Limits)]
        return _alternatives(get_args(hint)[0], own[0] if own else limits)
    if get_origin(hint) in (Union, UnionType):
        return [pair for part in get_args(hint) for pair in _alternatives(part, limits)]
    return [(hint, limits)]


def _kinds(hint: Any) -> list[Any]:
    return [kind for kind, _ in _alternatives(hint)]


def _is_a(value: Any, kind: Any) -> bool:
    """Whether a value is of a type; for a mapping, whether it is one."""
    if kind is Any:
        return True
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in parts
    if origin is tuple and isinstance(value, tuple | list):
        items = parts[:1] * len(value) if ... in parts else parts
        return len(items) == len(value) and all(
            any(_is_a(part, kind) for kind in _kinds(item))
            for part, item in zip(value, items, strict=True)
        )
    if kind in _SCALARS:
        return isinstance(value, _SCALARS[kind]) and not isinstance(value, bool)
    expected = origin or kind
    known = isinstance(expected, type) and not getattr(expected, "_is_protocol", False)
    return not known or isinstance(value, expected)


def _check_limits(value: Any, limits: Limits | None, name: str) -> None:
    """Raise ConfigError for a number, or one of a sequence, out of limits; `name` is its flag."""
    sequence = value if isinstance(value, tuple | list) else (value,)
    for number in sequence:
        if isinstance(number, tuple | list):
            _check_limits(number, limits, name)
        if not _is_a(number, float):
            continue
        is_whole = isinstance(number, Integral)
        allowed = limits or (_ANY_INT if is_whole else _ANY_FLOAT)
        low, high = allowed.low, allowed.high
        if not is_whole and not math.isfinite(number) and number not in (low, high):
            raise ConfigError(f"{name} is {number}; it must be a finite number")
        if not low <= number <= high:
            is_long = is_whole and abs(number) >= 10**30
            shown = "a number of more than 30 digits" if is_long else number
            range_ = f"{low:g} or more" if number < low else f"{high:.12g} or less"
            raise ConfigError(f"{name} is {shown}; it must be {range_}")
    if limits is not None and limits.required and not sequence:
        raise ConfigError(f"{name} needs one or more values")
    if limits is not None and limits.ordered and value is not None and value[0] > value[1]:
        order = "the first must not be greater than the second"
        raise ConfigError(f"{name} is {value[0]} {value[1]}; {order}")


def without_arrays(value: Any) -> Any:
    """A number or tuples in place of an array or a tensor; all other values unchanged."""
    if hasattr(value, "tolist") and not isinstance(value, type):
        return _as_tuples(value.tolist())
    return value


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value
