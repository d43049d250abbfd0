"""Configurations as trees of named values: for YAML, for flags, and for a resumed run."""

import copy
import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import reduce
from itertools import zip_longest
from operator import getitem
from pathlib import Path
from typing import Any, TypeVar, cast

from simtrain.errors import ConfigError, did_you_mean, flag
from simtrain.limits import (
    LARGEST_CONFIG,
    Leaves,
    check_value,
    field_types,
    leaves,
    parts_of,
    without_arrays,
)

ConfigT = TypeVar("ConfigT")

FROM_TASK = ("num_envs", "num_steps_per_env", "max_iterations", "ppo")
"""Settings of a run that its task has too, as defaults."""
POPULATION = (
    *("population", "ranks_per_member", "population_interval", "population_warm_up"),
    *("population_grace", "population_fitness", "population_selection", "population_share"),
    *("population_tournament_size", "population_mutate", "population_mutations"),
)
"""Settings of a population, which decide only where there is one."""
DECISIVE = ("task", "engine", "deterministic", *FROM_TASK[:2], "seed", "env", "ppo")
"""Settings that decide the results of training; all others may change when a run is resumed."""
CONFIG_DIGEST = "config_sha256"
"""Where a checkpoint's ``infos`` have its `config_digest`."""
_LINE = 24  # bytes of a line of config.yaml besides its value, at most
_TERM = re.compile(r"^simtrain\.mdp[.\w]*:")
_OF_ONE_COMMAND = ("resume", "resume_with_changes", "log_root", "run_name")  # not taken over


def as_plain(value: Any) -> Any:
    """A configuration as mappings, lists and scalars, for YAML; functions become their names."""
    value = without_arrays(value)
    parts = parts_of(value)
    if parts is not None:
        return {name: as_plain(part) for name, part in parts.items()}
    if isinstance(value, tuple | list):
        return [as_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Enum):
        return value.name
    return function_name(value) if callable(value) else value


def check_storable(config: Any) -> None:
    """Raise ConfigError, which names the flag, for a value that config.yaml cannot store."""
    plain, sizes = resolved(config), {}
    for path, value in leaves(plain).items():
        sizes[path] = 0
        for item in _items(value):
            sizes[path] += _LINE + len(str(item))
            if not isinstance(item, str | int | float | None):
                text = f"{flag(*path)} has {item!r:.60}, which config.yaml cannot store"
                allowed = "numbers, texts, paths, enums and functions, and tuples and dicts of them"
                raise ConfigError(f"{text}; it stores {allowed}")
    if sum(sizes.values()) > LARGEST_CONFIG:
        path = max(sizes, key=sizes.__getitem__)
        text = f"{flag(*path)} has more than config.yaml stores, {LARGEST_CONFIG >> 10} KiB"
        raise ConfigError(f"{text}; give the term the path of a file to read")
    back = leaves(resolved(overlay(config, plain)))
    for path, value in leaves(plain).items():
        if repr(back.get(path)) != repr(value):
            text = f"{flag(*path)} is {value!r:.60}, and {back.get(path)!r:.60} if it is read back"
            raise ConfigError(f"{text}: name its parts in another way")


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for item in value:
            yield from _items(item)
    elif isinstance(value, dict):
        yield from _items([*value, *value.values()])
    else:
        yield value


def resolved(config: Any) -> dict[str, Any]:
    """A `TrainConfig` as `as_plain` has it, every value once: the run's own, not the task's."""
    plain: dict[str, Any] = as_plain(config)
    for name in (*FROM_TASK, "num_envs_on_gpu"):
        del plain["env"][name]
    return plain


def overlay(default: ConfigT, plain: Any) -> ConfigT:
    """A copy of `default` with the values of `plain`, from `as_plain`; functions stay the same.

    TypeError for a value of another kind than in `default`; `check` looks closer.
    """
    result: Any = plain
    default = without_arrays(default)
    parts = parts_of(default)
    if isinstance(default, dict):
        if isinstance(plain, dict):
            terms = any(map(dataclasses.is_dataclass, default.values()))
            if terms and (gone := sorted(plain.keys() - default.keys())):
                raise TypeError(f"the task has no term {gone[0]!r}")
            result = {name: overlay(default.get(name), item) for name, item in plain.items()}
            for name in default.keys() & result.keys():
                if default[name] is not None and _kind(default[name]) != _kind(result[name]):
                    raise TypeError(f"{name} cannot be {plain[name]!r:.60}")
    elif parts is not None and plain is not None:
        make: Any = type(default)
        if not isinstance(plain, dict):
            raise TypeError(f"a {make.__name__} cannot be {plain!r:.60}")
        result = make(**{n: overlay(p, plain[n]) if n in plain else p for n, p in parts.items()})
    elif isinstance(default, Enum):
        result = plain if isinstance(plain, Enum) else type(default)[plain]
    elif callable(default) and _public_name(plain) == function_name(default):
        result = default
    elif callable(default) or isinstance(default, Path):
        result = Path(plain)
    elif isinstance(plain, list | tuple):
        of = default if isinstance(default, list | tuple) else ()
        result = tuple(overlay(d, item) for d, item in zip_longest(of[: len(plain)], plain))
    return cast(ConfigT, result)


