"""``uv run simtrain export <run, checkpoint or task>``: a policy as ONNX, for PyTorch, to ship."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from simtrain.algorithms.cfg import Flag
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.terminal import DONE, FAILED, interruptible, print_table, table_console
from simtrain.errors import ConfigError
from simtrain.limits import Limits, Repetitions

if TYPE_CHECKING:
    from simtrain.training.saved_policy import SavedPolicy

Format = Literal["onnx", "pt2", "torchscript"]
_WHAT = "run, checkpoint or task"


@dataclass
class ExportConfig:
    """Write a trained policy as files for a robot, with the data that the robot's program needs."""

    output: Path | None = None
    """Folder for policy.onnx, policy.pt2, policy.json and the other files; None for <run>/exported,
    or for exported/<task> if it is the shipped policy of a task."""
    formats: Annotated[tuple[Format, ...], Limits(required=True)] = ("onnx", "pt2")
    """Formats besides policy.json: onnx, pt2 (a program of torch.export), or torchscript (written
    as policy.pt; PyTorch has deprecated it)."""
    verify: Flag = False
    """Run the written files in plain MuJoCo, without simtrain, and compare them with the policy: in
    the task's physics, and with other solvers, step sizes and masses, delay and noise."""
    verify_only: Flag = False
    """Write nothing, and verify existing files, such as an edited policy.json. No code from their
    folder is run."""
    verify_model: Path | None = None
    """Another model of the robot, MJCF or URDF with the same joint names, in which --verify plays
    the policy too, without delay and one control step late. The servos are those of its own model.
    """
    verify_threshold: Annotated[tuple[str, ...], Limits(required=True)] = ("0.95",)
    """Smallest fraction of its return that the policy must keep in the task's physics; for other
    conditions, add a word of their names, as in 0.95 late=0.9 heavier=0.97."""
    with_changes: Flag = False
    """Export although config.yaml has changed since the policy was trained."""
    ship: Flag = False
    """Write the policy and its figures to the folder of its task's file instead, as
    trained/<task>.pt and .yaml. In play, evaluate, export, train --init-from and train --teacher,
    the name of the task then means this policy."""
    episodes: Repetitions | None = None
    """Undisturbed episodes: for the figures of --ship, 200 by default; for --verify, under each
    condition, by default 10 to 40, until the kept fraction is known to ± 0.02."""


def export(arguments: Sequence[str]) -> int:
    """Parse the command line and export a policy; the exit code."""
    paths, flags = split_paths(arguments)
    config = parse_flags(f"simtrain export <{_WHAT}>", ExportConfig(), flags)
    if len(paths) != 1:
        text = f"name one {_WHAT}: `uv run simtrain export <{_WHAT}>`"
        raise ConfigError(f"{text}, not {len(paths)}" if paths else text)
    if config.ship and config.output is not None:
        raise ConfigError("--output does not go with --ship, which writes beside the task's file")
    if config.ship and (config.verify or config.verify_only):
        name = "--verify" if config.verify else "--verify-only"
        raise ConfigError(
            f"{name} does not go with --ship; verify first: `uv run simtrain export <run>`"
        )
    if config.verify_model is not None and not (config.verify or config.verify_only):
        raise ConfigError("--verify-model is for --verify or --verify-only")
    if config.verify_model is not None and not config.verify_model.is_file():
        raise ConfigError(f"--verify-model {config.verify_model} is not a file")
    _parts(config.verify_threshold)
    if config.verify and "onnx" not in config.formats:
        raise ConfigError("--verify runs policy.onnx; leave onnx among --formats")

    # Only now, so that help and mistakes above do not wait for torch and MuJoCo.
    from simtrain.run.directory import check_folder
    from simtrain.training.saved_policy import open_policy

    saved = open_policy(paths[0])
    if saved.changed and not config.with_changes:
        raise ConfigError(f"{saved.difference}; to export it anyway, pass --with-changes True")
    if config.ship:
        return _ship(saved, config.episodes or 200)
    beside = Path("exported", saved.config.task) if saved.ships else saved.run / "exported"
    folder = config.output or beside
    if config.verify_only:
        if not (folder / "policy.json").is_file():
            raise ConfigError(f"--verify-only: there is no exported policy in {folder}")
        return _verify(saved, folder, config)
    check_folder(folder, "--output")
    if config.verify:
        _check_conditions(saved, config)

    from simtrain.deployment.export import export_policy
    from simtrain.deployment.unitree import unknown_observations
    from simtrain.run.console import fitted

    with interruptible():
        exported = export_policy(saved, folder, config.formats)
    of = exported.interface
    print(f"policy:   {saved.config.task}, iteration {saved.iteration}")
    sizes = f"{of.observation_size} observations, {of.action_size} actions"
    print(f"          {sizes}, every {of.control_period:g} s")
    for path in exported.files:
        print(f"written:  {path}")
    if (unknown := exported.unknown_to_unitree) is not None:
        text = f"unitree:  no deploy.yaml: Unitree's controllers do not support {unknown}"
        print(fitted(text, table_console()))
    elif names := unknown_observations(of):
        text = f"unitree:  Unitree's controllers lack {', '.join(names)}; see docs/deployment.md"
        print(fitted(text, table_console()))
    print(f"checked:  actions differ by at most {exported.difference:.1e} from the policy's")
    return _verify(saved, folder, config) if config.verify else DONE


