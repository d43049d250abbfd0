"""The errors that a command turns into an exit code and a message, without a traceback."""

import difflib
from collections.abc import Callable, Iterable
from typing import Any


class ConfigError(ValueError):
    """A mistake in the command, the configuration or a task file, and what to type; exit code 2."""


class SimulationError(RuntimeError):
    """MuJoCo failed in one or more environments; names them and what MuJoCo said. Exit code 1."""


class RankError(RuntimeError):
    """A job of several ranks failed; says which rank, and what happened to it. Exit code 1."""


class DivergenceError(RuntimeError):
    """Numbers stopped being finite, and training cannot go on; raised by all ranks. Exit code 1."""


class ExportError(RuntimeError):
    """An exported policy does not act as the trained one; nothing was written. Exit code 1."""


def call_term(name: str, function: Callable[..., Any], *arguments: Any, **params: Any) -> Any:
    """Call what a task's author wrote; what it raises says in a note which term it is."""
    try:
        return function(*arguments, **params)
    except Exception as error:
        error.add_note(f"in the term {name}")
        raise


def flag(*path: str) -> str:
    """How a value of the configuration is typed, as ``--env.rewards.upright.weight``."""
    # A term's parameters are flags of the term itself, as are a group's terms of the group.
    unnamed = ("params", "terms") if "observations" in path[:2] else ("params",)
    name = ".".join(name for name in path if name not in unnamed)
    return f"--{name.replace('_', '-').replace('..', '.')}"  # a name may be a pattern, ".*"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` with the names nearest to `name`, or an empty string."""
    near = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(repr(n) for n in near)}?)" if near else ""
