"""Configurations as trees of named values: for YAML, for flags, and for a resumed run."""

import dataclasses
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, TypeVar, cast

from simtrain.errors import flag

ConfigT = TypeVar("ConfigT")
Leaves = dict[tuple[str, ...], Any]  # the names that lead to a value -> the value

FROM_TASK = ("num_envs", "num_steps_per_env", "max_iterations", "ppo")
"""Settings of a run that its task has too, as defaults."""
DECISIVE = ("task", "engine", "deterministic", *FROM_TASK[:2], "seed", "env", "ppo")
"""Settings that decide the results of training; all others may change when a run is resumed."""
_OF_ONE_COMMAND = ("resume", "resume_with_changes", "log_root", "run_name")  # not taken over


def as_plain(value: Any) -> Any:
    """A configuration as mappings, lists and scalars, for YAML; functions become their names."""
    parts = _parts(value)
    if parts is not None:
        return {name: as_plain(part) for name, part in parts.items()}
    if isinstance(value, tuple | list):
        return [as_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return _function_name(value) if callable(value) else value


def resolved(config: Any) -> dict[str, Any]:
    """A `TrainConfig` as `as_plain` has it, every value once: the run's own, not the task's."""
    plain: dict[str, Any] = as_plain(config)
    for name in (*FROM_TASK, "num_envs_on_gpu"):
        del plain["env"][name]
    return plain


def overlay(default: ConfigT, plain: Any) -> ConfigT:
    """A copy of `default` with the values of `plain`, from `as_plain`; functions stay the same."""
    result: Any = plain
    parts = _parts(default)
    if isinstance(default, dict):
        if isinstance(plain, dict):
            result = {name: overlay(default.get(name), item) for name, item in plain.items()}
    elif parts is not None and plain is not None:
        make: Any = type(default)
        result = make(**{n: overlay(p, plain[n]) if n in plain else p for n, p in parts.items()})
    elif callable(default) and plain == _function_name(default):
        result = default
    elif callable(default) or isinstance(default, Path):
        result = Path(plain)
    elif isinstance(plain, list):
        result = tuple(overlay(None, item) for item in plain)
    return cast(ConfigT, result)


def leaves(tree: Any, path: tuple[str, ...] = (), *, suppressed: bool = True) -> Leaves:
    """Every value below `path`, of fields without flags only if `suppressed`; `{}` is a value."""
    parts = _parts(tree, suppressed)
    if not parts:
        return {path: tree}
    below = (leaves(p, (*path, str(n)), suppressed=suppressed) for n, p in parts.items())
    return {at: value for found in below for at, value in found.items()}


def flags_of(config: object) -> list[str]:
    """All flags of a configuration."""
    return [flag(*path) for path in leaves(config, suppressed=False) if path[-1] != "params"]


def continued(default: ConfigT, run_default: dict[str, Any], run: dict[str, Any]) -> ConfigT:
    """The configuration of a resumed run without flags: `default`, the task's now, and its flags.

    `run` is `resolved` of the run's, `run_default` of the task's when the run was started.
    """
    plain = resolved(default)
    now, then = leaves(plain), leaves(run_default)
    for path, value in leaves(run).items():
        if path[0] not in _OF_ONE_COMMAND and path in now and then.get(path, value) != value:
            reduce(getitem, path[:-1], plain)[path[-1]] = value
    return overlay(default, plain)


def differences(run: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    """Settings that decide the results and differ: flag -> its values; both are from `resolved`."""
    # The model is not compared, for its file may have moved.
    before, after = (leaves({name: tree.get(name) for name in DECISIVE}) for tree in (run, now))
    return {
        flag(*path): f"{_shown(before, path)} in the run, {_shown(after, path)} now"
        for path in {**before, **after}
        if before.get(path, _shown) != after.get(path, _shown) and path != ("env", "model")
    }


def _parts(value: Any, suppressed: bool = True) -> dict[str, Any] | None:
    """The named parts of a dataclass or a mapping; None for anything else."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if suppressed or not str(field.type).startswith("Suppress")
        }
    return value if isinstance(value, dict) else None


def _function_name(function: Any) -> str:
    function = getattr(function, "func", function)  # of a functools.partial
    return f"{function.__module__}:{function.__qualname__}"


def _shown(values: Leaves, path: tuple[str, ...]) -> str:
    return repr(values[path]) if path in values else "nothing"
