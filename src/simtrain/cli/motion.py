"""``uv run motion <command>``: motions to follow, converted, checked, shown, made, recorded."""

from __future__ import annotations

import math
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.terminal import DONE, FAILED, interruptible, table_console, write_file
from simtrain.errors import ConfigError, did_you_mean
from simtrain.limits import Duration, FramesPerSecond, Limits, Port, Seed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import mujoco

    from simtrain.motion.clip import MotionClip

C = TypeVar("C")
_HELP = """\
usage: motion <command> [flags]

Motions for a robot to follow, in files that training and these commands read.

  motion convert walk.csv walk.npz --fps 30      from a retargeting tool's rows; another rate
  motion check walk.npz wave.npz                 limits, floor, feet and balance
  motion show walk.npz                           in the browser; --video out.mp4 without one
  motion make keyframes.yaml [name...]           from keyframes, by inverse kinematics
  motion record <run or task> walk.npz           what a trained policy does

`motion <command> --help` lists the flags of each."""


@dataclass
class _OfRobot:
    robot: str = "g1"
    """A folder of tasks with scene.xml, or an MJCF file."""


@dataclass
class ConvertConfig(_OfRobot):
    """Make a motion of a CSV file, or of another motion: resampled, with names and velocities.

    A row of a CSV is a frame: the root's position, its quaternion x y z w, and joints."""

    fps: FramesPerSecond = 30.0
    """Rows a second of a CSV."""
    output_fps: FramesPerSecond = 50.0
    """Frames a second of the motion: the rate at which the policy that follows it acts."""
    start: float = 0.0
    """Where to begin, s."""
    end: float | None = None
    """Where to end, s; None for the last row."""
    joint_names: tuple[str, ...] = ()
    """Joints of a CSV's columns, if there is no first row of names and they are not in the model's
    order."""


@dataclass
class CheckConfig(_OfRobot):
    """Measure what is wrong with motions; the exit code is 1 if anything is."""


@dataclass
class ShowConfig(_OfRobot):
    """Look at a motion in a browser, or write a video of it."""

    video: Path | None = None
    """Write an MP4 file instead; needs no display."""
    speed: Annotated[float, Limits(1e-4, 1e4)] = 1.0
    """Seconds of the motion a second."""
    host: str = "127.0.0.1"
    """Address that the page is at; 0.0.0.0 for everyone who can reach this machine."""
    port: Port = 8080
    """Port of the page; 0 for any that is free."""


@dataclass
class MakeConfig(_OfRobot):
    """Make motions of keyframes by inverse kinematics: all of a file, or those that are named."""

    output: Path | None = None
    """Folder for <name>.npz; None for that of the keyframes."""
    output_fps: FramesPerSecond = 50.0
    """Frames a second."""


@dataclass
class RecordConfig:
    """Record what a trained policy does, undisturbed, as a motion."""

    command: tuple[str, ...] = ()
    """A command's name and its values, as velocity 0.5 0 0; without it the task draws it."""
    seconds: Duration = 5.0
    """Length, s."""
    skip: Annotated[float, Limits(0.0, 86_400.0)] = 2.0
    """What is left out at the beginning, s."""
    seed: Seed = 0
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
    config, (source, output) = _parsed(
        ConvertConfig(), "convert <in.csv or in.npz> <out.npz>", arguments
    )
    model = _robot(config.robot)

    from simtrain.motion.clip import MotionClip, clip_of, qpos_of
    from simtrain.motion.convert import read_csv, resample

    with interruptible():
        if source.suffix == ".npz":
            clip = MotionClip.load(source, model)
            qpos, fps = qpos_of(clip, model), clip.fps
        else:
            qpos, fps = read_csv(source, model, config.joint_names), config.fps
        qpos = resample(qpos, fps, config.output_fps, config.start, config.end)
        _write(clip_of(model, output.stem, config.output_fps, qpos), output)
    return DONE