def with_overrides(config: ConfigT, overrides: Mapping[str, Any]) -> ConfigT:
    """A copy of a configuration with other values: ``{"rewards.upright.weight": 2.0}``.

    ConfigError for a name that it does not have, as flags call it, or a value of another kind.
    """
    result: Any = copy.deepcopy(config)
    by_flag = {flag(*path): path for path in leaves(config, suppressed=False)}
    paths = {name.replace("_", "-"): path for name, path in by_flag.items()}
    for name, value in overrides.items():
        path = paths.get(flag(name).replace("_", "-"))
        if path is None:
            near = did_you_mean(flag(name), by_flag).replace("'--", "'")
            raise ConfigError(f"there is no setting {name!r}{near}")
        value = tuple(value) if isinstance(value, list) else value
        *above, last = path
        parent = reduce(lambda tree, part: (parts_of(tree) or {})[part], above, result)
        if isinstance(parent, dict):
            if parent[last] is not None and _kind(parent[last]) != _kind(value):
                raise ConfigError(f"{name} cannot be {value!r:.60}; it is {parent[last]!r:.60}")
            parent[last] = value
        else:
            kind: Any = type(parent)
            if isinstance(value, str) and isinstance(getattr(parent, last), Path):
                value = Path(value)
            try:
                check_value(value, field_types(kind)[last], *path)
            except ConfigError as error:
                raise ConfigError(f"{name}{str(error).removeprefix(flag(*path))}") from error
            setattr(parent, last, value)
    return cast(ConfigT, result)


def continued(default: ConfigT, run_default: dict[str, Any], run: dict[str, Any]) -> ConfigT:
    """The configuration of a resumed run without flags: `default`, the task's now, and its flags.

    `run` is `resolved` of the run's, `run_default` of the task's when the run was started.
    """
    plain = resolved(default)
    now, then = leaves(plain), leaves(run_default)
    given = {p: value for p, value in leaves(run).items() if then.get(p, value) != value}
    kept = {p: v for p, v in given.items() if p in now and p[0] not in _OF_ONE_COMMAND}
    return overlay(default, set_leaves(plain, kept))


def set_leaves(plain: dict[str, Any], values: Leaves) -> dict[str, Any]:
    """`plain` with other values, which are set in place; KeyError for one that it does not have."""
    for path, value in values.items():
        parent = reduce(getitem, path[:-1], plain)
        if path[-1] not in parent:
            raise KeyError(flag(*path))
        parent[path[-1]] = value
    return plain


def differences(run: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    """Settings that decide the results and differ: flag -> its values; both are from `resolved`."""
    names = DECISIVE + (POPULATION if run.get("population") or now.get("population") else ())
    names += ("distillation",) if run.get("teacher") or now.get("teacher") else ()
    before, after = (leaves({name: tree.get(name) for name in names}) for tree in (run, now))
    # The model's file may have moved, and how a robot is reflected decides only where that is used.
    equal = [("env", "model")]
    if not any(value for path, value in after.items() if path[:2] == ("ppo", "symmetry")):
        equal.append(("env", "symmetry"))
    return {
        flag(*path): f"{_shown(before, path)} in the run, {_shown(after, path)} now"
        for path in {**before, **after}
        if _public_name(before.get(path, _shown)) != _public_name(after.get(path, _shown))
        and not any(path[: len(start)] == start for start in equal)
    }


def config_digest(plain: Any) -> str:
    """A SHA-256, in hexadecimal digits, of the `resolved` values that decide the results.

    Where the model's file lies is no part of it, for runs are moved.
    """
    names = (*DECISIVE, "distillation") if plain.get("teacher") else DECISIVE
    tree = {name: plain.get(name) for name in names}
    tree["env"] = {name: value for name, value in tree["env"].items() if name != "model"}
    return hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()


def checkpoint_infos(config: Any, env_steps: int) -> dict[str, Any]:
    """The plain values of a checkpoint of `TrainConfig` `config` after so many steps."""
    digest = config_digest(resolved(config))
    return {"task": config.task, "env_steps": env_steps, CONFIG_DIGEST: digest}


def _kind(value: Any) -> Any:
    """The kind of a value: equal for int and float, and for one name and several names."""
    value = without_arrays(value)
    if isinstance(value, tuple | list):
        kinds = {_kind(item) for item in value}
        return str if kinds == {str} else frozenset(kinds)
    return float if type(value) is int else type(value)


def function_name(function: Any) -> str:
    """``module:name`` of a function or class; for a ready-made term ``simtrain.mdp:name``."""
    function = getattr(function, "func", function)  # of a functools.partial
    return str(_public_name(f"{function.__module__}:{function.__qualname__}"))


def _public_name(name: Any) -> Any:
    """The name of a ready-made term without its module, which may have been another one once."""
    return _TERM.sub("simtrain.mdp:", name) if isinstance(name, str) else name


def _shown(values: Leaves, path: tuple[str, ...]) -> str:
    return repr(values[path]) if path in values else "nothing"
