"""Positions become motions: resampled, with the velocities and bodies that follow from them."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
from robot import make_robot, standing
from scipy.spatial.transform import Rotation

from simtrain.errors import ConfigError
from simtrain.motion.clip import clip_of, qpos_of
from simtrain.motion.convert import read_csv, resample

FINE = 4e-4  # what velocities are rounded by


def _write(path: Path, qpos: np.ndarray, header: str = "") -> Path:
    rows = qpos[:, [0, 1, 2, 4, 5, 6, 3, *range(7, qpos.shape[1])]]
    np.savetxt(path, rows, delimiter=",", header=header, comments="", fmt="%.12g")
    return path


def _gliding(model: mujoco.MjModel, fps: float, frames: int) -> np.ndarray:
    """Positions of a base with constant velocities that turns about a tilted axis."""
    qpos, time = standing(model, frames), np.arange(frames) / fps
    qpos[:, :3] += np.outer(time, (0.5, -0.3, 0.1))
    turns = Rotation.from_rotvec(np.outer(time, (0.3, 0.2, 1.0)))
    qpos[:, 3:7] = turns.as_quat(scalar_first=True)
    qpos[:, 7] = 0.4 * time
    return qpos


def test_constant_velocities_survive_resampling(model):
    qpos = resample(_gliding(model, 30.0, 31), 30.0, 50.0)
    np.testing.assert_allclose(qpos, _gliding(model, 50.0, 51), atol=1e-9)
    part = resample(_gliding(model, 30.0, 31), 30.0, 10.0, start=0.2, end=0.8)
    np.testing.assert_allclose(part, _gliding(model, 10.0, 11)[2:9], atol=1e-9)
    clip = clip_of(model, "glide", 50.0, qpos)
    assert clip.seconds == 1.0
    np.testing.assert_allclose(clip.joint_vel[:, 0], 0.4, atol=FINE)
    np.testing.assert_allclose(clip.body_lin_vel_w[:, 0] - (0.5, -0.3, 0.1), 0.0, atol=FINE)
    np.testing.assert_allclose(clip.body_ang_vel_w[:, 0] - (0.3, 0.2, 1.0), 0.0, atol=FINE)


def test_positions_and_velocities_are_those_of_the_bodies_origins(model):
    qpos = _gliding(model, 50.0, 51)
    qpos[:, 8] = 0.1 * np.sin(np.linspace(0.0, 3.0, 51))
    data, clip = mujoco.MjData(model), clip_of(model, "glide", 50.0, qpos)
    for frame, data.qpos in enumerate(qpos_of(clip, model)):
        mujoco.mj_kinematics(model, data)
        np.testing.assert_allclose(clip.body_pos_w[frame], data.xpos[1:], atol=1e-5)
    measured = np.gradient(clip.body_pos_w, 1 / 50.0, axis=0)[1:-1]
    np.testing.assert_allclose(clip.body_lin_vel_w[1:-1], measured, atol=2e-3)


@pytest.mark.parametrize(("start", "end"), [(0.5, 0.5), (-0.1, None), (0.0, 1.1), (0.99, 1.0)])
def test_a_part_that_is_none_is_refused(model, start, end):
    with pytest.raises(ConfigError, match=r"--start|less than a frame"):
        resample(_gliding(model, 30.0, 31), 30.0, 50.0, start, end)


def test_columns_follow_the_model_a_header_or_given_names(model, tmp_path):
    qpos = _gliding(model, 30.0, 4)
    qpos[:, 8:] = [0.2, 0.3]
    plain = read_csv(_write(tmp_path / "plain.csv", qpos), model)
    np.testing.assert_allclose(plain, qpos, atol=1e-9)
    shuffled = qpos.copy()
    shuffled[:, 7:] = qpos[:, [9, 7, 8]]
    header = "x,y,z,qx,qy,qz,qw,right,mast,left"
    named = read_csv(_write(tmp_path / "named.csv", shuffled, header), model)
    np.testing.assert_array_equal(named, plain)
    path = _write(tmp_path / "shuffled.csv", shuffled)
    np.testing.assert_array_equal(read_csv(path, model, ("right", "mast", "left")), plain)


MISTAKES = {
    "1,2,3\n1,2,3\n": "row 1 has 3 columns; it must have 7 and 3 joints",
    "0,0,0,0,0,0,1,0,0,0\n0,0,0,0,0,0,1,0,nan,0\n": "row 2 has what is no number, or too large",
    "0,0,0,0,0,0,1,0,0,0\n": "has 1 frames; it must have 2 or more",
    "": "has 0 frames; it must have 2 or more",
    ",0,0,0,0,0,1,0,0,0\n": "row 1 has what is no number, or too large",
    "0,0,0,0,0,0,1,0,0,0\n0,0,0,0,0,0,2,0,0,0\n": "quaternion of row 2 has length 2, not 1",
    "x,y,z,a,b,c,d,mast,left,rigt\n": "the model has no joint 'rigt' (did you mean 'right'?)",
    "x,y,z,a,b,c,d,mast,left,left\n": "has the joint 'left' twice",
    "x,y,z,a,b,c,d,mast,left\n": "lacks the model's joint 'right'",
}


@pytest.mark.parametrize("content", MISTAKES)
def test_a_wrong_csv_is_refused_in_one_line(content, model, tmp_path):
    (tmp_path / "walk.csv").write_text(content)
    with pytest.raises(ConfigError) as error:
        read_csv(tmp_path / "walk.csv", model)
    assert MISTAKES[content] in str(error.value)
    assert "\n" not in str(error.value)


def test_a_robot_that_does_not_float_is_refused(tmp_path):
    body = "<body><joint name='hinge'/><geom size='0.1'/></body>"
    with pytest.raises(ConfigError, match="is not of a free joint, followed by hinges and slides"):
        make_robot(tmp_path, f"<mujoco><worldbody>{body}</worldbody></mujoco>")
