"""The files of a robot's tasks: its model, a scene, the task file, and a test."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

import mujoco

import simtrain
from simtrain.env.reading import Mirror
from simtrain.errors import ConfigError
from simtrain.robots.gait import Gait, gait
from simtrain.robots.picture import picture
from simtrain.robots.prepare import Prepared

_SCENE = """\
<mujoco model="{name} on a flat floor">
  <include file="{name}.xml"/>

  <statistic center="0 0 {middle:.2f}" extent="{extent:.2f}"/>

  <visual>
    <headlight ambient="0.35 0.35 0.35" diffuse="0.45 0.45 0.45" specular="0.1 0.1 0.1"/>
    <quality shadowsize="4096"/>
    <global azimuth="130" elevation="-20" offwidth="1280" offheight="960"/>
  </visual>

  <asset>
    <texture name="sky" type="skybox" builtin="gradient" rgb1="0.62 0.74 0.86" rgb2="0.16 0.22 0.32"
      width="256" height="1536"/>
    <texture name="floor" type="2d" builtin="checker" rgb1="0.30 0.36 0.42" rgb2="0.36 0.42 0.48"
      mark="edge" markrgb="0.55 0.60 0.66" width="300" height="300"/>
    <material name="floor" texture="floor" texrepeat="4 4" texuniform="true" reflectance="0.1"/>
  </asset>

  <worldbody>
    <light name="sun" type="directional" mode="trackcom" pos="0 -0.8 3.2" dir="0 0.25 -1"
      diffuse="0.6 0.6 0.6"/>
    <geom name="floor" type="plane" size="0 0 0.05" material="floor" contype="1" conaffinity="1"
      condim="3"/>
  </worldbody>
</mujoco>
"""

_TASK = '''\
"""{title} follows velocity commands: forward, sideways, turning, and standing still."""

from pathlib import Path

from simtrain import {imports}
from simtrain.mdp.locomotion.recipe import rough_velocity_task, velocity_task

# The joints that act; the others are held where the keyframe "home" has them.
JOINTS = {joints}
FEET = "{feet}"
HIP_HEIGHT = {hip_height}  # m, above the ground
# What lifts a foot by its swing height, rad.
BEND = {bend}
# How far an action of 1 moves a target, rad: a part of what the largest torque bends the servo by.
ACTION_SCALE = {action_scale}
{sides}

@task("{name}-velocity-flat")
def {function}_velocity_flat() -> TaskCfg:
    """Follow velocity commands on a flat floor."""
    return velocity_task(
        Path(__file__).with_name("scene.xml"),
        joints=JOINTS,
        feet=FEET,
        foot_geoms={foot_geoms},
        base="{base}",
        hip_height=HIP_HEIGHT,
        base_height={base_height},  # m, above the ground
        offsets={offsets},  # parts of a period by which each foot is ahead
        bend=BEND,
        action_scale=ACTION_SCALE,
        lin_vel_x={lin_vel_x},  # m/s
        lin_vel_y={lin_vel_y},  # m/s
        ang_vel_z={ang_vel_z},  # rad/s
        frequency={frequency},  # steps of each foot a second
        swing_height={swing_height},  # m
        sole={sole},  # m, height of a foot's site above the ground
        timestep={timestep},  # s; the servos are stable with it
        decimation={decimation},  # physics steps of a control step
        symmetry={symmetry},
    )


@task("{name}-velocity-rough")
def {function}_velocity_rough() -> TaskCfg:
    """Follow velocity commands over slopes, stairs, boxes, waves and rough ground."""
    return rough_velocity_task({function}_velocity_flat(), hip_height=HIP_HEIGHT)
'''

_PROJECT = """\
[project]
name = "{title}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["simtrain"]

[dependency-groups]
dev = ["pytest"]
{source}"""

_README = """\
# {title}

```bash
uv sync
uv run train {name}-velocity-flat
uv run play logs/{name}-velocity-flat/<run>
```

The tasks are in `tasks/`; `uv run pytest` builds and steps them.
"""

_TEST = '''\
"""{title}'s tasks can be built and stepped, and it stands at first."""

import pytest
import torch

import simtrain


@pytest.mark.parametrize("name", ["{name}-velocity-flat", "{name}-velocity-rough"])
def test_stands_for_a_moment(name: str) -> None:
    env = simtrain.make_env(name, num_envs=4, seed=0)
    for _ in range(10):
        observations, rewards, done, _ = env.step(torch.zeros(4, env.num_actions))
    assert rewards.isfinite().all()
    assert not done.any()
