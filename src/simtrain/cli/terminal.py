"""Common parts of commands: exit codes and messages at the end, printing, and writing files."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import Signals
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from simtrain.errors import ConfigError, DivergenceError, ExportError, RankError, SimulationError
from simtrain.launch.processes import exit_code, heeded_signals, limit_spinning

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

DONE, FAILED, MISTAKE, INTERRUPTED = 0, 1, 2, 130


def run_command(command: Callable[[], int], *, outlives_output: bool = False) -> NoReturn:
    """Run a command and exit with its code; known errors end with a message and no traceback.

    A failed write to standard output or error ends the command, unless it `outlives_output`: the
    disk is full, or the terminal or the reader of a pipe is gone.
    """
    limit_spinning()
    open_standard_streams(lossy=outlives_output)
    try:
        code = command()
    except (ConfigError, SimulationError, RankError, DivergenceError, ExportError) as error:
        from rich.console import Console  # it takes its time

        from simtrain.run.console import fitted

        print(fitted(f"error: {error}", Console(stderr=True)), file=sys.stderr)
        code = MISTAKE if isinstance(error, ConfigError) else FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone (`... | head`), and a message would find none.
        sys.stderr.close()
        code = FAILED
    try:
        sys.stdout.flush()
    except OSError:
        # Or Python would try again, print an error, and exit with a code of its own.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or FAILED
    sys.exit(code)


def end_at_once_on_signals(*signals: Signals) -> None:
    """Let these signals, or all that ask to stop, end this process unless it is `interruptible`."""
    # An exception would not do: some imports catch what is raised in them.
    for number in signals or heeded_signals():
        signal.signal(number, _end_at_once)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within, stop signals raise: half a file is removed, a terminal gets its cursor."""
    stops = [number for number in heeded_signals() if number != Signals.SIGUSR1]
    before = {number: signal.signal(number, _raise) for number in stops}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(exit_code(Signals(number)))


def _end_at_once(number: int, frame: FrameType | None) -> None:
    with suppress(OSError, RuntimeError):  # closed, or in the middle of writing
        sys.stdout.flush()
    os._exit(exit_code(Signals(number)))


class _LossyFile(io.FileIO):
    """A file that drops output that cannot be written, and goes on with later output."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


def open_standard_streams(*, lossy: bool) -> None:
    """Open those standard streams that are closed (``>&-``): files would take their descriptors.

    With `lossy`, output that standard output and error cannot write is dropped without an error.
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
    """A console for tables: as wide as the terminal, or one row a line if a program reads it.

    Text is shown as it is, for names and units can look like rich's markup.
    """
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
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
        console.print(first, soft_wrap=True)
        console.print(
            _table(("", ""), [pair for pair in zip(titles[1:], cells, strict=True) if pair[1]])
        )


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The first column to the left, the others to the right; without titles no header."""
    from rich.table import Column, Table

    heads = [Column(title, justify="right", overflow="fold") for title in titles]
    heads[0].justify = "left"
    table = Table(*heads, box=None, pad_edge=False, padding=(0, 3, 0, 0), show_header=any(titles))
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
