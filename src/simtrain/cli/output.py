"""Printing and writing that commands share."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from simtrain.sim import EngineName


def table_console() -> Console:
    """A console for tables: as wide as the terminal, or one row a line if a program reads it."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000
    return console


def announced_kernels(engine: EngineName) -> AbstractContextManager[None]:
    """Within, it is printed when the engine's kernels are compiled, which takes minutes."""
    if engine == "mujoco":
        return nullcontext()

    from simtrain.sim.warp_compile import compilation_announced

    return compilation_announced(print)


def write_file(path: Path, content: bytes, flag: str = "") -> None:
    """Write a file whole or not at all; ConfigError, with the flag that names it, if that fails."""
    from simtrain.run.directory import written_whole

    try:
        with written_whole(path) as file:
            file.write(content)
    except OSError as error:  # a full disk, a read-only one
        raise ConfigError(f"{flag} {path} cannot be written: {error.strerror}".strip()) from error
