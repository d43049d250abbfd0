"""``uv run motion <command>``: motions to follow, converted, checked, shown, made, recorded."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simtrain.bounds import check_bounds
from simtrain.cli.exits import DONE, FAILED, interruptible
from simtrain.cli.output import table_console, write_file
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    import mujoco

    from simtrain.motion.clip import MotionClip

_HELP = """\
usage: motion <command> [flags]

Motions for a robot to follow, in files that training and these commands read.

  motion convert walk.csv walk.npz --fps 30      from a retargeting tool's rows
  motion check walk.npz wave.npz                 limits, floor, feet and balance
  motion show walk.npz                           in the browser; --video out.mp4 without one
  motion make keyframes.yaml [name...]           from keyframes, by inverse kinematics
  motion record <run or task> walk.npz           what a trained policy does

`motion <command> --help` lists the flags of each."""


@dataclass
class ConvertConfig:
    """Make a motion of a CSV file: root position, quaternion x y z w and joints, a row a frame."""

    robot: str = "g1"
    """A folder of tasks with scene.xml, or an MJCF file."""
    fps: float = 30.0
    """Rows a second."""
    output_fps: float = 50.0
    """Frames a second of the motion: the rate at which the policy that follows it acts."""
    start: float = 0.0
    """Where to begin, s."""
    end: float | None = None
    """Where to end, s; None for the last row."""
    joint_names: tuple[str, ...] = ()
    """Joints of the columns, if there is no first row of names and they are not in the model's
    order."""


@dataclass
class CheckConfig:
    """Measure what is wrong with motions; the exit code is 1 if anything is."""

    robot: str = "g1"
    """A folder of tasks with scene.xml, or an MJCF file."""


@dataclass
class ShowConfig:
    """Look at a motion in a browser, or write a video of it."""

    robot: str = "g1"
    """A folder of tasks with scene.xml, or an MJCF file."""
    video: Path | None = None
    """Write an MP4 file instead; needs no display."""
    speed: float = 1.0
    """Seconds of the motion a second."""
    host: str = "127.0.0.1"
    """Address that the page is at; 0.0.0.0 for everyone who can reach this machine."""
    port: int = 8080
    """Port of the page; 0 for any that is free."""


@dataclass
class MakeConfig:
    """Make motions of keyframes by inverse kinematics: all of a file, or those that are named."""

    robot: str = "g1"
    """A folder of tasks with scene.xml, or an MJCF file."""
    output: Path | None = None
    """Folder for <name>.npz; None for that of the keyframes."""
    output_fps: float = 50.0
    """Frames a second."""


@dataclass
class RecordConfig:
    """Record what a trained policy does, undisturbed, as a motion."""

    command: tuple[str, ...] = ()
    """A command's name and its values, as velocity 0.5 0 0; without it the task draws it."""
    seconds: float = 5.0
    """Length, s."""
    skip: float = 2.0
    """What is left out at the beginning, s."""
    seed: int = 0
    """Seed of everything random."""


