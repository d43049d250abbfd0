"""Keyframes become motions that go through them, with soles that stay where they are told."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
import yaml
from robot import G1, XML, make_robot

from simtrain.errors import ConfigError
from simtrain.motion.clip import MotionClip, load_robot, qpos_of
from simtrain.motion.make import make_motion, read_motions

SQUAT = [{"time": 0.2}, {"time": 1.0, "base": {"z": -0.1}, "top": {"yaw": 30}}, {"time": 1.4}]


def _write(folder: Path, keyframes: object, **others: object) -> Path:
    content = {"start": "stand", "soles": ["left_sole", "right_sole"]} | others
    path = folder / "keyframes.yaml"
    path.write_text(yaml.safe_dump({**content, "motions": {"squat": keyframes}}))
    return path


def test_a_motion_goes_through_its_keyframes_and_soles_stay(model, tmp_path):
    clip = make_motion(read_motions(_write(tmp_path, SQUAT))["squat"], model)
    assert (clip.name, clip.fps, clip.frames) == ("squat", 50.0, 71)
    height = clip.body_pos_w[:, 0, 2]
    np.testing.assert_allclose(height[[0, 10, 30, 50, 70]], [0.5, 0.5, 0.45, 0.4, 0.4], atol=2e-3)
    # Minimum jerk: fastest half-way, by 1.875 times the mean.
    speed = clip.body_lin_vel_w[:, 0, 2]
    assert speed.argmin() == 30
    assert speed[30] == pytest.approx(-1.875 * 0.1 / 0.8, rel=0.02)
    assert clip.joint_pos[50, 0] == pytest.approx(np.radians(30), abs=2e-2)
    data = mujoco.MjData(model)
    for data.qpos in qpos_of(clip, model):
        mujoco.mj_kinematics(model, data)
        np.testing.assert_allclose(data.site("left_sole").xpos, (0.0, 0.2, 0.0), atol=1e-3)


NARROW = XML.replace("-1 1", "-0.01 0.01", 1)
MISTAKES = [
    ({"time": 1}, "squat must be a list of keyframes"),
    ([{"base": {"z": 1}}], "keyframe 1: it must have a time, s, and what changes then"),
    ([{"time": 10**400}], "keyframe 1: it must have a time, s, and what changes then"),
    ([{"time": 2}, {"time": 1}], "keyframe 2: its time, 1 s, must be after the one before, and at"),
    ([{"time": 1, "base": {"zz": 1}}], "base has 'zz', not one of x, y, z, roll, pitch, yaw"),
    ([{"time": 1, "base": {"z": "low"}}], r"base must be numbers by axis, such as \{z"),
    ([{"time": 1, "over": ["base"]}], "over must be a list of soles: left_sole, right_sole"),
    ([{"time": 1e-3}], "squat: its keyframes end before the second frame"),
    ([{"time": 1, "bass": {"z": 1}}], r"no site or body 'bass' \(did you mean 'base'"),
    ([{"time": 1.0, "left_sole": {"x": 0.3}}], r"after 0\.\d\d s left_sole is 0\.01\d m from"),
]


@pytest.mark.parametrize(
    ("keyframes", "others", "xml", "message"),
    [
        *((keyframes, {}, XML, message) for keyframes, message in MISTAKES),
        (SQUAT, {"start": "stands"}, XML, r"no keyframe 'stands' \(did you mean 'stand'\?\)"),
        (SQUAT, {}, NARROW, r"squat: after 0\.00 s no pose is within the ranges"),
    ],
)
def test_wrong_keyframes_are_refused_in_one_line(keyframes, others, xml, message, tmp_path):
    model = make_robot(tmp_path, xml)
    with pytest.raises(ConfigError, match=message) as error:
        make_motion(read_motions(_write(tmp_path, keyframes, **others))["squat"], model)
    assert "\n" not in str(error.value)


HEAD = "start: a\nsoles: [b]\nmotions: "
BOMB = "start: &x [a, a]\nsoles: [*x, *x]\nmotions: {}"
SOLES = [f"start: a\nsoles: {soles}\nmotions: {{a: [{{time: 1}}]}}" for soles in ("left", "[]")]
NAMES = [f"{HEAD}{{{name}: [{{time: 1}}]}}" for name in ("../c", "''", '"\\0"')]
WRONG = ["", "motions: [", "[1, 2]", "start: a\nsols: 1", f"{HEAD}3", f"{HEAD}{{}}", BOMB]


@pytest.mark.parametrize("text", WRONG + SOLES + NAMES)
def test_a_file_that_has_no_keyframes_is_refused(text, tmp_path):
    (tmp_path / "keyframes.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"keyframes\.yaml"):
        read_motions(tmp_path / "keyframes.yaml")


def test_a_motion_that_ships_is_made_of_its_keyframes():
    model = load_robot(G1 / "scene.xml")
    made = make_motion(read_motions(G1 / "motions" / "keyframes.yaml")["bow"], model, fps=10.0)
    ships = MotionClip.load(G1 / "motions" / "bow.npz", model)
    np.testing.assert_allclose(made.body_pos_w, ships.body_pos_w[::5], atol=2e-3)
