"""The check finds faults that are planted, and the motions that ship have none."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
from robot import G1, standing

from simtrain.motion.check import Figure, check_motion
from simtrain.motion.clip import MotionClip, clip_of, load_robot


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


@pytest.mark.parametrize(
    ("frames", "column", "change", "name", "value", "where"),
    [
        (slice(26), 7, np.linspace(0.0, 1.2, 26), "joint beyond its range", 0.2, "mast, frame 25"),
        (slice(10, 26), 7, 0.9, "joint speed", 22.5, "mast, frame "),
        (5, 9, -0.03, "depth in the floor", 0.03, "right, frame 5"),
        (slice(26), 0, np.linspace(0.0, 0.5, 26), "no foot at rest", 1.0, "up to 1.00 m/s"),
        (slice(26), 2, 0.05, "in the air", 1.0, ""),
        (slice(10, 26), 0, 0.1, "jump", 0.05, ""),
    ],
)
def test_a_planted_fault_is_found_with_its_size_and_place(
    frames, column, change, name, value, where, model
):
    qpos = standing(model)
    qpos[frames, column] += change
    figures = _check(model, qpos)
    assert figures[name].value == pytest.approx(value, rel=0.03)
    assert figures[name].where.startswith(where)
    assert figures[name].is_off
    if name in ("joint speed", "no foot at rest"):
        assert _off(figures) == {name}


def test_no_floor_accelerates_what_is_in_the_air_or_only_touches_it(model):
    qpos, time = standing(model, 51), np.arange(51) / 50.0
    qpos[:, 2] += 0.1 + 2.0 * time - 9.81 / 2 * time**2 + 10.0  # a fall is no fault
    assert _check(model, qpos)["acceleration without a force"].value < 0.1
    qpos[:, 2] = 10.5
    figures = _check(model, qpos)
    assert figures["acceleration without a force"].value == 1.0
    assert figures["acceleration without a force"].where.startswith("up to 1.00 of the weight")
    qpos = standing(model, 51)
    qpos[:, 0] = time**2 * 1.5 / 2  # to the side: it would just not tip over
    assert not _check(model, qpos)["acceleration without a force"].is_off
    qpos[:, 0] *= 10.0
    assert _check(model, qpos)["acceleration without a force"].is_off


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


@pytest.mark.parametrize("name", ["squat", "bow", "wave", "one_leg", "turn", "walk", "cmu_walk"])
def test_the_motions_that_ship_are_small_and_ok(name):
    model, path = load_robot(G1 / "scene.xml"), G1 / "motions" / f"{name}.npz"
    clip = MotionClip.load(path, model)
    assert path.stat().st_size < 300_000
    assert clip.fps == 50.0
    assert 4.0 <= clip.seconds <= 10.0
    assert not [figure for figure in check_motion(clip, model) if figure.is_off]
