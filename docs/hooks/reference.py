"""What the manual's reference takes from the code while it is built, so that it cannot go stale.

MkDocs calls `on_page_markdown` for each page. In it, two kinds of lines are replaced:

  <!-- flags: simtrain.config.train:TrainConfig -->  the flags that a dataclass makes
  <!-- flags: simtrain.algorithms.cfg:PpoCfg --ppo -->  ... with nested ones, under a prefix
  <!-- terms: rewards -->  the terms of a module of `simtrain.mdp`

A page that shows raw markup is a warning, with which ``mkdocs build --strict`` fails.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import logging
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import griffe

from simtrain import mdp
from simtrain.config.train import TrainConfig
from simtrain.env.cfg import TaskCfg

_log = logging.getLogger("mkdocs.hooks.reference")
_RAW = re.compile(
    r"`|\*\*|\]\(|\]\[|<!--|--8<--|^\s*(?:#+ |:::|!!!|\?\?\?|\||[-*] )|&[a-z]+;", re.MULTILINE
)
"""Markdown, or a mark of an extension, in what a reader sees."""
_MARKER = re.compile(r"^<!-- (flags|terms): (\S+)(?: (\S+))? -->$", re.MULTILINE)


# Terms alone: no helpers of the module, no methods of those that are classes.
_TERMS = """\
::: simtrain.mdp.{module}
    options:
      show_root_heading: false
      show_root_toc_entry: false
      filters: ["!.*"]
      members:{members}
"""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page's text with its markers replaced."""
    return _MARKER.sub(_replacement, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """A page without what the docstrings of ``__init__`` begin with."""
    for text in raw_markup(html):
        _log.warning(f"{page.file.src_uri} shows raw markup: {text}")
    return html.replace("<p>Prepare.</p>", "")


def raw_markup(html: str) -> list[str]:
    """The lines of a page, outside of code, in which a reader sees markup."""
    reader = _Reader()
    reader.feed(html)
    return [line.strip() for line in "".join(reader.text).splitlines() if _RAW.search(line)]


class _Reader(HTMLParser):
    """Collects the text of a page without code."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self._code = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._code += tag in ("code", "pre")

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag in ("code", "pre")

    def handle_data(self, data: str) -> None:
        if not self._code:
            self.text.append(data)


@dataclass(frozen=True)
class Flag:
    """A flag of a command."""

    name: str
    """As it is typed; ``<term>`` stands for the name that the task gives it."""
    values: str
    """What may follow it."""
    default: str
    """What holds without it, empty if it must be given somewhere."""
    help: str
    """What it is for."""


def flags(cls: type, prefix: str = "") -> Iterator[Flag]:
    """The flags that tyro makes of a dataclass; below `prefix` those of nested ones as well."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if str(field.type).startswith("Suppress"):
            continue
        name = f"{prefix}.{field.name}".replace("_", "-") if prefix else _flag(field.name)
        if field.name == "terms":  # flags of the group itself
            yield from flags(_dataclasses_in(hints["terms"])[0][0], f"{prefix}.<term>")
            continue
        if field.name == "params":
            yield Flag(f"{prefix}.<parameter>", "", "", "A parameter of the term's function.")
            continue
        nested, names = _dataclasses_in(hints[field.name])
        if not nested:
            values = ", ".join(_values(hints[field.name]))
            if field.type == "Flag":
                values += "; alone `True`"
            yield Flag(name, values, _default(cls, field), _help(cls, field.name))
        elif prefix:
            below = f"{name}{('', '.<term>', '.<group>.<term>')[names]}"
            is_group = {
                cls: any(f.name == "terms" for f in dataclasses.fields(cls)) for cls in nested
            }
            found = [
                flag
                for one in nested
                for flag in flags(one, f"{name}.<group>" if is_group[one] else below)
            ]
            yield from {flag.name: flag for flag in found}.values()


def _replacement(match: re.Match[str]) -> str:
    kind, what, prefix = match.groups()
    if kind == "terms":
        members = "".join(f"\n        - {name}" for name in sorted(mdp.terms_of(what)))
        return _TERMS.format(module=what, members=members)
    module, name = what.split(":")
    rows = list(flags(getattr(importlib.import_module(module), name), prefix or ""))
    cells = ("flag", "values", "default", "")
    lines = ["| " + " | ".join(cells) + " |", "|---" * len(cells) + "|"]
    for flag in rows:
        lines.append(f"| `{flag.name}` | {flag.values} | {flag.default} | {flag.help} |")
    return "\n".join(lines)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _dataclasses_in(hint: Any) -> tuple[list[type], int]:
    """The dataclasses that a field may hold, and how many names of a mapping lead to them."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        found, names = _dataclasses_in(arguments[1])
        return found, names + 1
    if origin in (typing.Union, types.UnionType):
        inner = [_dataclasses_in(argument) for argument in arguments]
        return [cls for found, _ in inner for cls in found], max(names for _, names in inner)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        leaves = [leaf for cls in hint.__subclasses__() for leaf in _dataclasses_in(cls)[0]]
        return leaves or [hint], 0
    return [], 0


def _values(hint: Any) -> list[str]:
    """What a flag of this type takes, each way for itself."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return [value for argument in arguments for value in _values(argument)]
    if origin is typing.Literal:
        return [f"`{choice}`" for choice in arguments]
    if origin is tuple:
        kinds = [_values(a)[0] if a is not ... else "…" for a in arguments]
        return [" ".join(kinds)]
    if origin is dict:
        return ["pattern " + " pattern ".join(_values(arguments[1])) + " …"]
    if hint is bool:
        return ["`True`", "`False`"]
    if hint is type(None):
        return ["`None`"]
    kinds = {int: "integer", float: "number", str: "text", Path: "path"}
    return [kinds[hint]] if hint in kinds else []


def _default(cls: type, field: dataclasses.Field[Any]) -> str:
    if cls is TrainConfig and field.name in {f.name for f in dataclasses.fields(TaskCfg)}:
        return "the task's"
    value = field.default
    if value is dataclasses.MISSING or isinstance(value, type):
        return ""
    if isinstance(value, tuple):
        return f"`{' '.join(map(str, value))}`" if value else "none"
    return f"`{value}`" if value != "" else ""


def _help(cls: type, name: str) -> str:
    """The docstring below a field, in the class that declares it."""
    for base in cls.__mro__:
        if name in inspect.get_annotations(base):
            attribute = _module(base.__module__)[f"{base.__name__}.{name}"]
            text = attribute.docstring.value if attribute.docstring else ""
            return _plain(" ".join(text.split()))
    return ""


def _plain(text: str) -> str:
    """Text whose angle brackets, underscores and asterisks mean themselves, but in code."""
    parts = re.split(r"(`+[^`]+`+)", text)
    parts[::2] = [escape(re.sub(r"([_*])", r"\\\1", part)) for part in parts[::2]]
    return "".join(parts)


@functools.cache
def _module(name: str) -> griffe.Object:
    return typing.cast(griffe.Object, griffe.load(name))
