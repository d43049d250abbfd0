"""From a command line to a configuration, with tyro."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import tyro

from simtrain.cli.tyro_errors import one_line_errors
from simtrain.config_tree import flags_of

ConfigT = TypeVar("ConfigT")


def parse_flags(prog: str, default: ConfigT, arguments: Sequence[str]) -> ConfigT:
    """A copy of `default` with the values that the flags in `arguments` give.

    Raises:
        ConfigError: an unknown flag or a value of the wrong kind.
        SystemExit: ``--help`` was printed.
    """
    with one_line_errors(lambda: flags_of(default)):
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
