"""The files of a robot's tasks: its model, a scene, the task file, and a test."""

from __future__ import annotations

import difflib
import filecmp
import functools
import json
import re
import runpy
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from textwrap import fill, indent
from typing import Any

import mujoco
import numpy as np

from simtrain.errors import ConfigError
from simtrain.robots.gait import Gait, gait
from simtrain.robots.kinematics import at
from simtrain.robots.picture import picture
from simtrain.robots.prepare import Prepared
from simtrain.robots.read import refused
from simtrain.robots.standing import FLOOR
from simtrain.training.reflection import Reflection
from simtrain.view.opengl import RenderingError

_WIDTH = 99
_BINARY = (".png", ".stl", ".obj", ".msh")


def check_name(name: str) -> None:
    """Raise ConfigError for a name that a task cannot have."""
    name_of_task = r"[a-z][a-z0-9-]{0,63}"
    if not re.fullmatch(name_of_task, name):
        text = f"the robot's name is {name[:80]!r}; it must be of small letters, digits and hyphens"
        other = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        near = f", as {other}" if re.fullmatch(name_of_task, other) else ""
        raise ConfigError(text + near)


def tasks_of(prepared: Prepared, name: str) -> tuple[str, ...]:
    """The names of the tasks that are written."""
    kinds = ("velocity-flat", "velocity-rough") if prepared.robot.legs else ("reach",)
    return tuple(f"{name}-{kind}" for kind in kinds)


@refused("the prepared model cannot be written")
def write(prepared: Prepared, name: str, folder: Path, *, is_project: bool = False) -> list[Path]:
    """Write ``tasks/<name>/`` and a test below `folder`, with a project if asked; the new files.

    Raises ConfigError, with the lines that differ, and writes nothing, if an existing file has
    other content.
    """
    there = next(path for path in (folder, *folder.resolve().parents) if path.is_dir())
    with tempfile.TemporaryDirectory(dir=there, prefix=f".{name}-") as temporary:
        made = Path(temporary)
        _make_files(prepared, name, made, folder)
        files = [path.relative_to(made) for path in sorted(made.rglob("*")) if path.is_file()]
        old = [path for path in files if (folder / path).exists()]
        alike = functools.partial(filecmp.cmp, shallow=False)
        if differing := [path for path in old if not alike(made / path, folder / path)]:
            shown = "\n".join(_difference(folder / path, made / path) for path in differing)
            text = f"{folder / 'tasks' / name} is there already and differs; nothing is written."
            raise ConfigError(f"{text} Move it away, or choose another name.\n{shown}")
        files += _make_project(prepared, name, folder, made) if is_project else []
        written = [path for path in files if not (folder / path).exists()]
        for path in written:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (made / path).replace(folder / path)
    return [folder / path for path in written]


def _difference(old: Path, new: Path) -> str:
    """Lines in which an existing file (-) differs from the new one (+)."""
    if old.suffix.lower() in _BINARY:
        return f"{old} differs"
    here, there = (path.read_text().splitlines() for path in (old, new))
    diff = difflib.unified_diff(here, there, str(old), "what would be written", n=0, lineterm="")
    changes = list(diff)
    more = [f"... {len(changes) - 20} lines more"] if len(changes) > 20 else []
    return "\n".join([*changes[:20], *more])


def _make_files(prepared: Prepared, name: str, made: Path, folder: Path) -> None:
    """Write the files of a robot's tasks into the empty folder `made`.

    A picture that exists in `folder` is not drawn again, because graphics cards differ.
    """
    task, test = made / "tasks" / name, made / "tests" / f"test_{_function(name)}.py"
    task.mkdir(parents=True)
    test.parent.mkdir()
    _write_model(prepared, task, name)
    extent = 1.5 * (float(prepared.home[2]) if prepared.robot.legs else _reach(prepared))
    floor = " ".join(
        f'{key}="{" ".join(f"{v:g}" for v in np.atleast_1d(value))}"'
        for key, value in FLOOR.items()
    )
    floor = fill(floor, _WIDTH - 6, break_on_hyphens=False).replace("\n", "\n      ")
    scene = _filled("scene.xml", name, middle=extent / 2.5, extent=extent, floor=floor)
    (task / "scene.xml").write_text(scene)
    model = mujoco.MjModel.from_xml_path(str(task / "scene.xml"))
    figures = gait(prepared) if prepared.robot.legs else None
    if figures:
        file = task / "velocity.py"
        file.write_text(_velocity_file(prepared, figures, name))
        if figures.mirror and (reason := _asymmetry(file, name, model)):
            print(f"its task does not mirror samples: {reason}", file=sys.stderr)
            figures = replace(figures, mirror=None)
            file.write_text(_velocity_file(prepared, figures, name))
    else:
        (task / "reach.py").write_text(_reach_file(prepared, name))
    if not (folder / "tasks" / name / f"{name}.png").exists():
        try:
            picture(prepared, model, figures).save(task / f"{name}.png")
        except RenderingError as error:
            print(f"no picture: {error}", file=sys.stderr)
    tasks = _strings(tasks_of(prepared, name)).replace("(", "[").replace(",)", "]")
    test.write_text(_filled("test.py.txt", name, tasks=tasks.replace(")", "]")))


def _asymmetry(file: Path, name: str, model: mujoco.MjModel) -> str | None:
    """Why the task in `file` cannot be mirrored, if so."""
    try:
        Reflection(runpy.run_path(str(file))[f"{_function(name)}_velocity_flat"](), model)
    except ConfigError as error:
        return str(error)
    return None


