"""The errors that a command turns into an exit code and a message, without a traceback.

It also reports mistakes in a task's code: where, in which term, and as warnings.
"""

import difflib
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

_IN_PATTERNS = frozenset("*+?|()[]\\")
_MOST_LISTED = 12  # names in a message
_MISSING = """\
a term reads MuJoCo's fields of all environments as env.bind("qpos"), env.bind("ctrl") and so on;
docs/coming_from.md lists what to write for env.scene, env.sim.data and env.command_manager"""
_warned: set[tuple[object, ...]] = set()


class ConfigError(ValueError):
    """A mistake in the command, the configuration or a task file, and what to type; exit code 2."""


class SimulationError(RuntimeError):
    """MuJoCo failed in one or more environments; names them, with MuJoCo's message. Exit code 1."""


class RankError(RuntimeError):
    """A job of several ranks failed; says which rank, and what happened to it. Exit code 1."""


class DivergenceError(RuntimeError):
    """Numbers stopped being finite, and training cannot go on; raised by all ranks. Exit code 1."""


class ExportError(RuntimeError):
    """An exported policy does not act as the trained one; nothing was written. Exit code 1."""


def call_term(name: str, function: Callable[..., Any], *arguments: Any, **params: Any) -> Any:
    """Call a function of a task's author; its errors name the term."""
    try:
        return function(*arguments, **params)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
    except Exception as error:
        error.add_note(f"in the term {name}")
        if isinstance(error, AttributeError) and error.obj is not None:
            for env in arguments[:1]:
                if error.obj is env or error.obj is getattr(env, "sim", None):
                    error.add_note(_MISSING)
        raise


@contextmanager
def config_errors_of(where: str) -> Iterator[None]:
    """Within, messages of ConfigErrors begin with `where` the mistake is."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def what_raised(error: BaseException) -> str:
    """``"raised ValueError: ... (<file>:<line>)"``, for an error in a task author's code."""
    what = "".join(traceback.format_exception_only(error)).strip()
    line = traceback.extract_tb(error.__traceback__)[-1]
    return f"raised {what} ({line.filename}:{line.lineno})"


@contextmanager
def warnings_once(*, quiet: bool = False) -> Iterator[None]:
    """Within, print each warning once in this process; none if `quiet`.

    For tasks and their models, which are made again and again, and by every rank.
    """
    try:
        with warnings.catch_warnings(record=True) as caught:
            yield
    finally:
        for warning in () if quiet else caught:
            where = warning.category, warning.filename, warning.lineno
            if (key := (str(warning.message), *where)) not in _warned:
                _warned.add(key)
                warnings.warn_explicit(warning.message, *where)


def flag(*path: str) -> str:
    """The flag of a value of the configuration, such as ``--env.rewards.upright.weight``."""
    # A term's parameters are flags of the term itself, as are a group's terms of the group.
    unnamed = ("params", "terms") if "observations" in path[:2] else ("params",)
    # A pattern, such as ".*_hip", is shown as the task has it, and its first dot once.
    parts = (n if _IN_PATTERNS & {*n} else n.replace("_", "-") for n in path if n not in unnamed)
    return f"--{'.'.join(parts).replace('..', '.')}"


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """``" (did you mean 'x'?)"`` with the names nearest to `name`, or an empty string."""
    near = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(repr(n) for n in near)}?)" if near else ""


def choices(name: str, names: Iterable[str]) -> str:
    """A hint with valid names instead of `name`: ``" (did you mean 'x'?); there are x, y"``."""
    known = list(names)
    shown = known
    if len(known) > _MOST_LISTED:
        shown = difflib.get_close_matches(name, known, n=_MOST_LISTED, cutoff=0.0)
    listed = ", ".join(one or "(unnamed)" for one in shown) or "none"
    if len(known) > len(shown):
        listed += f" and {len(known) - len(shown)} more"
    return f"{did_you_mean(name, known)}; there are {listed}"
