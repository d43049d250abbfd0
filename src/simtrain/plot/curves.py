"""Learning curves as numbers: what runs logged, and means over runs that differ by their seed."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from simtrain.config.metric_tags import FINISHED_ENVS, TAG, of_episodes, phase_tags
from simtrain.errors import ConfigError
from simtrain.files import damage_as_config_error, read_file
from simtrain.run.directory import LINEAGE, MEMBERS, read_config_file
from simtrain.run.metrics_files import METRICS
from simtrain.run.metrics_recovery import parse_row

Axis = Literal["env_steps", "wall_s"]
"""What curves are drawn over: environment steps of all ranks, or seconds since the start."""
EVALUATED = "Eval/mean_return"
REST = "rest"
"""Seconds of an iteration that are in no ``Perf/*_time``, where its phases were not timed."""
_MAX_SETTINGS, _NONE = 4, "\N{EN DASH}"
MAX_POINTS = 200  # that a curve has at most; more are averaged
# After Okabe and Ito (2008): told apart by color-blind people too.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")


class NothingLoggedError(ConfigError):
    """A run has no complete iteration yet."""


@dataclass(frozen=True)
class Run:
    """What a run logged so far."""

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
        found = {"ranks": len(self.devices), "device": ", ".join(kinds), "engine": engine}
        found |= {name: self.config.get(name) for name in ("num_envs", "num_steps_per_env", "ppo")}
        return dict(_flatten({**found, "env": env}))

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


@dataclass(frozen=True)
class Group:
    """Runs of one task with the same settings; their seeds may differ."""

    label: str  # how it differs from the other groups of its task
    runs: tuple[Run, ...]
    color: str = COLORS[0]
    settings: dict[str, str] = field(default_factory=dict)
    """Short name -> value of the settings in which the groups differ, if these are few."""

    def tags(self, prefix: str) -> list[str]:
        """All tags of its runs that begin with `prefix`, in the order of logging."""
        tags = dict.fromkeys(tag for run in self.runs for tag in run.columns)
        return [tag for tag in tags if tag.startswith(prefix)]


@dataclass(frozen=True)
class Curve:
    """A tag over several runs; arrays of one length, ``x`` ascending."""

    x: np.ndarray
    mean: np.ndarray  # over the runs that have come so far; 0 where none has logged it
    low: np.ndarray
    high: np.ndarray
    count: np.ndarray  # of these runs, on average over the points that one of these stands for


def members_of(run: Path) -> list[Path]:
    """The folders of a population's members, in order; none if the run is of no population."""
    found = (run / MEMBERS).glob("[0-9]*") if (run / LINEAGE).exists() else ()
    return sorted(found, key=lambda folder: int(folder.name))


def read_run(path: Path) -> Run:
    """The configuration and the metrics of a run directory; ConfigError if it is none.

    A line that is incomplete, as the last one is where training was killed, is left out. Where a
    run went back to a checkpoint, what it did after that counts.
    """
    if path.is_file():
        raise ConfigError(f"{path} is a file; name its run directory, {path.parent}")
    if not path.exists():
        raise ConfigError(f"there is no run {path}")
    if not (path / "config.yaml").exists():
        found = (file for deep in ("*", "*/*") for file in path.glob(f"{deep}/{METRICS}"))
        below = sorted({file.parent for file in found})
        hint = f"; there are runs below it, such as {below[-1]}" if below else ""
        raise ConfigError(f"{path} is no run directory: it has no config.yaml{hint}")
    content = read_config_file(path)
    metrics = path / METRICS
    lines = read_file(metrics, "").splitlines(keepends=True) if metrics.exists() else []
    rows = _rows(lines)
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


