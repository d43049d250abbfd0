"""Help for a command, made of its configuration: each flag's type, meaning and present value.

The flags of a group, such as ``env.rewards``, are shown on request; flags that all terms of a kind
have are shown once. Imports nothing that the configuration does not.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from simtrain.errors import ConfigError, did_you_mean, flag
from simtrain.limits import field_default, field_types, leaves, parts_of

_MANY = 30  # flags, of which a line each is enough
_INDENT = 30
_WORDS = {int: "INT", float: "FLOAT", str: "STR", bool: "True|False", Path: "PATH"}


@dataclass
class _Flag:
    name: str  # env.rewards.upright.weight
    value: str  # as it is typed
    takes: str = ""  # FLOAT; nothing for a parameter of a term, whose value shows it
    text: str = ""
    default: str | None = None  # of its class; None if it has none


@dataclass
class _Group:
    name: str  # env.rewards.upright
    kind: type | None = None  # None for a mapping of names to groups
    text: str = ""  # its docstring; of a term, that of its function
    flags: list[_Flag] = field(default_factory=list)
    groups: list[_Group] = field(default_factory=list)

    def walk(self) -> Iterator[_Group]:
        """This group and all groups below it."""
        yield self
        for group in self.groups:
            yield from group.walk()

    def parts(self) -> Iterator[_Group]:
        """The groups below this group, down to the mappings of terms."""
        for group in self.groups if self.kind else ():
            yield group
            yield from group.parts()

    def all_flags(self) -> list[_Flag]:
        """The flags of this group and of all groups below it."""
        return [flag for group in self.walk() for flag in group.flags]


def help_topic(arguments: Sequence[str]) -> str | None:
    """The requested help: a group, a flag, ``all``, or "" for the command; None for no help."""
    for word, following in zip(arguments, [*arguments[1:], "-"], strict=False):
        name, _, topic = word.partition("=")
        if name in ("-h", "--help"):
            return topic or ("" if following.startswith("-") else following)
    return None


def help_text(prog: str, config: Any, topic: str, description: str | None = None) -> str:
    """The help of a command about a topic, see `help_topic`; ConfigError if there is none such.

    It begins with `description`, None for the configuration's docstring.
    """
    root = _group(config, ())
    topic = topic.removeprefix("--").replace("_", "-")
    flags = {flag.name.replace("_", "-"): flag for flag in root.all_flags()}
    groups = {group.name: group for group in root.walk() if group.name}
    if topic in flags:
        option = flags[topic]
        term = next(group for group in root.walk() if option in group.flags)
        about = [] if option.takes else ["", *_wrapped(term.text)]
        return "\n".join([*_table([option]), *about])
    if topic in groups:
        return "\n".join([*_section(groups[topic]), *_overview(groups[topic])])
    if topic not in ("", "all"):
        near = did_you_mean(topic, [*groups, *flags])
        raise ConfigError(f"--help: there is no group and no flag {topic!r}{near}")
    lines = [f"usage: {prog} [flags]", "", *_wrapped(description or root.text), ""]
    if topic == "all":
        lines += _table(root.flags)
        for part in root.parts():
            lines += ["", *_section(part)]
    else:
        is_brief = bool(root.groups) and len(root.flags) > _MANY
        lines += [*_table(root.flags, is_brief=is_brief), *_overview(root)]
        how = f"`{prog} --help <group or flag>` shows one of them, `--help all` all."
        lines += ["", *_wrapped(how)] if root.groups else []
    return "\n".join(lines)


def _group(config: Any, path: tuple[str, ...]) -> _Group:
    """A configuration, or a mapping in one, as a group."""
    name = flag(*path).removeprefix("--")
    if isinstance(config, dict):
        return _Group(name, groups=[_group(part, (*path, n)) for n, part in config.items()])
    kind: Any = type(config)
    hints = field_types(kind)
    function = getattr(config, "func", kind)  # of a term
    function = getattr(function, "func", function)  # of a functools.partial
    group = _Group(name, kind, _plain(function.__doc__ or ""))
    parts, own = parts_of(config, suppressed=False) or {}, inspect.get_annotations(kind)
    for field_name, part in sorted(parts.items(), key=lambda item: item[0] not in own):
        at, hint = (*path, field_name), hints[field_name]
        if field_name == "terms":  # flags of the group itself
            group.kind, group.groups = None, _group(part, at).groups
        elif field_name == "params":
            parameters = leaves(part, at).items() if part else ()
            group.flags += [_Flag(flag(*path)[2:], _typed(value)) for path, value in parameters]
        elif dataclasses.is_dataclass(part) or (get_origin(hint) is dict and part):
            group.groups.append(_group(part, at))
        elif takes := _takes(hint):
            default, text = field_default(kind, field_name), _field_docstring(kind, field_name)
            typed = None if default is dataclasses.MISSING else _typed(default)
            group.flags.append(_Flag(flag(*at)[2:], _typed(part), takes, text, typed))
    return group


def _field_docstring(kind: type, name: str) -> str:
    """The docstring below a field, in its dataclass or in a base class."""
    for base in kind.__mro__:
        with suppress(OSError, TypeError):  # its source is not in a file
            if text := _docstrings_in(inspect.getfile(base)).get((base.__name__, name)):
                return text
    return ""


@functools.cache
def _docstrings_in(file: str) -> dict[tuple[str, str], str]:
    """The docstrings below the fields of the classes in a file, by the names of both.

    As tyro's own ``_docstrings``, in a tenth of the time.
    """
    return {
        (node.name, field.target.id): _plain(str(below.value.value))
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        for field, below in pairwise(node.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
    }


def _takes(hint: Any) -> str:
    """Placeholders of a flag's values; "" for a type that is, or would be, a group of flags."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        named = [str(m.metavar) for m in hint.__metadata__ if getattr(m, "metavar", None)]
        return named[0] if named else _takes(arguments[0])
    if origin is Literal:
        return "|".join(map(str, arguments))
    kinds = [_takes(one) for one in arguments if one not in (..., NoneType)]
    if not all(kinds):
        return ""
    if origin in (Union, UnionType):
        return "|".join([*kinds, *["None"] * (NoneType in arguments)])
    if origin is tuple or origin is dict:
        return " ".join([*kinds, *["..."] * (origin is dict or ... in arguments)])
    return _WORDS.get(hint, "")


