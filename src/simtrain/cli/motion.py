"""``uv run simtrain motion <command>``: motions to follow, converted, checked, made."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from simtrain.api import open_policy
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.play import FilmFlags, show_film
from simtrain.cli.terminal import DONE, FAILED, interruptible, table_console, write_file
from simtrain.errors import ConfigError, config_errors_of, did_you_mean
from simtrain.files import find_beside_tasks
from simtrain.limits import Duration, FramesPerSecond, Limits, Seed
from simtrain.run.directory import check_file, make_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import mujoco

    from simtrain.motion.clip import MotionClip

_HELP = """\
usage: simtrain motion <command> [flags]

Reference motions for a robot, in files that training and these commands read.

  simtrain motion retarget person.bvh walk.npz         convert a person's motion to a humanoid
  simtrain motion convert walk.csv walk.npz --fps 30   convert a CSV file, or change the rate
  simtrain motion check walk.npz wave.npz              check limits, floor, feet and balance
  simtrain motion show walk.npz                        show it in the browser, or as --video out.mp4
  simtrain motion make keyframes.yaml [name...]        make motions from keyframes
  simtrain motion record <run or task> walk.npz        record the motion of a trained policy

`simtrain motion <command> --help` lists the flags of each."""


@dataclass
class _OfRobot:
    robot: str = "g1"
    """Robot: a folder of tasks with scene.xml, or an MJCF or URDF file."""


@dataclass
class ConvertConfig(_OfRobot):
    """Convert a CSV file or another motion to a motion: resampled, with names and velocities.

    A row of a CSV is a frame: the root's position, its quaternion x y z w, and joint positions."""

    fps: FramesPerSecond = 30.0
    """Rows per second of a CSV."""
    output_fps: FramesPerSecond = 50.0
    """Frames per second of the motion: the control rate of the policy that follows it."""
    start: float = 0.0
    """First time of the file to use, s."""
    end: float | None = None
    """Last time of the file to use, s; None for the last row."""
    joint_names: tuple[str, ...] = ()
    """Joints of the columns of a CSV, if its first row has no names and they do not have the
    model's order."""
    correct: bool = False
    """Solve the inverse kinematics again, with soles that are flat and still while they stand, and
    with the center of mass above the feet at rest; then check the motion."""


@dataclass
class RetargetConfig(_OfRobot):
    """Convert the recorded motion of a person, and check the result; a picture shows both.

    The recording is a BVH file, an AMASS .npz, or an .npy or .npz of joint positions (frames,
    joints, 3). Its unit, its axes and the heading of the person are detected."""

    output_fps: FramesPerSecond = 50.0
    """Frames per second of the motion: the control rate of the policy that follows it."""
    map: tuple[str, ...] = ()
    """Joints whose names are not recognized, in pairs, such as left_hip LThigh left_knee LShin.
    There are hip, knee, ankle, toe, shoulder, elbow and wrist of both sides."""
    fps: FramesPerSecond | None = None
    """Frames per second of an array; None for the value in the file, or 30."""
    names: tuple[str, ...] = ()
    """Joint names of an array without names."""
    picture: bool = True
    """Draw <out>.png: the person next to the robot, in eight frames."""


@dataclass
class CheckConfig(_OfRobot):
    """Check motions for problems; the exit code is 1 if there are any."""


@dataclass
class ShowConfig(FilmFlags, _OfRobot):
    """Look at a motion in a browser, or write a video of it."""


@dataclass
class MakeConfig(_OfRobot):
    """Make motions from keyframes by inverse kinematics: all of a file, or the named ones."""

    output: Path | None = None
    """Folder for <name>.npz; None for the folder of the keyframes."""
    output_fps: FramesPerSecond = 50.0
    """Frames per second."""


@dataclass
class RecordConfig:
    """Record the undisturbed motion of a trained policy."""

    command: tuple[str, ...] = ()
    """Name and values of a command, as velocity 0.5 0 0; by default, the task draws it."""
    seconds: Duration = 5.0
    """Length, s."""
    skip: Annotated[float, Limits(0.0, 86_400.0)] = 2.0
    """Time to skip at the beginning, s."""
    seed: Seed = 0
    """Seed of all random numbers."""