def group_runs(runs: Sequence[Run]) -> dict[str, list[Group]]:
    """Runs by task and, within it, by settings; in the order given."""
    tasks: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        key = json.dumps(run.settings, sort_keys=True, default=str)
        tasks.setdefault(run.config["task"], {}).setdefault(key, []).append(run)
    return {task: _labelled(list(groups.values())) for task, groups in tasks.items()}


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Settings that are not the same in all `runs`: flag -> the value of each, None for none."""
    flags = dict.fromkeys(flag for run in runs for flag in run.settings)
    table = {flag: [run.settings.get(flag) for run in runs] for flag in flags}
    return {flag: values for flag, values in table.items() if any(v != values[0] for v in values)}


def aggregate(runs: Sequence[Run], tags: Iterable[str], axis: Axis) -> dict[str, Curve]:
    """Tag -> its mean over `runs` and its range; empty if no run has any of the tags.

    All curves have the points of any run and tag. A run is interpolated as far as it came.
    """
    series = {tag: [run.series(tag, axis) for run in runs] for tag in tags}
    points = [x for found in series.values() for x, _ in found]
    x = np.unique(np.concatenate([np.empty(0), *points]))
    size = math.ceil(len(x) / MAX_POINTS)
    curves = {}
    for tag, found in series.items() if len(x) else ():
        nothing = [np.full(len(x), math.nan)]
        rows = [np.interp(x, *s, math.nan, math.nan) for s in found if len(s[0])] or nothing
        values = np.ma.masked_invalid(rows)
        parts = (values.mean(0), values.min(0), values.max(0), values.count(0))
        arrays = (np.ma.filled(part, 0.0) for part in (x, *parts))
        means = ([a[i : i + size].mean() for i in range(0, len(x), size)] for a in arrays)
        curves[tag] = Curve(*map(np.array, means))
    return curves


def last(values: np.ndarray) -> float:
    """The last of some values."""
    return float(values[-1])


def number(value: float) -> str:
    """A number in few characters: 1.5M, 120k, 0.0123."""
    text = f"{value:.3g}" if value == 0.0 or abs(value) >= 0.001 else f"{value:.0e}"
    for size, letter in ((1e3, "k"), (1e6, "M"), (1e9, "G")):
        if abs(value) >= 0.9995 * size:
            text = f"{value / size:.3g}{letter}"
    return text.replace("-", "\N{MINUS SIGN}")


def _labelled(groups: list[list[Run]]) -> list[Group]:
    """Groups of runs of one task, named by a few settings that differ, or by the runs."""
    first = [runs[0] for runs in groups]
    different = dict(zip(_short_names(found := differences(first)), found.values(), strict=True))
    names = [str(run.config.get("run_name") or "") for run in first]
    if not all(names) or len(set(names)) < len(names):
        names = [run.name for run in first]
    if len(groups) == 1:
        (runs,) = groups
        return [Group(runs[0].name if len(runs) == 1 else f"{len(runs)} runs", tuple(runs))]
    labelled = []
    for i, runs in enumerate(groups):
        label, settings = names[i], {}
        if len(different) <= _MAX_SETTINGS:
            settings = {name: _shown(values[i]) for name, values in different.items()}
            label = ", ".join(f"{name} {value}" for name, value in settings.items())
        label += f" ({len(runs)} runs)" if len(runs) > 1 else ""
        labelled.append(Group(label, tuple(runs), COLORS[i % len(COLORS)], settings))
    return labelled


def _short_names(flags: Iterable[str]) -> list[str]:
    """The last part of each flag, or as many as tell it from the others."""
    split = [flag.split(".") for flag in flags]
    names = []
    for parts in split:
        sizes = range(1, len(parts))
        own = (n for n in sizes if sum(parts[-n:] == other[-n:] for other in split) == 1)
        size = next(own, len(parts))
        if parts[-1] == "weight":  # whose?
            size = max(size, min(2, len(parts)))
        names.append(".".join(parts[-size:]))
    return names


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_shown, value))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if is_number else _NONE if value is None else str(value)


def _rows(lines: list[bytes]) -> list[dict[str, Any]]:
    """The complete lines of metrics.jsonl; those that a resumed run wrote anew only once."""
    rows: list[dict[str, Any]] = []
    for row in filter(None, map(parse_row, lines)):
        while rows and rows[-1]["iteration"] >= row["iteration"]:
            rows.pop()
        rows.append(row)
    return rows


def _columns(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    columns = {}
    for tag in dict.fromkeys(tag for row in rows for tag in row):
        values = (row.get(tag) for row in rows)
        numbers = [v if isinstance(v, float) else math.nan for v in values]
        columns[tag] = np.array(numbers, float)
    for axis in ("env_steps", "wall_s"):
        columns[axis] = np.maximum.accumulate(columns[axis])
    phases = phase_tags(list(columns))
    for tag in phases:  # what an iteration did not do took no time
        columns[tag] = np.nan_to_num(columns[tag])
    if phases and not phases[0].startswith(TAG):  # those leave no rest
        rest = np.diff(columns["wall_s"], prepend=0.0) - sum(columns[tag] for tag in phases)
        columns[REST] = np.maximum(rest, 0.0)
    return columns


def _flatten(value: Any, flag: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a configuration by the names of their flags."""
    if not isinstance(value, dict) or not value:
        yield flag, value
        return
    for name, item in value.items():
        if name != "params":
            yield from _flatten(item, f"{flag}.{name}".lstrip(".").replace("_", "-"))
        elif item:  # a term's parameters are flags of the term itself
            yield from _flatten(item, flag)
