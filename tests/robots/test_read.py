"""Reading models: which shapes and inertias arrive, and what other simulators write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from robots.models import biped, model_file, quadruped, robot_of, without

from simtrain.robots.read import read


def test_names_of_meshes_may_differ_in_capitals(tmp_path: Path) -> None:
    corners = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
    (tmp_path / "Arm.OBJ").write_text(corners)
    source = read(model_file(biped().replace("arm.stl", "arm.obj"), tmp_path, "urdf"))
    assert not any("not readable" in note for note in source.notes)
    assert {Path(mesh.file).name for mesh in source.spec.meshes} == {"Arm.OBJ"}


def test_links_of_a_urdf_that_nothing_collides_with_keep_their_visual_shapes(
    tmp_path: Path,
) -> None:
    shape = '<visual><geometry><box size="9 9 9"/></geometry></visual><!-- <visual> -->'
    both = without(biped(), '<link name="u5">', f'<link name="u5">{shape}')
    assert len(read(model_file(both, tmp_path, "urdf")).spec.geoms) == 2
    seen = biped().replace("collision>", "visual>")
    soles = robot_of(seen, tmp_path, "urdf").feet
    for sole in soles:
        assert sole.length == pytest.approx(0.2)
        np.testing.assert_allclose(sole.center, [0.03, 0.0, -0.05], atol=1e-6)


@pytest.mark.parametrize(
    "shape",
    [
        '<box size="0 0 0"/>',
        '<box size="0.1 0.1 0"/>',
        '<cylinder radius="0.1" length="0"/>',
        '<plane size="1 1"/>',
        '<mesh filename=""/>',
        "",
    ],
)
def test_visual_shapes_that_are_none_are_left_out(shape: str, tmp_path: Path) -> None:
    visual = f"<visual/><visual><geometry>{shape}</geometry></visual>"
    text = without(biped(), '<link name="u4">', f'<link name="u4">{visual}')
    source = read(model_file(text, tmp_path, "urdf"))
    assert len(source.spec.geoms) == 2
    assert source.spec.compile().nbody > 1


def test_an_inertia_larger_than_the_robot_is_replaced_by_that_of_its_shapes(tmp_path: Path) -> None:
    path = tmp_path / "robot.xml"
    text = without(quadruped(), 'diaginertia="0.1 0.2 0.2"', 'diaginertia="5 5 5"')
    path.write_text(text.replace('diaginertia="1e-3 1e-3 1e-3"', 'diaginertia="5 5 5"'))
    source = read(path)
    model = source.spec.compile()
    (inertia,) = np.unique(model.body("middle").inertia)
    corners = np.array([0.2, 0.08, 0.05])
    assert inertia == pytest.approx(0.4 * 10.0 * corners @ corners)
    assert model.body("p0").inertia.max() < 1e-3
    assert model.body("p1").inertia.max() == pytest.approx(5e-3)
    assert "those of something larger than the robot (middle," in " ".join(source.notes)