'''


def check_free(name: str, folder: Path, *, is_project: bool = False) -> tuple[Path, Path]:
    """The folder of the tasks and the file of the test; ConfigError if one is there already."""
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        text = f"the robot's name is {name!r}; it must be of small letters, digits and hyphens"
        raise ConfigError(text)
    task, test = folder / "tasks" / name, folder / "tests" / f"test_{name.replace('-', '_')}.py"
    for path in (task, test, *((folder / "pyproject.toml",) if is_project else ())):
        if path.exists():
            raise ConfigError(f"{path} is there already; nothing is written over")
    return task, test


def write(prepared: Prepared, name: str, folder: Path, *, is_project: bool = False) -> list[Path]:
    """Write ``tasks/<name>/`` and a test below `folder`, and a project around; return the files.

    Raises ConfigError if one of them is there already, and leaves none that is not whole.
    """
    task, test = check_free(name, folder, is_project=is_project)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{name}-") as temporary:
        made = Path(temporary) / name
        made.mkdir()
        _write_model(prepared, made, name)
        extent = 2.0 * float(prepared.home[2])
        (made / "scene.xml").write_text(
            _SCENE.format(name=name, middle=extent / 3.0, extent=extent)
        )
        figures = gait(prepared)
        (made / "velocity.py").write_text(task_file(prepared, figures, name))
        scene = mujoco.MjModel.from_xml_path(str(made / "scene.xml"))
        drawn = picture(prepared, figures.bend, figures.offsets, scene)
        drawn.save(made / f"{name}.png")
        task.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, task)
    test.parent.mkdir(parents=True, exist_ok=True)
    test.write_text(_TEST.format(title=_title(name), name=name))
    files = [*sorted(task.iterdir()), test]
    for file, text in (_project(name, folder) if is_project else {}).items():
        (folder / file).write_text(text)
        files.append(folder / file)
    return files


def _project(name: str, folder: Path) -> dict[str, str]:
    """The files of a project that depends on this simtrain."""
    root = Path(simtrain.__file__).resolve().parents[2]
    source = ""
    if (root / "pyproject.toml").is_file():
        source = f'\n[tool.uv.sources]\nsimtrain = {{ path = "{root}", editable = true }}\n'
    title = folder.resolve().name
    return {
        "pyproject.toml": _PROJECT.format(title=title, source=source),
        "README.md": _README.format(title=title, name=name),
    }


def task_file(prepared: Prepared, figures: Gait, name: str) -> str:
    """The text of ``velocity.py``."""
    robot, model = prepared.robot, prepared.spec.compile()
    geoms = tuple(model.geom(g).name for g in _foot_geoms(prepared, model))
    symmetry, sides, imports = "None", "", ["TaskCfg", "task"]
    if figures.mirror is not None:
        imports.insert(0, "Mirror")
        covered = _covers(Mirror().joints, figures.mirror, robot.partners)
        symmetry = "Mirror()" if covered else "Mirror(SIDES)"
        pairs = "".join(f'    "{one}": "{other}",\n' for one, other in figures.mirror.items())
        sides = (
            "" if covered else f"# Names on the one side and on the other.\nSIDES = {{\n{pairs}}}\n"
        )
    sites = sorted(robot.feet, key=lambda foot: model.site(f"{foot.name}_sole").id)
    return _TASK.format(
        title=_title(name),
        name=name,
        function=name.replace("-", "_"),
        imports=", ".join(imports),
        joints=_wrapped(list(figures.action_scale), "()"),
        feet=f"({'|'.join(foot.name for foot in sites)})_sole",
        hip_height=round(prepared.hip_height, 3),
        base_height=round(float(prepared.home[2]), 3),
        bend=_table(figures.bend),
        action_scale=_table(figures.action_scale),
        foot_geoms=_wrapped(list(geoms), "()", 8),
        base=robot.base,
        offsets=figures.offsets,
        lin_vel_x=figures.lin_vel_x,
        lin_vel_y=figures.lin_vel_y,
        ang_vel_z=figures.ang_vel_z,
        frequency=figures.frequency,
        swing_height=figures.swing_height,
        sole=figures.sole,
        timestep=prepared.timestep,
        decimation=prepared.decimation,
        symmetry=symmetry,
        sides=sides,
    )


def _foot_geoms(prepared: Prepared, model: mujoco.MjModel) -> list[int]:
    bodies = {model.body(foot.body).id for foot in prepared.robot.feet}
    return [
        g
        for g in range(model.ngeom)
        if model.geom_priority[g] == 1
        and model.body_weldid[model.geom_bodyid[g]] in {model.body_weldid[b] for b in bodies}
    ]


def _write_model(prepared: Prepared, folder: Path, name: str) -> None:
    """Write the prepared model, with its meshes beside it."""
    spec = prepared.spec.copy()
    spec.modelname = name
    assets = folder / "assets"
    for mesh in spec.meshes:
        if mesh.file:
            assets.mkdir(exist_ok=True)
            source = Path(mesh.file)
            shutil.copyfile(source, assets / source.name)
            mesh.file = source.name
    spec.compiler.meshdir = "assets"
    spec.modelfiledir = str(folder)
    spec.compile()
    (folder / f"{name}.xml").write_text(spec.to_xml())


def _covers(known: dict[str, str], wanted: dict[str, str], partners: dict[str, str]) -> bool:
    """Whether the usual patterns make the same pairs."""

    def image(name: str, patterns: dict[str, str]) -> str:
        for one, other in [*patterns.items(), *((b, a) for a, b in patterns.items())]:
            if match := re.fullmatch(one, name):
                return other.replace("(.*)", "{}").format(*match.groups())
        return name

    return all(image(name, known) == image(name, wanted) for name in partners)


def _title(name: str) -> str:
    return name.replace("-", " ").capitalize()


def _literal(value: Any) -> str:
    return repr(value).replace("'", '"')


def _wrapped(words: Sequence[str], brackets: str, depth: int = 0) -> str:
    """A tuple over as many lines as it needs, in the style of a formatter."""
    line = ", ".join(f'"{word}"' for word in words)
    if len(line) + depth < 80:
        return f"{brackets[0]}{line}{',' if len(words) == 1 else ''}{brackets[1]}"
    lines = "".join(f'    "{word}",\n' for word in words)
    return f"{brackets[0]}\n{indent(lines, ' ' * depth)}{' ' * depth}{brackets[1]}"


def _table(values: dict[str, float]) -> str:
    """A dictionary with one pattern for all joints of one value, if they are many."""
    if len(set(values.values())) == 1 and len(values) > 1:
        return _literal({".*": next(iter(values.values()))})
    groups: dict[float, list[str]] = {}
    for name, value in values.items():
        groups.setdefault(value, []).append(name)
    lines = [f'    "{"|".join(names)}": {value},\n' for value, names in groups.items()]
    return "{\n" + "".join(lines) + "}"
