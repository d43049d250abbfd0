"""The files of a robot's tasks: their names, and what is there already."""

from __future__ import annotations

import re
import runpy
import tomllib
from pathlib import Path

import mujoco
import numpy as np
import pytest
from robots.models import JOINTS, prepared_of, quadruped, without

from simtrain.errors import ConfigError
from simtrain.robots.prepare import prepare
from simtrain.robots.read import read
from simtrain.robots.write import write
from simtrain.view.opengl import RenderingError


def test_without_opengl_all_but_the_picture_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise RenderingError("there is no OpenGL")

    prepared = prepared_of(quadruped(), tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("simtrain.robots.write.picture", fail)
        assert len(write(prepared, "dog", tmp_path)) == 4
    assert "no picture: there is no OpenGL" in capsys.readouterr().err
    assert [path.name for path in write(prepared, "dog", tmp_path)] == ["dog.png"]


def test_a_second_run_says_what_differs_and_overwrites_nothing(tmp_path: Path) -> None:
    prepared = prepared_of(quadruped(), tmp_path)
    assert len(write(prepared, "dog", tmp_path)) == 5
    assert write(prepared, "dog", tmp_path) == []
    task = tmp_path / "tasks/dog/velocity.py"
    mine = task.read_text().replace("swing_height=", "swing_height=2 * ")
    task.write_text(mine)
    with pytest.raises(ConfigError, match=r"(?s)differs.*-.*swing_height=2 \* .*\+.*swing_height"):
        write(prepared, "dog", tmp_path)
    assert task.read_text() == mine


@pytest.mark.parametrize("name", ["a&quot;)&#10;open(&quot;run&quot;)", "a b", "a(", "a&#xA;b"])
def test_names_that_no_task_can_use_are_replaced_in_the_whole_model(
    name: str, tmp_path: Path
) -> None:
    more = '<size nkey="1"/><default><default class="c"><geom material="gone"/></default></default>'
    text = quadruped(extra=more).replace('"pa"', f'"{name}"').replace('"middle"', '"b&#10;"')
    for old, new in (("qa", "c("), ("ra", "c__"), ("sa", "c)")):
        text = text.replace(f'"{old}"', f'"{new}"')
    prepared = prepared_of(text, tmp_path)
    assert "4 are replaced" in " ".join(prepared.notes)
    write(prepared, "dog", tmp_path / "new")
    runpy.run_path(str(tmp_path / "new/tasks/dog/velocity.py"))
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "new/tasks/dog/scene.xml"))
    joints = [model.joint(number).name for number in model.actuator_trnid[:, 0]]
    assert len(set(joints)) == model.nu == 12
    assert model.nkey == 1
    assert all(re.fullmatch(r"[\w./:-]+", joint) for joint in joints)


@pytest.mark.parametrize("high", [2.5, 2.6])
def test_only_the_task_of_a_symmetric_robot_mirrors_samples(
    high: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servos = "".join(
        f'<position joint="{joint}" kp="80" kv="2" forcerange="-50 50" '
        f'ctrlrange="-2.5 {high if joint == "qb" else 2.5}"/>'
        for joint in JOINTS
    )
    prepared = prepared_of(quadruped(actuators=f"<actuator>{servos}</actuator>"), tmp_path)
    write(prepared, "dog", tmp_path)
    is_alike = high == 2.5
    assert ("symmetry=Mirror(" in (tmp_path / "tasks/dog/velocity.py").read_text()) == is_alike
    warning = "does not mirror samples: .*ctrlrange.* not symmetric: those of 'pb'"
    assert bool(re.search(warning, capsys.readouterr().err)) != is_alike


def test_names_may_be_long(tmp_path: Path) -> None:
    text = quadruped().replace('"pa"', f'"{120 * "p"}"')
    write(prepared_of(text, tmp_path), "dog", tmp_path)
    compile((tmp_path / "tasks/dog/velocity.py").read_text(), "velocity.py", "exec")


def test_meshes_of_one_name_stay_apart(tmp_path: Path) -> None:
    corners = "v 0 0 0\nv {0} 0 0\nv 0 {0} 0\nv 0 0 {0}\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    for folder, size in (("seen", 0.1), ("touched", 0.2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part.obj").write_text(corners.format(size))
    assets = "".join(f'<mesh name="{f}" file="{f}/part.obj"/>' for f in ("seen", "touched"))
    geoms = '<geom type="mesh" mesh="seen"/><geom type="mesh" mesh="touched"/><geom type="box"'
    text = quadruped(extra=f"<asset>{assets}</asset>")
    write(prepared_of(without(text, '<geom type="box"', geoms), tmp_path), "dog", tmp_path / "new")
    model = mujoco.MjModel.from_xml_path(str(tmp_path / "new/tasks/dog/dog.xml"))
    sizes = [model.geom_rbound[model.geom_dataid == model.mesh(f).id] for f in ("seen", "touched")]
    assert sizes[1] == pytest.approx(2.0 * sizes[0])


def test_a_project_has_a_name_that_packages_may_have(tmp_path: Path) -> None:
    prepared = prepared_of(quadruped(), tmp_path)
    write(prepared, "dog", tmp_path / 'My "first" dog', is_project=True)
    text = (tmp_path / 'My "first" dog' / "pyproject.toml").read_text()
    assert tomllib.loads(text)["project"]["name"] == "my-first-dog"
    assert "logs/" in (tmp_path / 'My "first" dog' / ".gitignore").read_text().split()


def test_what_was_prepared_can_be_prepared_again(tmp_path: Path) -> None:
    first = prepared_of(quadruped(), tmp_path)
    write(first, "dog", tmp_path)
    again = prepare(read(tmp_path / "tasks/dog/dog.xml"))
    np.testing.assert_allclose(again.home, first.home, atol=1e-3)
    assert again.model.nsensor == first.model.nsensor
    assert write(again, "dog", tmp_path / "again")