def motion(arguments: Sequence[str]) -> int:
    """Run the command that a command line names; the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_HELP)
        return DONE
    name, *rest = arguments
    if name not in COMMANDS:
        text = f"motion has no command {name!r}{did_you_mean(name, COMMANDS)}"
        raise ConfigError(f"{text}; it has {', '.join(COMMANDS)}")
    _, command = COMMANDS[name]
    return command(rest)


def _convert(arguments: Sequence[str]) -> int:
    paths, flags = split_paths(arguments)
    config = parse_flags("motion convert <in.csv> <out.npz>", ConvertConfig(), flags)
    check_bounds(config)
    source, output = _two(paths, "motion convert <in.csv> <out.npz>")
    model = _robot(config.robot)

    from simtrain.motion.convert import read_csv, resample
    from simtrain.motion.kinematics import clip_of

    with interruptible():
        qpos = read_csv(source, model, config.joint_names)
        qpos = resample(qpos, config.fps, config.output_fps, config.start, config.end)
        _write(clip_of(model, output.stem, config.output_fps, qpos), output)
    return DONE


def _check(arguments: Sequence[str]) -> int:
    paths, flags = split_paths(arguments)
    config = parse_flags("motion check <file>...", CheckConfig(), flags)
    clips, model = _clips(paths, config.robot, "motion check <file>...")

    from rich.table import Table

    from simtrain.motion.check import check_motion

    off = False
    for clip in clips:
        with interruptible():
            figures = check_motion(clip, model)
        wrong = [figure.name for figure in figures if figure.is_off]
        off |= bool(wrong)
        verdict = f"off: {', '.join(wrong)}" if wrong else "ok"
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), title_justify="left")
        for title in ("", f"{clip.name}, {clip.seconds:.1f} s: {verdict}", "", "at most", ""):
            table.add_column(title, overflow="fold")
        for figure in figures:
            mark = "off" if figure.is_off else "ok"
            value, limit = f"{figure.value:.3g} {figure.unit}", f"{figure.limit:g}"
            table.add_row(mark, figure.name, value, limit, figure.where)
        table_console().print(table)
    return FAILED if off else DONE


def _show(arguments: Sequence[str]) -> int:
    paths, flags = split_paths(arguments)
    config = parse_flags("motion show <file>", ShowConfig(), flags)
    check_bounds(config)
    if len(paths) != 1:
        raise ConfigError("name one motion: `uv run motion show <file>`")
    (clip,), model = _clips(paths, config.robot, "motion show <file>")
    if config.video is not None:
        from simtrain.view.motion import record_clip
        from simtrain.view.opengl import choose_backend
        from simtrain.view.video import check_video_path

        check_video_path(config.video)
        choose_backend()
        with interruptible():
            record_clip(clip, model, config.video, config.speed)
        print(f"video: {config.video}")
        return DONE

    from simtrain.view.motion import MotionPage

    page = MotionPage(clip, model, host=config.host, port=config.port, speed=config.speed)
    if page.warning is not None:
        print(page.warning, file=sys.stderr)
    print(f"watch {clip.name} at {page.url} (Ctrl-C ends)", flush=True)
    with interruptible(), closing(page):
        page.run()
    return DONE


def _make(arguments: Sequence[str]) -> int:
    words, flags = split_paths(arguments)
    config = parse_flags("motion make <keyframes.yaml> [name...]", MakeConfig(), flags)
    check_bounds(config)
    if not words:
        raise ConfigError("name the keyframes: `uv run motion make <keyframes.yaml> [name...]`")
    path, names = words[0], list(map(str, words[1:]))

    from simtrain.motion.make import make_motion, read_motions
    from simtrain.run.directory import make_folder

    motions = read_motions(path)
    if unknown := [name for name in names if name not in motions]:
        near = did_you_mean(unknown[0], motions)
        raise ConfigError(f"{path} has no motion {unknown[0]!r}{near}; it has {', '.join(motions)}")
    model = _robot(config.robot)
    folder = config.output or path.parent
    make_folder(folder, "--output")
    with interruptible():
        for name in names or motions:
            clip = make_motion(motions[name], model, config.output_fps)
            _write(clip, folder / f"{name}.npz")
    return DONE


def _record(arguments: Sequence[str]) -> int:
    paths, flags = split_paths(arguments)
    config = parse_flags("motion record <run or task> <out.npz>", RecordConfig(), flags)
    check_bounds(config)
    run, output = _two(paths, "motion record <run or task> <out.npz>")
    name, *values = config.command or ("",)
    try:
        held = {name: tuple(map(float, values))} if name else {}
    except ValueError as error:
        raise ConfigError(f"--command {' '.join(config.command)}: {error}") from error
    if not all(math.isfinite(value) for numbers in held.values() for value in numbers):
        raise ConfigError(f"--command {' '.join(config.command)}: values must be finite")

    from simtrain.training.motion_recording import record_motion
    from simtrain.training.saved_policy import open_policy

    saved = open_policy(run)
    if saved.changed:
        print(f"warning: {saved.difference}", file=sys.stderr)
    times = {"seconds": config.seconds, "skip": config.skip}
    with interruptible():
        _write(record_motion(saved, output.stem, held, **times, seed=config.seed), output)
    return DONE


def _two(paths: list[Path], usage: str) -> tuple[Path, Path]:
    """What to read and the .npz to write, which can be written."""
    from simtrain.run.directory import check_file

    if len(paths) != 2:
        raise ConfigError(f"name what to read and what to write: `uv run {usage}`")
    if paths[1].suffix != ".npz":
        raise ConfigError(f"{paths[1]} must end with .npz")
    check_file(paths[1], "the motion")
    return paths[0], paths[1]


def _robot(name: str) -> mujoco.MjModel:
    """The model that ``--robot`` names."""
    from simtrain.motion.kinematics import load_robot
    from simtrain.registry import find_beside_tasks

    return load_robot(find_beside_tasks(name if name.endswith(".xml") else f"{name}/scene.xml"))


def _clips(paths: list[Path], robot: str, usage: str) -> tuple[list[MotionClip], mujoco.MjModel]:
    """The motions in files, and their robot."""
    if not paths:
        raise ConfigError(f"name one or more motions: `uv run {usage}`")

    from simtrain.motion.clip import MotionClip
    from simtrain.registry import find_beside_tasks

    model = _robot(robot)
    return [MotionClip.load(find_beside_tasks(str(path)), model) for path in paths], model


def _write(clip: MotionClip, path: Path) -> None:
    write_file(path, clip.packed(), "the motion")
    size = path.stat().st_size / 1000
    print(f"written: {path}  ({clip.frames} frames, {clip.seconds:g} s, {size:.0f} kB)")


COMMANDS: dict[str, tuple[Any, Callable[[Sequence[str]], int]]] = {
    "convert": (ConvertConfig(), _convert),
    "check": (CheckConfig(), _check),
    "show": (ShowConfig(), _show),
    "make": (MakeConfig(), _make),
    "record": (RecordConfig(), _record),
}
"""The commands by name: the flags of each, and what runs it."""
