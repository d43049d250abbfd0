"""``uv run simtrain new <name> --model robot.xml``: from a robot's model to its tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.terminal import DONE, FAILED, table_console
from simtrain.errors import ConfigError


@dataclass
class NewConfig:
    """Write tasks for a robot: walking on flat and on rough ground.

    The model is prepared in a copy: free base, servos, feet with sensors, a pose to begin in."""

    model: Path | None = None
    """MJCF or URDF of the robot."""
    output: Path = Path()
    """Folder whose tasks/ and tests/ the files go to."""
    project: Path | None = None
    """Make this folder a project that depends on simtrain, with the files in it."""
    base: str | None = None
    """Body that floats, where it is not found."""
    feet: tuple[str, ...] = ()
    """Bodies of the feet, where they are not found."""


def new(arguments: Sequence[str]) -> int:
    """Parse the command line and write a robot's tasks; the exit code."""
    words, flags = split_paths(arguments)
    names = [str(word) for word in words]
    config = parse_flags("new <name>", NewConfig(), flags)
    if len(names) != 1 or config.model is None:
        raise ConfigError("say `uv run simtrain new <name> --model robot.xml`, or robot.urdf")

    # Only now, so that help and mistakes above do not wait for MuJoCo.
    from rich.table import Table

    from simtrain.robots.check import check
    from simtrain.robots.prepare import prepare
    from simtrain.robots.read import read
    from simtrain.robots.write import check_free, write

    output = config.project or config.output
    check_free(names[0], output, is_project=config.project is not None)
    prepared = prepare(read(config.model), base=config.base, feet=config.feet)
    robot = prepared.robot
    console = table_console()
    table = Table(title=f"{names[0]}: {robot.mass:.1f} kg on {len(robot.legs)} legs")
    for column in ("", "", "what was found"):
        table.add_column(column)
    hips = f"{prepared.hip_height:.2f} m high; physics steps of {1e3 * prepared.timestep:g} ms"
    table.add_row("", "base", f"{robot.base}, hips {hips}")
    for leg, foot in zip(robot.legs, robot.feet, strict=True):
        table.add_row("", f"leg {foot.name}", f"{', '.join(leg.joints)}; foot on {foot.body}")
    for note in prepared.notes:
        table.add_row("", "prepared", note)
    findings = check(prepared)
    for finding in findings:
        mark = "[green]ok[/]" if finding.is_good else "[red]!![/]"
        table.add_row(mark, finding.what, finding.text)
    console.print(table)
    if not findings[0].is_good:
        print("it cannot stand: nothing is written")
        return FAILED
    for path in write(prepared, names[0], output, is_project=config.project is not None):
        print(path)
    enter = f"cd {config.project} && uv sync\n" if config.project else ""
    print(f"\n{enter}uv run train {names[0]}-velocity-flat")
    return DONE