def _typed(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, dict):
        value = [word for pair in value.items() for word in pair]
    if isinstance(value, list | tuple):
        return " ".join(map(_typed, value))
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, float):
        return str(float(f"{value:.12g}"))  # 2.88, not 2.8800000000000003
    return "''" if value == "" else str(value)


def _plain(text: str) -> str:
    """A docstring in one line and without markup."""
    return " ".join(text.replace("`", "").split())


def _first_sentence(text: str) -> str:
    return re.split(r"(?<!e\.g)(?<!et al)\.(?=\s|$)", text)[0]


def _wrapped(text: str, indent: int = 0) -> list[str]:
    width, space = min(shutil.get_terminal_size().columns, 120), " " * indent
    options: Any = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, width, initial_indent=space, subsequent_indent=space, **options)


def _row(head: str, text: str) -> list[str]:
    """A line with its explanation beside it, or below where there is no room."""
    lines = _wrapped(text, _INDENT)
    if not lines or len(head) + 2 > _INDENT:
        return [head, *lines]
    return [f"{head:<{_INDENT}}{lines[0].lstrip()}", *lines[1:]]


def _table(flags: Iterable[_Flag], *, is_brief: bool = False) -> list[str]:
    """The flags with their texts and values; `is_brief`: with the first sentences alone."""
    lines = []
    for option in flags:
        takes, text, value = option.takes, option.text, option.value and f"default: {option.value}"
        if is_brief:
            takes, text = takes.removesuffix("|None"), _first_sentence(text)
            value = "" if option.value in ("''", "None") else option.value
        lines += _row(f"  --{option.name} {takes}", text + (f" ({value})" if value else ""))
    return lines


def _overview(group: _Group) -> list[str]:
    """The groups below a group, and their contents, under a title; nothing without groups."""
    rows: list[str] = []
    for part in group.parts():
        if part.kind:
            rows += _row(f"  {part.name}", _first_sentence(part.text))
            continue
        for mapping in [inner for inner in part.groups if not inner.kind] or [part]:
            names = [term.name.removeprefix(f"{mapping.name}.") for term in mapping.groups]
            rows += _row(f"  {mapping.name}", ", ".join(names))
    return ["\nGroups of flags:", *rows] if rows else []


def _section(group: _Group) -> list[str]:
    """A group's flags, and its terms by their kinds."""
    lines = [f"{group.name}:", *([*_wrapped(group.text), ""] if group.text else [])]
    lines += _table(group.flags)
    kinds: dict[type, list[_Group]] = {}
    if group.kind is None:
        mappings = [inner for inner in group.groups if not inner.kind]  # of observations
        lines += _table(flag for inner in mappings for flag in inner.flags)
        for inner in group.groups:
            for term in inner.groups if inner in mappings else [inner]:
                kinds.setdefault(term.kind or object, []).append(term)
    for kind, terms in kinds.items():
        lines += _terms(group.name, kind, terms)
    return lines


def _terms(name: str, kind: type, terms: list[_Group]) -> list[str]:
    """Lines about the terms of a kind: their common flags once, then the values of each term."""
    text = _plain(kind.__doc__ or "")
    shared: dict[str, _Flag] = {}
    rows: list[str] = []
    for term in terms:
        about = _first_sentence(term.text) if term.text != text else ""
        rows += ["", *_row(f"  {term.name.removeprefix(f'{name}.')}", about)]
        for option in sorted(term.all_flags(), key=lambda option: not option.takes):
            own = option.name.removeprefix(f"{term.name}.")
            if option.takes:
                of_all = replace(option, name=f"{name}.<term>.{own}", value=option.default or "")
                shared.setdefault(own, of_all)
            if option.value != option.default:
                rows.append(f"    --{option.name} {option.value}")
    return [*_wrapped(text), "", *_table(shared.values()), *rows]
