"""Keyframes become motions that go through them, with soles that stay where they are told."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
import yaml
from robot import make_robot

from simtrain.errors import ConfigError
from simtrain.motion.clip import MotionClip, load_robot, qpos_of
from simtrain.motion.make import make_motion, read_motions

G1 = Path(__file__).parents[2] / "tasks" / "g1"
SQUAT = [
    {"time": 0.2},
    {"time": 1.0, "base": {"z": -0.1}, "top": {"yaw": 30}},
    {"time": 1.4},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> mujoco.MjModel:
    return make_robot(tmp_path_factory.mktemp("robot"))


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


def test_what_is_out_of_reach_is_told(model, tmp_path):
    keyframes = [{"time": 1.0, "left_sole": {"x": 0.3}}]
    motion = read_motions(_write(tmp_path, keyframes))["squat"]
    with pytest.raises(ConfigError, match=r"squat: after 0\.\d\d s left_sole is 0\.01\d m from"):
        make_motion(motion, model)


def test_joints_without_room_are_told(tmp_path):
    make_robot(tmp_path)
    narrow = (tmp_path / "robot.xml").read_text().replace("-1 1", "-0.01 0.01", 1)
    (tmp_path / "robot.xml").write_text(narrow)
    motion = read_motions(_write(tmp_path, SQUAT))["squat"]
    with pytest.raises(ConfigError, match=r"squat: after 0\.00 s no pose is within the ranges"):
        make_motion(motion, load_robot(tmp_path / "robot.xml"))


NAMES = {
    "a part": ([{"time": 1, "bass": {"z": 1}}], {}, "no site or body 'bass' (did you mean 'base'"),
    "a start": (SQUAT, {"start": "stands"}, "no keyframe 'stands' (did you mean 'stand'?)"),
}


@pytest.mark.parametrize("mistake", ["a part", "a start"])
def test_a_name_that_the_model_lacks_is_told(mistake, model, tmp_path):
    keyframes, others, message = NAMES[mistake]
    motion = read_motions(_write(tmp_path, keyframes, **others))["squat"]
    with pytest.raises(ConfigError) as error:
        make_motion(motion, model)
    assert message in str(error.value)


MISTAKES = {
    "no list": ({"time": 1}, "squat must be a list of keyframes"),
    "no time": ([{"base": {"z": 1}}], "keyframe 1 must have a time, s, and what changes then"),
    "times in no order": (
        [{"time": 2}, {"time": 1}],
        "keyframe 2: its time, 1 s, must be after the one before, and at most 600 s",
    ),
    "an axis": ([{"time": 1, "base": {"zz": 1}}], "base has 'zz', not one of x, y, z, roll, pitch"),
    "a number of 400 digits": ([{"time": 10**400}], "keyframe 1 must have a time, s, and what"),
    "no number": ([{"time": 1, "base": {"z": "low"}}], "base must be numbers by axis, such as {z"),
    "over no sole": (
        [{"time": 1, "over": ["base"]}],
        "over must be a list of soles: left_sole, right_sole",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_wrong_keyframes_are_refused_in_one_line(mistake, tmp_path):
    keyframes, message = MISTAKES[mistake]
    with pytest.raises(ConfigError) as error:
        read_motions(_write(tmp_path, keyframes))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


BOMB = "start: &x [a, a]\nsoles: [*x, *x]\nmotions: {}"
WRONG = ("", "motions: [", "[1, 2]", "motions: 3", "start: a\nsols: 1", BOMB)
WRONG += tuple(
    f"start: a\nsoles: {soles}\nmotions: {motions}"
    for soles, motions in [
        ("left", "{a: [{time: 1}]}"),
        ("[]", "{a: [{time: 1}]}"),
        ("[b]", "{../c: [{time: 1}]}"),
        ("[b]", "{'': [{time: 1}]}"),
        ("[b]", '{"\\0": [{time: 1}]}'),
        ("[b]", "{}"),
    ]
)


def test_motions_that_end_before_the_second_frame_are_refused(model, tmp_path):
    motion = read_motions(_write(tmp_path, [{"time": 1e-3}]))["squat"]
    with pytest.raises(ConfigError, match="squat: its keyframes end before the second frame"):
        make_motion(motion, model)


@pytest.mark.parametrize("text", WRONG)
def test_a_file_that_has_no_keyframes_is_refused(text, tmp_path):
    (tmp_path / "keyframes.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"keyframes\.yaml"):
        read_motions(tmp_path / "keyframes.yaml")


def test_a_motion_that_ships_is_made_of_its_keyframes():
    model = load_robot(G1 / "scene.xml")
    made = make_motion(read_motions(G1 / "motions" / "keyframes.yaml")["bow"], model, fps=10.0)
    ships = MotionClip.load(G1 / "motions" / "bow.npz", model)
    np.testing.assert_allclose(made.body_pos_w, ships.body_pos_w[::5], atol=2e-3)