def motion(arguments: Sequence[str]) -> int:
    """Run the command that a command line names; the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_HELP)
        return DONE
    name, *rest = arguments
    if name not in COMMANDS:
        text = f"motion has no command {name!r}{did_you_mean(name, COMMANDS)}"
        raise ConfigError(f"{text}; it has {', '.join(COMMANDS)}")
    config, files, run = COMMANDS[name]
    usage = f"simtrain motion {name} {files}"
    paths, flags = split_paths(rest)
    config = parse_flags(usage, config, flags)
    least = files.count("<")
    if len(paths) < least or (len(paths) > least and "..." not in files):
        raise ConfigError(f"files given: {len(paths)}; it is `uv run {usage}`")
    if files.endswith("<out.npz>"):
        if paths[1].suffix != ".npz":
            raise ConfigError(f"{paths[1]} must end with .npz")
        if paths[1].exists() and paths[0].exists() and paths[1].samefile(paths[0]):
            raise ConfigError(f"{paths[1]} is the input, which would be lost; name another file")
        check_file(paths[1], "the motion")
    return run(config, paths)


def _convert(config: ConvertConfig, paths: list[Path]) -> int:
    from simtrain.motion.clip import MotionClip, clip_of, qpos_of
    from simtrain.motion.convert import read_csv, resample

    source, output = paths
    if source.suffix.lower() == ".bvh":
        raise ConfigError(f"{source} is of a person; `motion retarget` is for recorded people")
    robot = None
    if config.correct:
        from simtrain.retarget.humanoid import load_humanoid
        from simtrain.retarget.solve import correct

        robot = load_humanoid(_robot_file(config.robot))
    model = robot.model if robot else _robot(config.robot)
    with interruptible():
        if source.suffix == ".npz":
            clip = MotionClip.load(find_beside_tasks(str(source)), model)
            qpos, fps = qpos_of(clip, model), clip.fps
        else:
            qpos, fps = read_csv(source, model, config.joint_names), config.fps
        qpos = resample(qpos, fps, config.output_fps, config.start, config.end)
        if robot:
            with config_errors_of(f"the motion {source}"):
                qpos = correct(qpos, robot, config.output_fps)
        clip = clip_of(model, output.stem, config.output_fps, qpos)
        _write(clip, output)
        if robot:
            _print_figures(clip, model)
    return DONE


def _retarget(config: RetargetConfig, paths: list[Path]) -> int:
    source, output = paths
    if len(config.map) % 2:
        raise ConfigError(
            "--map takes pairs: a landmark and the name of its joint in the recording"
        )
    given = dict(zip(config.map[::2], config.map[1::2], strict=True))

    from simtrain.motion.clip import clip_of
    from simtrain.retarget.humanoid import load_humanoid
    from simtrain.retarget.person import person_of
    from simtrain.retarget.recording import read_recording
    from simtrain.retarget.solve import solve
    from simtrain.retarget.steps import targets_of

    with interruptible():
        recording = read_recording(source, config.fps, config.names)
        with config_errors_of(f"the recording {source}"):
            person = person_of(recording, given, config.output_fps)
        robot = load_humanoid(_robot_file(config.robot))
        qpos = solve(robot, targets_of(person, robot), person.fps)
        clip = clip_of(robot.model, output.stem, person.fps, qpos)
        _write(clip, output)
        _print_figures(clip, robot.model)
        if config.picture:
            from simtrain.retarget.picture import picture
            from simtrain.view.opengl import RenderingError

            try:
                image, file = picture(person, robot, qpos), io.BytesIO()
                image.save(file, "png")
                write_file(output.with_suffix(".png"), file.getvalue(), "the picture")
                print(f"drawn: {output.with_suffix('.png')}")
            except RenderingError as error:
                print(f"no picture: {error}")
    return DONE


def _check(config: CheckConfig, paths: list[Path]) -> int:
    clips, model = _clips(paths, config.robot)
    with interruptible():
        off = [_print_figures(clip, model) for clip in clips]
    for path, names in zip(paths, off, strict=True):
        if names & _CORRECTED:
            files = f"{path} corrected.npz --robot {config.robot}"
            print(f"to correct it: uv run simtrain motion convert {files} --correct True")
    return FAILED if any(off) else DONE


_CORRECTED = {"depth in the floor", "in the air", "no foot at rest", "center of mass at rest there"}


def _print_figures(clip: MotionClip, model: mujoco.MjModel) -> set[str]:
    """Print the figures of a motion; the names of those beyond their limits."""
    from rich.table import Table

    from simtrain.motion.check import check_motion

    figures, console = check_motion(clip, model), table_console()
    off = [figure.name for figure in figures if figure.is_off]
    summary = f"off: {', '.join(off)}" if off else "ok"
    console.print(f"{clip.name}, {clip.seconds:.1f} s: {summary}")
    table = Table.grid("", "", "", "", "", padding=(0, 3, 0, 0))
    for figure in figures:
        value, limit = f"{figure.value:.3g} {figure.unit}", f"at most {figure.limit:g}"
        mark = "off" if figure.is_off else "ok"
        table.add_row(mark, figure.name, value, limit, figure.where)
    console.print(table)
    return set(off)


def _show(config: ShowConfig, paths: list[Path]) -> int:
    (clip,), model = _clips(paths, config.robot)
    config.check()

    from simtrain.view.film import MotionFilm

    show_film(MotionFilm(clip, model), config, clip.name)
    return DONE


def _make(config: MakeConfig, paths: list[Path]) -> int:
    path, names = paths[0], list(map(str, paths[1:]))

    from simtrain.motion.make import make_motion, read_motions

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


def _record(config: RecordConfig, paths: list[Path]) -> int:
    run, output = paths

    from simtrain.deployment.record_motion import record_motion

    saved = open_policy(run)
    times = {"seconds": config.seconds, "skip": config.skip}
    with interruptible():
        _write(record_motion(saved, output.stem, config.command, **times, seed=config.seed), output)
    return DONE


def _robot(name: str) -> mujoco.MjModel:
    """The model that ``--robot`` names; of a URDF, as `simtrain new` makes it."""
    file = _robot_file(name)
    if file.suffix == ".urdf":
        from simtrain.retarget.humanoid import load_humanoid

        return load_humanoid(file).model

    from simtrain.motion.clip import load_robot

    return load_robot(file)


def _robot_file(name: str) -> Path:
    return find_beside_tasks(name if name.endswith((".xml", ".urdf")) else f"{name}/scene.xml")


def _clips(paths: list[Path], robot: str) -> tuple[list[MotionClip], mujoco.MjModel]:
    """The motions in files, and their robot."""
    from simtrain.motion.clip import MotionClip

    model = _robot(robot)
    return [MotionClip.load(find_beside_tasks(str(path)), model) for path in paths], model


def _write(clip: MotionClip, path: Path) -> None:
    write_file(path, clip.packed(), "the motion")
    size = path.stat().st_size / 1000
    print(f"written: {path}  ({clip.frames} frames, {clip.seconds:g} s, {size:.0f} kB)")


COMMANDS: dict[str, tuple[Any, str, Callable[[Any, list[Path]], int]]] = {
    "retarget": (RetargetConfig(), "<person.bvh> <out.npz>", _retarget),
    "convert": (ConvertConfig(), "<in.csv or in.npz> <out.npz>", _convert),
    "check": (CheckConfig(), "<file>...", _check),
    "show": (ShowConfig(), "<file>", _show),
    "make": (MakeConfig(), "<keyframes.yaml> [name...]", _make),
    "record": (RecordConfig(), "<run or task> <out.npz>", _record),
}
"""The commands by name: the flags of each, the files that it takes, and its function."""
