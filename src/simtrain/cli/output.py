"""Printing and writing that commands share."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


class _LossyFile(io.FileIO):
    """A file that drops what cannot be written; later output is written if it then can be."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def open_standard_streams(*, lossy: bool) -> None:
    """Open those standard streams that are closed (``>&-``): files would take their descriptors.

    With `lossy`, what standard output and error cannot write is dropped, and no error.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            # It takes the lowest descriptor that is free, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))
        if lossy and descriptor:
            stream = getattr(sys, name)
            file = io.BufferedWriter(_LossyFile(descriptor, "w", closefd=False))
            settings = {"encoding": stream.encoding, "errors": stream.errors}
            setattr(sys, name, io.TextIOWrapper(file, line_buffering=True, **settings))


def table_console() -> Console:
    """A console for tables: as wide as the terminal, or one row a line if a program reads it."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000
    return console


def print_table(console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; if it is too wide, each row as a table of its own, under its first cell."""
    table = _table(titles, rows)
    options = console.options.update(max_width=1000)  # or it would be cut to the console's
    if console.measure(table, options=options).maximum <= console.width:
        console.print(table)
        return
    for first, *cells in rows:
        console.print(first, markup=False, soft_wrap=True)
        console.print(_table((), [pair for pair in zip(titles[1:], cells, strict=True) if pair[1]]))


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The first column to the left, the others to the right; without titles no header."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=bool(titles))
    for number in range(len(rows[0])):
        title = titles[number] if titles else ""
        table.add_column(title, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def write_file(path: Path, content: bytes, flag: str = "") -> None:
    """Write a file whole or not at all; ConfigError, with the flag that names it, if that fails."""
    from simtrain.files import written_whole

    try:
        with written_whole(path) as file:
            file.write(content)
    except OSError as error:  # a full disk, a read-only one
        raise ConfigError(f"{flag} {path} cannot be written: {error.strerror}".strip()) from error
