"""``uv run simtrain new <name> --model robot.xml``: from a robot's model to its tasks."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.play import FilmFlags, show_film
from simtrain.cli.terminal import DONE, FAILED, interruptible, table_console
from simtrain.errors import ConfigError

if TYPE_CHECKING:
    from simtrain.robots.check import Finding
    from simtrain.robots.prepare import Prepared


@dataclass
class NewConfig(FilmFlags):
    """Write tasks for a robot: walking on flat and on rough ground, or reaching with an arm.

    A copy of the model gets what it lacks: free joint, servos, feet with sensors, a home pose."""

    model: Path | None = None
    """MJCF or URDF of the robot, or menagerie:<robot> for one of the MuJoCo Menagerie; required."""
    output: Path = Path()
    """Folder in which tasks/ and tests/ are written."""
    project: Path | None = None
    """Create a project that depends on simtrain in this folder, and write the files there."""
    base: str | None = None
    """Root body of the robot, if several objects in the model have joints."""
    feet: tuple[str, ...] = ()
    """Bodies of the feet, if they are not detected."""
    end: str | None = None
    """Body at the end of an arm, if it is not detected."""
    random_poses: bool = False
    """Show the robot in random poses without gravity instead, and write nothing."""


def new(arguments: Sequence[str]) -> int:
    """Parse the command line and write a robot's tasks; the exit code."""
    words, flags = split_paths(arguments)
    names = [str(word) for word in words]
    config = parse_flags("simtrain new <name>", NewConfig(), flags)
    if len(names) != 1 or config.model is None:
        given = config.model or next((n for n in names if n.endswith((".xml", ".urdf"))), None)
        name = next((n for n in names if n != given), "<name>")
        model = shlex.quote(str(given or "robot.xml"))
        raise ConfigError(f"say `uv run simtrain new {name} --model {model}`")
    if config.project is not None and config.output != Path():
        raise ConfigError("--project and --output are both folders for the files: say one of them")

    # Only now, so that help and mistakes above do not wait for MuJoCo.
    import mujoco

    from simtrain.assets import menagerie_file
    from simtrain.robots.check import check
    from simtrain.robots.picture import PosesFilm
    from simtrain.robots.prepare import prepare
    from simtrain.robots.read import read
    from simtrain.robots.write import check_name, tasks_of, write
    from simtrain.run.directory import check_folder
    from simtrain.sim.mujoco_engine import ignore_warning

    mujoco.set_mju_user_warning(ignore_warning)  # the table says what is wrong
    check_name(names[0])
    folder, is_project = config.project or config.output, config.project is not None
    check_folder(folder, "--project" if is_project else "--output")
    place, _, robot = str(config.model).partition(":")
    path = menagerie_file(robot) if place == "menagerie" else config.model
    prepared = prepare(read(path, base=config.base), feet=config.feet, end=config.end)
    if config.random_poses:
        config.check()
        show_film(PosesFilm(prepared, names[0]), config, names[0])
        return DONE
    findings = check(prepared)
    _show(prepared, findings, names[0])
    if not findings[0].is_good:
        print("it cannot stand: nothing is written")
        return FAILED
    with interruptible():
        written = write(prepared, names[0], folder, is_project=is_project)
    for path in written:
        print(path)
    if not written:
        print("nothing to write: all files are there, as they would be written")
    if is_project and "simtrain" not in (folder / "pyproject.toml").read_text():
        print(f"{folder / 'pyproject.toml'} was there: add simtrain to its dependencies")
    enter = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))}\n"
    enter += "uv sync\n" if is_project else ""
    print(f"\n{enter}uv run train {tasks_of(prepared, names[0])[0]}")
    return DONE


def _show(prepared: Prepared, findings: Sequence[Finding], name: str) -> None:
    """Print a table of what was found, prepared and measured."""
    from rich.table import Table
    from rich.text import Text

    robot = prepared.robot
    kind = f"on {len(robot.legs)} legs" if robot.legs else "with an arm"
    table = Table("", "", "what was found", title=f"{name}: {robot.mass:.1f} kg {kind}")
    hips = f", hips {prepared.hip_height:.2f} m high" if robot.legs else ", fixed"
    step = f"physics steps of {1e3 * prepared.timestep:g} ms"
    table.add_row("", "base", f"{robot.base}{hips}; {step}")
    for leg, foot in zip(robot.legs, robot.feet, strict=True):
        table.add_row("", f"leg {foot.name}", f"{', '.join(leg.joints)}; foot on {foot.body}")
    for arm in robot.arms:
        others = f"; held: {', '.join(arm.beside)}" if arm.beside else ""
        table.add_row("", "arm", f"{', '.join(arm.joints)}; ends at {arm.end}{others}")
    for note in prepared.notes:
        table.add_row("", "prepared", note)
    for finding in findings:
        mark = Text("ok", "green") if finding.is_good else Text("!!", "red")
        table.add_row(mark, finding.what, finding.text)
    table_console().print(table)
