"""A run's configuration when it is resumed: what stays the run's, and what has changed since."""

from __future__ import annotations

from typing import Any

from simtrain.config import TrainConfig, overlay, resolved

DECISIVE = (
    "task",
    "engine",
    "deterministic",
    "num_envs",
    "num_steps_per_env",
    "seed",
    "env",
    "ppo",
)
"""What decides the results of training. All else may change freely when a run is resumed: how long
to train, where the ranks are, what is saved and shown."""
_OF_ONE_COMMAND = ("resume", "resume_with_changes", "log_root", "run_name")
"""What is not taken over from the run."""

Path = tuple[str, ...]


def continued(
    default: TrainConfig, run_default: dict[str, Any], run: dict[str, Any]
) -> TrainConfig:
    """What a resumed run has where no flags are given: the task as it is now, and the run's flags.

    Args:
        default: the task's own configuration, now.
        run_default: `resolved` of the task's own configuration when the run was started.
        run: `resolved` of the run's configuration.
    """
    plain = resolved(default)
    now, then = _leaves(plain), _leaves(run_default)
    for path, value in _leaves(run).items():
        if path[0] not in _OF_ONE_COMMAND and path in now and then.get(path, value) != value:
            _set(plain, path, value)
    return overlay(default, plain)


def differences(run: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    """What differs and decides the results of training: flag -> what it was and is.

    Both are what `resolved` returns. The model is not compared, for its file may have moved.
    """
    before, after = _decisive_leaves(run), _decisive_leaves(now)
    return {
        _flag(path): f"{_shown(before, path)} in the run, {_shown(after, path)} now"
        for path in {**before, **after}
        if before.get(path, _shown) != after.get(path, _shown)
    }


def _decisive_leaves(plain: dict[str, Any]) -> dict[Path, Any]:
    leaves = _leaves({name: plain.get(name) for name in DECISIVE})
    leaves.pop(("env", "model"), None)
    return leaves


def _leaves(plain: Any, path: Path = ()) -> dict[Path, Any]:
    if not isinstance(plain, dict) or not plain:
        return {path: plain}
    return {
        below: value
        for name, item in plain.items()
        for below, value in _leaves(item, (*path, str(name))).items()
    }


def _set(plain: dict[str, Any], path: Path, value: Any) -> None:
    for name in path[:-1]:
        plain = plain[name]
    plain[path[-1]] = value


def _flag(path: Path) -> str:
    return "--" + ".".join(name for name in path if name != "params").replace("_", "-")


def _shown(leaves: dict[Path, Any], path: Path) -> str:
    return repr(leaves[path]) if path in leaves else "nothing"