def _check(arguments: Sequence[str]) -> int:
    config, paths = _parsed(CheckConfig(), "check <file>...", arguments)
    clips, model = _clips(paths, config.robot)

    from rich.table import Table

    from simtrain.motion.check import check_motion

    off, console = False, table_console()
    for clip in clips:
        with interruptible():
            figures = check_motion(clip, model)
        wrong = [figure.name for figure in figures if figure.is_off]
        off |= bool(wrong)
        verdict = f"off: {', '.join(wrong)}" if wrong else "ok"
        console.print(f"{clip.name}, {clip.seconds:.1f} s: {verdict}", highlight=False)
        table = Table.grid("", "", "", "", "", padding=(0, 3, 0, 0))
        for figure in figures:
            mark = "off" if figure.is_off else "ok"
            value, limit = f"{figure.value:.3g} {figure.unit}", f"at most {figure.limit:g}"
            table.add_row(mark, figure.name, value, limit, figure.where)
        console.print(table)
    return FAILED if off else DONE


def _show(arguments: Sequence[str]) -> int:
    config, paths = _parsed(ShowConfig(), "show <file>", arguments)
    (clip,), model = _clips(paths, config.robot)

    from simtrain.view.film import FilmPage, MotionFilm, record_film

    film = MotionFilm(clip, model)
    if config.video is not None:
        from simtrain.view.opengl import choose_backend
        from simtrain.view.video import check_video_path

        check_video_path(config.video)
        choose_backend()
        with interruptible():
            record_film(film, config.video, config.speed)
        print(f"video: {config.video}")
        return DONE

    page = FilmPage(film, host=config.host, port=config.port, speed=config.speed)
    page.announce(clip.name)
    with interruptible(), closing(page):
        page.run()
    return DONE


def _make(arguments: Sequence[str]) -> int:
    config, words = _parsed(MakeConfig(), "make <keyframes.yaml> [name...]", arguments)
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
    config, (run, output) = _parsed(RecordConfig(), "record <run or task> <out.npz>", arguments)
    name, *values = config.command or ("",)
    try:
        held = {name: tuple(map(float, values))} if name else {}
        if not all(map(math.isfinite, held.get(name, ()))):
            raise ValueError("values must be finite")
    except ValueError as error:
        raise ConfigError(f"--command {' '.join(config.command)}: {error}") from error

    from simtrain.training.motion_recording import record_motion
    from simtrain.training.saved_policy import open_policy

    saved = open_policy(run)
    if saved.changed:
        print(f"warning: {saved.difference}", file=sys.stderr)
    times = {"seconds": config.seconds, "skip": config.skip}
    with interruptible():
        _write(record_motion(saved, output.stem, held, **times, seed=config.seed), output)
    return DONE


def _parsed(config: C, usage: str, arguments: Sequence[str]) -> tuple[C, list[Path]]:
    """The flags of a command, and as many paths as its usage names; an .npz to write is last."""
    paths, flags = split_paths(arguments)
    config = parse_flags(f"motion {usage}", config, flags)
    least = usage.count("<")
    if len(paths) < least or (len(paths) > least and "..." not in usage):
        raise ConfigError(f"files given: {len(paths)}; it is `uv run motion {usage}`")
    if usage.endswith("<out.npz>"):
        from simtrain.run.directory import check_file

        if paths[1].suffix != ".npz":
            raise ConfigError(f"{paths[1]} must end with .npz")
        check_file(paths[1], "the motion")
    return config, paths


def _robot(name: str) -> mujoco.MjModel:
    """The model that ``--robot`` names."""
    from simtrain.config.tasks import find_beside_tasks
    from simtrain.motion.clip import load_robot

    return load_robot(find_beside_tasks(name if name.endswith(".xml") else f"{name}/scene.xml"))


def _clips(paths: list[Path], robot: str) -> tuple[list[MotionClip], mujoco.MjModel]:
    """The motions in files, and their robot."""
    from simtrain.config.tasks import find_beside_tasks
    from simtrain.motion.clip import MotionClip

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