def _check_conditions(saved: SavedPolicy, config: ExportConfig) -> None:
    """Raise ConfigError for another model or a condition that --verify would refuse."""
    from simtrain.deployment.conditions import conditions_of
    from simtrain.env.model import compile_model

    task, groups = saved.config.env, saved.config.ppo.actor.obs_groups
    terms = [term for group in groups for term in task.observation_groups()[group].values()]
    noise, period = any(term.noise is not None for term in terms), task.timestep * task.decimation
    names = conditions_of(compile_model(task), period, config.verify_model, noise=noise)
    _thresholds(config.verify_threshold, list(names))


def _verify(saved: SavedPolicy, folder: Path, config: ExportConfig) -> int:
    """Play the exported policy and print how good it is; `FAILED` if not good enough."""
    from rich.console import Console

    from simtrain.deployment.conditions import find_conditions
    from simtrain.deployment.verify import Verifier
    from simtrain.training.evaluator import heading, with_margin

    conditions = find_conditions(folder, config.verify_model)
    thresholds = _thresholds(config.verify_threshold, list(conditions))
    console = Console(stderr=True)
    with interruptible(), console.status("") as status:
        tell = status.update if console.is_terminal else console.print
        tell("playing the policy in its task")
        result = Verifier(saved, config.episodes)(folder, conditions, tell)
    for sentence in result.differences:
        print(f"error: {sentence}", file=sys.stderr)
    if result.differences:
        return FAILED
    if result.without_hardware:
        print("left out: delays, biases and motors of the task; a robot has its own")
    rows = []
    for name, evaluation in {"the policy in its task": result.own, **result.played}.items():
        part = result.kept(name) if name in result.played else None
        kept = "" if part is None else f"{part.value:.3f}"
        if part is not None and math.isfinite(part.low):  # not of one episode
            kept += f" [{part.low:.3f}, {part.high:.3f}]"
        figures = (with_margin(n, e) for n, e in evaluation.estimates.items())
        rows.append([name, str(len(evaluation.returns)), kept, *figures])
    titles = ["", "episodes", "kept", *map(heading, result.own.estimates)]
    print_table(table_console(), titles, rows)
    failed = [n for n, least in thresholds.items() if not result.kept(n).value >= least]
    for name in failed:
        text = f"it keeps {result.kept(name).value:.3f} of its return ({name})"
        print(f"error: {text}; --verify-threshold is {thresholds[name]:g}", file=sys.stderr)
    for name in (n for n in thresholds if n not in failed):
        print(f"verified: the files keep {result.kept(name).value:.3f} of the return ({name})")
    return FAILED if failed else DONE


def _parts(words: Sequence[str]) -> dict[str, float]:
    """The smallest fraction to keep, by words of conditions; ConfigError for other numbers."""
    parts = {}
    for word in words:
        name, _, number = word.rpartition("=")
        try:
            parts[name] = float(number)
        except ValueError:
            parts[name] = math.nan
        if not 0.0 <= parts[name] <= 1.0:
            text = "it must be between 0 and 1, as in 0.95 or late=0.9"
            raise ConfigError(f"--verify-threshold is {word}; {text}")
    return parts


def _thresholds(words: Sequence[str], conditions: Sequence[str]) -> dict[str, float]:
    """The smallest fraction to keep, by condition; without a word, that of the first condition.

    A word is for all conditions with it in their names; one that is a whole name, for this alone.
    Raises ConfigError for a word that names no condition.
    """
    thresholds: dict[str, float] = {}
    parts = _parts(words)
    for word in sorted(parts, key=lambda word: word in conditions):  # whole names come last
        named = [word] if word in conditions else [c for c in conditions if word in c]
        if not named:
            names = "; ".join(conditions)
            text = f"--verify-threshold {word}={parts[word]:g} names no condition"
            raise ConfigError(f"{text}; there are: {names}")
        thresholds |= dict.fromkeys(named if word else conditions[:1], parts[word])
    return thresholds


def _ship(saved: SavedPolicy, episodes: int) -> int:
    from simtrain.deployment.export import ship_policy
    from simtrain.run.directory import shown

    with interruptible():
        shipped = ship_policy(saved, episodes)
    print(f"policy:   {saved.config.task}, iteration {saved.iteration}")
    print(f"again:    {shipped.command}")
    print(f"figures:  {shipped.evaluation}  ({episodes} episodes)")
    for path in shipped.files:
        print(f"written:  {shown(path)}")
    return DONE
