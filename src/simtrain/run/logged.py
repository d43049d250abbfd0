"""The logged data of a run: metrics as columns, settings, and exchanges of a population."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simtrain.errors import ConfigError, flag
from simtrain.files import damage_as_config_error, read_file
from simtrain.limits import leaves
from simtrain.run.directory import LINEAGE, MEMBERS, no_run, read_config_file
from simtrain.run.metric_tags import FINISHED_ENVS, TAG, of_episodes, phase_tags
from simtrain.run.metrics import METRICS, parse_row

Axis = Literal["env_steps", "wall_s"]
"""The x-axis of curves: environment steps of all ranks, or seconds since the start."""
REST = "rest"
"""Seconds of an iteration that are in no ``Perf/*_time``, where its phases were not timed."""


class NothingLoggedError(ConfigError):
    """A run has no complete iteration yet."""


@dataclass(frozen=True)
class Run:
    """The data that a run logged so far."""

    path: Path
    config: dict[str, Any]
    devices: list[str]  # of each rank
    commit: str | None
    """Short hash of the repository's commit, with a + for changes since; None outside of one."""
    columns: dict[str, np.ndarray]
    """Every tag, and ``iteration``, ``env_steps``, ``wall_s``: a number an iteration, NaN where
    there is none. Not empty."""
    missing: int = 0
    """Iterations that metrics.jsonl lacks, for it is damaged."""

    @property
    def name(self) -> str:
        """The run directory's own name."""
        return self.path.resolve().name

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Flag -> value, of the flags that decide how a policy learns, and how fast."""
        kinds = sorted({device.split()[-1].split(":")[0] for device in self.devices})
        engine = self.config.get("engine", "auto")
        if engine == "auto":
            engine = "warp" if "cuda" in kinds else "mujoco"
        env = dict(self.config.get("env", {}))
        if isinstance(env.get("model"), str):
            env["model"] = Path(env["model"]).name  # the same task in another checkout
        settings = {"ranks": len(self.devices), "device": ", ".join(kinds), "engine": engine}
        settings |= {
            name: self.config.get(name) for name in ("num_envs", "num_steps_per_env", "ppo")
        }
        values = leaves({**settings, "env": env}).items()
        return {flag(*path).removeprefix("--"): v for path, v in values if path[-1] != "params"}

    def series(self, tag: str, axis: Axis) -> tuple[np.ndarray, np.ndarray]:
        """Where `tag` was logged and its finite values there, two arrays of one length."""
        y = self.columns.get(tag, np.empty(0))
        x = self.columns[axis][: len(y)]
        evaluated = self.columns.get("Eval/iteration")
        if len(y) and tag.startswith("Eval/") and evaluated is not None and axis == "env_steps":
            # An evaluation beside training is of an older policy than that of its line.
            x = np.interp(evaluated, self.columns["iteration"], x)
        known = np.isfinite(y) & np.isfinite(x)
        return x[known], y[known]

    def summary(self, tag: str, of: Callable[[np.ndarray], float]) -> float | None:
        """`of` the values of `tag`, such as `last`, `np.max` or `np.median`; None without any.

        Means over episodes count once they are over those of all environments.
        """
        if tag not in self.columns:
            return None
        values = self.columns[tag]
        known = np.isfinite(values)
        if of_episodes(tag) and FINISHED_ENVS in self.columns:
            known &= self.columns[FINISHED_ENVS] >= 1.0
        return float(of(values[known])) if known.any() else None


def members_of(run: Path) -> list[Path]:
    """The folders of a population's members, in order; none if the run is of no population."""
    folders = (run / MEMBERS).glob("[0-9]*") if (run / LINEAGE).exists() else ()
    members = (folder for folder in folders if folder.name.isdecimal())
    return sorted(members, key=lambda folder: int(folder.name))


def read_run(path: Path) -> Run:
    """The configuration and the metrics of a run directory; ConfigError if it is none.

    A line that is incomplete, as the last one is where training was killed, is left out. Where a
    run went back to a checkpoint, the iterations after that count.
    """
    if path.is_file():
        raise ConfigError(f"{path} is a file; name its run directory, {path.parent}")
    if not (path / "config.yaml").exists():
        raise no_run(path)
    content = read_config_file(path)
    metrics = path / METRICS
    lines = read_file(metrics, "").splitlines(keepends=True) if metrics.exists() else []
    rows: list[dict[str, Any]] = []
    for row in filter(None, map(parse_row, lines)):
        while rows and rows[-1]["iteration"] >= row["iteration"]:
            rows.pop()
        rows.append(row)
    if not rows:
        raise NothingLoggedError(f"the run {path} has no complete iteration yet (metrics.jsonl)")
    missing = int(rows[-1]["iteration"]) - len(rows)
    if lines[-1].endswith(b"\n") and parse_row(lines[-1]) is None:
        missing += 1
    with damage_as_config_error(f"{path / 'config.yaml'} is not the configuration of a run"):
        git = content.get("git") or {}
        changes = "+" if git.get("changed") else ""
        commit = f"{git['commit'][:8]}{changes}" if "commit" in git else None
        devices = [str(device) for device in content.get("devices") or ["cpu"]]
        run = Run(path, content["config"], devices, commit, _columns(rows), missing)
        json.dumps(run.settings, default=str)
    return run


def read_lineage(run: Path) -> list[dict[str, Any]]:
    """The exchanges of a population's run, in order; ConfigError if the file is damaged."""
    path = run / LINEAGE
    with damage_as_config_error(f"{path} is damaged"):
        return [json.loads(line) for line in read_file(path, "").splitlines()]


def last(values: np.ndarray) -> float:
    """The last of some values."""
    return float(values[-1])


def _columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    columns = {}
    for tag in dict.fromkeys(tag for row in rows for tag in row):
        values = (row.get(tag) for row in rows)
        numbers = [v if isinstance(v, float) else math.nan for v in values]
        columns[tag] = np.array(numbers, float)
    for axis in ("env_steps", "wall_s"):
        columns[axis] = np.maximum.accumulate(columns[axis])
    phases = phase_tags(list(columns))
    for tag in phases:  # phases that an iteration does not have take no time
        columns[tag] = np.nan_to_num(columns[tag])
    if phases and not phases[0].startswith(TAG):  # those leave no rest
        rest = np.diff(columns["wall_s"], prepend=0.0) - sum(columns[tag] for tag in phases)
        columns[REST] = np.maximum(rest, 0.0)
    return columns