def _make_project(prepared: Prepared, name: str, folder: Path, made: Path) -> list[Path]:
    """Write the files of a project that depends on this simtrain into `made`; their names."""
    root, source = Path(__file__).resolve().parents[3], ""
    if (root / "pyproject.toml").is_file():
        path = json.dumps(str(root))
        source = f"\n[tool.uv.sources]\nsimtrain = {{ path = {path}, editable = true }}\n"
    title, task = folder.resolve().name, tasks_of(prepared, name)[0]
    project_name = re.sub("[^a-z0-9]+", "-", title.lower()).strip("-") or name
    files = {
        "pyproject.toml": _filled("pyproject.toml.txt", project_name, source=source),
        "README.md": _filled("README.md.txt", name, title=title, task=task),
        ".gitignore": ".venv/\n__pycache__/\nlogs/\n",
    }
    for file, text in files.items():
        (made / file).write_text(text)
    return [Path(file) for file in files]


def _velocity_file(prepared: Prepared, figures: Gait, name: str) -> str:
    robot, model = prepared.robot, prepared.model
    symmetry, sides, imports = "None", "", "TaskCfg, task"
    if figures.mirror is not None:
        imports = f"Mirror, {imports}"
        pairs = "".join(f'    "{one}": "{other}",\n' for one, other in figures.mirror.items())
        symmetry = "Mirror(SIDES)"
        sides = f"# Names on the one side and on the other.\nSIDES = {{\n{pairs}}}\n"
    trunk = model.body_weldid == model.body_weldid[model.body(robot.base).id]
    heaviest = int(np.where(trunk, model.body_mass, 0.0).argmax())
    welded = model.body_weldid[[model.body(foot.body).id for foot in robot.feet]]
    soles = (model.geom_priority == 1) & np.isin(model.body_weldid[model.geom_bodyid], welded)
    tables = {"bend": _table(figures.bend), "action_scale": _table(figures.action_scale)}
    return _filled(
        "velocity.py.txt",
        name,
        imports=imports,
        joints=_strings(list(figures.action_scale)),
        feet=f"({'|'.join(foot.name for foot in robot.sites(model))})_sole",
        hip_height=round(prepared.hip_height, 3),
        base_height=round(float(prepared.home[2]), 3),
        foot_geoms=_strings([model.geom(g).name for g in np.flatnonzero(soles)], 8),
        base=model.body(heaviest).name,
        timestep=prepared.timestep,
        decimation=prepared.decimation,
        symmetry=symmetry,
        sides=sides,
        **vars(figures) | tables,
    )


def _reach_file(prepared: Prepared, name: str) -> str:
    return _filled(
        "reach.py.txt",
        name,
        joints=_strings(prepared.robot.arms[0].joints),
        reach=round(_reach(prepared), 2),
        timestep=prepared.timestep,
        decimation=prepared.decimation,
    )


def _reach(prepared: Prepared) -> float:
    """Length of the arm from its first joint to its tool, m."""
    model = prepared.model
    data = at(model, model.qpos0)
    ids = [model.joint(name).id for name in prepared.robot.arms[0].joints]
    points = np.array([*data.xanchor[ids], data.site("tool").xpos])
    return float(np.linalg.norm(np.diff(points, axis=0), axis=1).sum())


def _write_model(prepared: Prepared, folder: Path, name: str) -> None:
    """Write the prepared model, with its meshes next to it."""
    spec = prepared.spec.copy()
    spec.modelname = name
    assets, sources = folder / "assets", dict[str, str]()
    for number, mesh in enumerate(spec.meshes):
        if mesh.file:
            assets.mkdir(exist_ok=True)
            file = re.sub(r"[^\w.-]", "_", Path(mesh.file).name)
            if sources.setdefault(file, mesh.file) != mesh.file:  # as visual/ and collision/ have
                file = f"{number}_{file}"
            shutil.copyfile(mesh.file, assets / file)
            mesh.file = file
    spec.compiler.meshdir = "assets"
    spec.modelfiledir = str(folder)
    spec.compile()
    (folder / f"{name}.xml").write_text(spec.to_xml())


def _filled(template: str, name: str, **values: Any) -> str:
    text = resources.files("simtrain.robots").joinpath("templates", template).read_text()
    title, function = name.replace("-", " ").capitalize(), _function(name)
    return text.format(**{"name": name, "title": title, "function": function} | values)


def _function(name: str) -> str:
    return name.replace("-", "_")


def _strings(words: Sequence[str], depth: int = 0) -> str:
    """A tuple of strings as source text, on several lines if needed."""
    line = ", ".join(f'"{word}"' for word in words) + ("," if len(words) == 1 else "")
    if len(line) + depth < 80:
        return f"({line})"
    lines = indent(_wrapped(line + ",", _WIDTH - depth - 4), " " * (depth + 4))
    return f"(\n{lines}\n{' ' * depth})"


def _wrapped(words: str, width: int) -> str:
    return fill(words, width, break_long_words=False, break_on_hyphens=False)


def _table(values: dict[str, float]) -> str:
    """A dictionary as source text, with one pattern for many joints of the same value."""
    if len(set(values.values())) == 1 and len(values) > 1:
        return f'{{".*": {next(iter(values.values()))}}}'
    groups: dict[float, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    lines = []
    for value, names in groups.items():
        wrapped = _wrapped(" ".join(names), _WIDTH - 16).split("\n")
        lines += [f'    "{"|".join(line.split())}": {value},\n' for line in wrapped]
    return "{\n" + "".join(lines) + "}"
