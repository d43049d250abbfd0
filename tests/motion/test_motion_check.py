"""The check finds faults that are planted, and the motions that ship have none."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
from robot import make_robot, standing

from simtrain.motion.check import Figure, check_motion
from simtrain.motion.clip import MotionClip, clip_of, load_robot

G1 = Path(__file__).parents[2] / "tasks" / "g1"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> mujoco.MjModel:
    return make_robot(tmp_path_factory.mktemp("robot"))


def _check(model: mujoco.MjModel, qpos: np.ndarray) -> dict[str, Figure]:
    return {figure.name: figure for figure in check_motion(clip_of(model, "it", 50.0, qpos), model)}


def _off(figures: dict[str, Figure]) -> set[str]:
    return {name for name, figure in figures.items() if figure.is_off}


def test_nothing_is_wrong_with_standing_still(model):
    margins = model.geom_margin.copy()
    figures = _check(model, standing(model))
    assert not _off(figures)
    assert figures["center of mass beside the feet"].value == 0.0
    np.testing.assert_array_equal(model.geom_margin, margins)


def _stretch(qpos: np.ndarray) -> None:
    qpos[:, 7] = np.linspace(0.0, 1.2, len(qpos))


def _snap(qpos: np.ndarray) -> None:
    qpos[10:, 7] = 0.9


def _sink(qpos: np.ndarray) -> None:
    qpos[5, 9] = -0.03


def _slide(qpos: np.ndarray) -> None:
    qpos[:, 0] = np.linspace(0.0, 0.5, len(qpos))


def _lift(qpos: np.ndarray) -> None:
    qpos[:, 2] += 0.05


def _jump(qpos: np.ndarray) -> None:
    qpos[10:, 0] += 0.1


@pytest.mark.parametrize(
    ("plant", "name", "value", "where"),
    [
        (_stretch, "joint beyond its range", 0.2, "mast, frame 25"),
        (_snap, "joint speed", 22.5, "mast, frame "),
        (_sink, "depth in the floor", 0.03, "right, frame 5"),
        (_slide, "no foot at rest", 1.0, "up to 1.00 m/s"),
        (_lift, "in the air", 1.0, ""),
        (_jump, "jump", 0.05, ""),
    ],
)
def test_a_planted_fault_is_found_with_its_size_and_place(plant, name, value, where, model):
    qpos = standing(model)
    plant(qpos)
    figures = _check(model, qpos)
    assert figures[name].value == pytest.approx(value, rel=0.03)
    assert figures[name].where.startswith(where)
    assert figures[name].is_off
    if plant in (_snap, _slide, _lift):
        assert _off(figures) == {name}


def test_a_foot_may_move_while_the_other_rests(model):
    qpos = standing(model)
    turn = np.linspace(0.0, 0.25, len(qpos))  # about the left foot
    qpos[:, 0], qpos[:, 1] = 0.2 * np.sin(turn), 0.2 * (1.0 - np.cos(turn))
    qpos[:, 3], qpos[:, 6] = np.cos(turn / 2), np.sin(turn / 2)
    assert _check(model, qpos)["no foot at rest"].value == 0.0


def test_resting_on_one_foot_beside_the_center_of_mass(model):
    qpos = standing(model)
    qpos[:, 9] = 0.1
    figures = _check(model, qpos)
    assert figures["center of mass beside the feet"].value == 1.0
    assert _off(figures) == {"center of mass at rest there"}
    qpos[:, 1] = np.linspace(0.0, 0.5, len(qpos))
    assert not _check(model, qpos)["center of mass at rest there"].is_off


@pytest.mark.parametrize("name", ["squat", "bow", "wave", "one_leg", "turn", "walk"])
def test_the_motions_that_ship_are_small_and_ok(name):
    model, path = load_robot(G1 / "scene.xml"), G1 / "motions" / f"{name}.npz"
    clip = MotionClip.load(path, model)
    assert path.stat().st_size < 300_000
    assert clip.fps == 50.0
    assert 5.0 <= clip.seconds <= 10.0
    assert not [figure for figure in check_motion(clip, model) if figure.is_off]
