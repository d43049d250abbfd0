"""Help for a command, made of its configuration: what each flag takes, means and now is.

What a group of flags has, such as ``env.rewards``, is shown when it is asked for; what all terms of
a kind have is said once. Imports nothing that the configuration does not.
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
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from simtrain.config.tree import leaves, parts_of
from simtrain.errors import ConfigError, did_you_mean, flag
from simtrain.limits import field_default

_MANY = 30  # flags, of which a line each is enough
_INDENT = 30
_GROUPS = "\nGroups of flags:"
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
    text: str = ""  # what it is; of a term, what its function does
    flags: list[_Flag] = field(default_factory=list)
    groups: list[_Group] = field(default_factory=list)

    def all_groups(self) -> Iterator[_Group]:
        """It and all below it."""
        yield self
        for group in self.groups:
            yield from group.all_groups()

    def all_flags(self) -> Iterator[_Flag]:
        """Its flags and those of all groups below it."""
        yield from (one for group in self.all_groups() for one in group.flags)

    def terms(self) -> Iterator[_Group]:
        """What a mapping holds; of a mapping of mappings, what these hold."""
        for group in self.groups if self.kind is None else ():
            yield from [group] if group.kind else group.terms()


def help_topic(arguments: Sequence[str]) -> str | None:
    """What help is asked for: a group, a flag, ``all``, or "" for the command; None for none."""
    for word, following in zip(arguments, [*arguments[1:], "-"], strict=False):
        asked, _, topic = word.partition("=")
        if asked in ("-h", "--help"):
            return topic or ("" if following.startswith("-") else following)
    return None


def help_text(prog: str, config: Any, topic: str, description: str | None = None) -> str:
    """The help of a command about a topic, see `help_topic`; ConfigError if there is none such.

    It begins with `description`, None for the configuration's docstring.
    """
    root = _group(config, ())
    topic = topic.removeprefix("--").replace("_", "-")
    flags = {one.name: one for one in root.all_flags()}
    groups = {group.name: group for group in root.all_groups() if group.name}
    if topic in flags:
        return "\n".join(_table([flags[topic]]))
    if topic in groups:
        below = _names(groups[topic])
        return "\n".join([*_section(groups[topic]), *([_GROUPS, *below] if below else [])])
    if topic not in ("", "all"):
        near = did_you_mean(topic, [*groups, *flags])
        raise ConfigError(f"--help: there is no group and no flag {topic!r}{near}")
    lines = [f"usage: {prog} [flags]", "", *_wrapped(description or root.text), ""]
    if topic == "all":
        lines += [*_table(root.flags), *_sections(root.groups)]
    elif root.groups:
        lines += _brief(root.flags) if len(root.flags) > _MANY else _table(root.flags)
        lines += [_GROUPS, *_names(root), ""]
        lines += _wrapped(f"`{prog} --help <group or flag>` shows one of them, `--help all` all.")
    else:
        lines += _table(root.flags)
    return "\n".join(lines)


def field_docstrings(cls: type) -> dict[str, str]:
    """The docstrings below the fields of a dataclass, and of those that it derives from."""
    found: dict[str, str] = {}
    for base in filter(dataclasses.is_dataclass, reversed(cls.__mro__)):
        with suppress(OSError, TypeError):  # its source is not in a file
            found |= _docstrings_in(inspect.getfile(base)).get(base.__name__, {})
    return found


@functools.cache
def _docstrings_in(file: str) -> dict[str, dict[str, str]]:
    """The docstrings below the fields of each class in a file."""
    nodes = ast.walk(ast.parse(Path(file).read_text(encoding="utf-8")))
    return {
        node.name: {
            one.target.id: _plain(str(below.value.value))
            for one, below in pairwise(node.body)
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        }
        for node in nodes
        if isinstance(node, ast.ClassDef)
    }


def _group(config: Any, path: tuple[str, ...]) -> _Group:
    """A configuration, or a mapping in one, as a group."""
    name = flag(*path).removeprefix("--")
    if isinstance(config, dict):
        return _Group(name, groups=[_group(part, (*path, n)) for n, part in config.items()])
    kind = type(config)
    group = _Group(name, kind, _plain(_described(config).__doc__ or ""))
    hints, texts = get_type_hints(kind, include_extras=True), field_docstrings(kind)
    for one, part in (parts_of(config, suppressed=False) or {}).items():
        at, hint = (*path, one), hints[one]
        if one == "terms":  # flags of the group itself
            group.kind, group.groups = None, _group(part, at).groups
        elif one == "params":
            own = leaves(part, at).items() if part else ()
            group.flags += [_Flag(flag(*path)[2:], _typed(value)) for path, value in own]
        elif dataclasses.is_dataclass(part) or (get_origin(hint) is dict and part):
            group.groups.append(_group(part, at))
        elif takes := _takes(hint):
            shown = flag(*at)[2:], _typed(part), takes, texts.get(one, ""), _default(kind, one)
            group.flags.append(_Flag(*shown))
    return group


def _described(config: Any) -> Any:
    """What a part of a configuration is about: of a term, its function."""
    function = getattr(config, "func", type(config))
    return getattr(function, "func", function)  # of a functools.partial


def _default(kind: type, name: str) -> str | None:
    default = field_default(kind, name)
    return None if default is dataclasses.MISSING else _typed(default)


def _takes(hint: Any) -> str:
    """What a flag of this type takes; nothing if it is a group of flags, or would be one."""
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
    return "''" if value == "" else str(value)


def _plain(text: str) -> str:
    """A docstring in one line and without markup."""
    return " ".join(text.replace("`", "").split())


def _first_sentence(text: str) -> str:
    return re.split(r"(?<!e\.g)(?<!et al)\.(?=\s|$)", text)[0]


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 120)


def _wrapped(text: str, indent: int = 0) -> list[str]:
    space = " " * indent
    options: Any = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, _width(), initial_indent=space, subsequent_indent=space, **options)


def _row(head: str, text: str) -> list[str]:
    """A line with its explanation beside it, or below where there is no room."""
    lines = _wrapped(text, _INDENT)
    if not lines or len(head) + 2 > _INDENT:
        return [head, *lines]
    return [f"{head:<{_INDENT}}{lines[0].lstrip()}", *lines[1:]]


def _table(flags: Iterable[_Flag]) -> list[str]:
    rows = [
        _row(f"  --{one.name} {one.takes}", one.text + f" (default: {one.value})" * bool(one.value))
        for one in flags
    ]
    return [line for row in rows for line in row]


def _brief(flags: Iterable[_Flag]) -> list[str]:
    """A line for each flag."""
    lines = []
    for one in flags:
        head = f"  --{one.name} {one.takes.removesuffix('|None')}"
        value = f" ({one.value})" if one.value not in ("", "''", "None") else ""
        room = _width() - max(len(head) + 2, _INDENT) - len(value)
        text = textwrap.shorten(_first_sentence(one.text), max(room, 10), placeholder=" ...")
        lines.append(f"{head:<{_INDENT - 2}}  {text}{value}")
    return lines


def _names(group: _Group) -> list[str]:
    """The groups below one, and what they hold."""
    rows: list[str] = []
    for one in group.groups if group.kind else ():
        if one.kind:
            rows += [*_row(f"  {one.name}", _first_sentence(one.text)), *_names(one)]
        for below in [] if one.kind else [g for g in one.groups if not g.kind] or [one]:
            names = [g.name.removeprefix(f"{below.name}.") for g in below.groups]
            rows += _row(f"  {below.name}", ", ".join(names))
    return rows


def _sections(groups: Iterable[_Group]) -> list[str]:
    lines: list[str] = []
    for group in groups:
        lines += ["", *_section(group), *_sections(group.groups if group.kind else ())]
    return lines


def _section(group: _Group) -> list[str]:
    """A group's flags, and its terms by their kinds."""
    lines = [f"{group.name}:", *([*_wrapped(group.text), ""] if group.text else [])]
    inner = [one for below in group.groups if not below.kind for one in below.flags]
    lines += _table([*group.flags, *(inner if not group.kind else ())])
    kinds: dict[type, list[_Group]] = {}
    for term in group.terms():
        kinds.setdefault(term.kind or object, []).append(term)
    for kind, terms in kinds.items():
        lines += _terms(group.name, kind, terms)
    return lines


def _terms(name: str, kind: type, terms: list[_Group]) -> list[str]:
    """What all terms of a kind have, once, and then what is each one's own."""
    text = _plain(kind.__doc__ or "")
    shared: dict[str, _Flag] = {}
    rows: list[str] = []
    for term in terms:
        about = _first_sentence(term.text) if term.text != text else ""
        rows += ["", *_row(f"  {term.name.removeprefix(f'{name}.')}", about)]
        for one in sorted(term.all_flags(), key=lambda one: not one.takes):
            own = one.name.removeprefix(f"{term.name}.")
            if one.takes:
                of_all = replace(one, name=f"{name}.<term>.{own}", value=one.default or "")
                shared.setdefault(own, of_all)
            rows += [f"    --{one.name} {one.value}"] if one.value != one.default else []
    return [*_wrapped(text), "", *_table(shared.values()), *rows]
