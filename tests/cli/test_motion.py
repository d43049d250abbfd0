"""The real `motion` commands: what they write, and mistakes that end in one line."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
import pytest
from needs_opengl import needs_opengl
from refusal import refused

from simtrain.cli.motion import motion
from simtrain.cli.terminal import DONE, FAILED
from simtrain.motion.clip import MotionClip

G1 = Path(__file__).parents[2] / "tasks" / "g1"
SQUAT = str(G1 / "motions" / "squat.npz")


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_path(str(G1 / "scene.xml"))


def _gliding(path: Path, model: mujoco.MjModel) -> str:
    """A CSV file of a G1 that glides along at 0.5 m/s for a second, at 30 rows a second."""
    row = model.key("knees_bent").qpos
    rows = np.tile(row[[0, 1, 2, 4, 5, 6, 3, *range(7, len(row))]], (31, 1))
    rows[:, 0] += 0.5 * np.arange(31) / 30.0
    np.savetxt(path, rows, delimiter=",")
    return str(path)


def test_a_motion_at_another_rate_is_resampled_with_names(here, model, capsys):
    with np.load(SQUAT) as content:
        unnamed = {name: content[name] for name in content if "names" not in name}
    np.savez(here / "half.npz", **{n: v if n == "fps" else v[::2] for n, v in unnamed.items()}
             | {"fps": np.array([25])})  # fmt: skip
    assert motion(["convert", "half.npz", "whole.npz"]) == DONE
    made, ships = (MotionClip.load(Path(path), model) for path in ("whole.npz", SQUAT))
    assert (made.fps, made.frames) == (50.0, ships.frames)
    np.testing.assert_allclose(made.body_pos_w, ships.body_pos_w, atol=1e-3)
    np.testing.assert_allclose(made.body_ang_vel_w, ships.body_ang_vel_w, atol=0.05)


def test_a_csv_becomes_a_motion_of_which_the_exit_code_says_that_it_is_off(here, model, capsys):
    assert motion(["convert", _gliding(here / "in.csv", model), "out.npz", "--fps", "30"]) == DONE
    assert "written: out.npz  (51 frames, 1 s" in capsys.readouterr().out
    clip = MotionClip.load(here / "out.npz", model)
    assert clip.fps == 50.0
    np.testing.assert_allclose(clip.body_lin_vel_w[..., 0], 0.5, atol=1e-3)
    assert motion(["check", "out.npz"]) == FAILED
    printed = capsys.readouterr().out
    assert "out, 1.0 s: off: no foot at rest" in printed
    command = printed.split("to correct it: uv run simtrain motion ")[1].split()
    motion(command)
    assert "corrected, 1.0 s: " in capsys.readouterr().out
    assert motion(["check", "g1/motions/squat.npz"]) == DONE  # below a folder of tasks
    printed = capsys.readouterr().out
    assert "squat, 6.0 s: ok" in printed
    assert "to correct" not in printed


def test_keyframes_become_motions(here, model):
    (here / "bob.yaml").write_text(
        "start: knees_bent\nsoles: [left_foot, right_foot]\n"
        "motions:\n  bob:\n    - {time: 0.4, pelvis: {z: -0.05}}\n"
    )
    assert motion(["make", "bob.yaml", "--output", "made"]) == DONE
    clip = MotionClip.load(here / "made" / "bob.npz", model)
    fall = clip.body_pos_w[-1, 0, 2] - clip.body_pos_w[0, 0, 2]
    assert fall == pytest.approx(-0.05, abs=2e-3)


def test_the_policy_that_ships_is_recorded_as_a_walk(here, model):
    words = "--command velocity 0.5 0 0 --seconds 1 --skip 2"
    assert motion(["record", "g1-velocity-flat", "walk.npz", *words.split()]) == DONE
    clip = MotionClip.load(here / "walk.npz", model)
    assert clip.frames == 51
    assert clip.body_pos_w[-1, 0, 0] - clip.body_pos_w[0, 0, 0] == pytest.approx(0.5, abs=0.15)


@needs_opengl
def test_a_motion_is_shown_as_a_video(here, capsys):
    assert motion(["show", SQUAT, "--video", "squat.mp4", "--speed", "8"]) == DONE
    assert (here / "squat.mp4").stat().st_size > 5000
    assert capsys.readouterr().out == "video: squat.mp4\n"


MISTAKES = {
    "konvert a.csv b.npz": "motion has no command 'konvert' (did you mean 'convert'",
    "convert a.csv": "files given: 1; it is `uv run simtrain motion convert <in.csv or in.npz> <o",
    "convert a.csv b.npy": "b.npy must end with .npz",
    "convert no.csv b.npz": "no.csv",
    "convert person.bvh b.npz": "person.bvh is of a person; `motion retarget` is for",
    "check no.npz": "there is no file no.npz, here or in a folder of tasks",
    f"check {SQUAT} --robot g2": "there is no file g2/scene.xml",
    f"show {SQUAT} {SQUAT}": "files given: 2; it is `uv run simtrain motion show <file>`",
    f"show {SQUAT} --video squat.avi": "squat.avi",
    f"make {G1 / 'motions' / 'keyframes.yaml'} sqat": "no motion 'sqat' (did you mean 'squat'",
    "record g1-velocity-flat w.npz --command gait 0 1": "no such command to give; it has velocity",
    "record g1-velocity-flat w.npz --command velocity 1": "velocity needs 3 numbers",
    "record g1-velocity-flat w.npz --command velocity a b c": "there is no command 'a'",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_are_told_in_one_line(line, here):
    with refused(MISTAKES[line], here):
        motion(line.split())


@pytest.mark.parametrize("command", ["convert", "retarget"])
def test_no_command_writes_over_its_input(command, here):
    content = Path(SQUAT).read_bytes()
    (here / "squat.npz").write_bytes(content)
    with refused("squat.npz is the input, which would be lost; name another file", here):
        motion([command, "squat.npz", str(here / "squat.npz")])
    assert (here / "squat.npz").read_bytes() == content


def test_a_robot_that_crashes_mujoco_is_refused(here):
    scene = f'<include file="{G1 / "scene.xml"}"/>'
    hostile = '<asset><model name="m" file="robot.xml"/></asset>'
    (here / "robot.xml").write_text(f"<mujoco>{scene}{hostile}</mujoco>")
    with refused("robot.xml cannot be read: MuJoCo crashes, or 40 s and", here):
        motion(["check", SQUAT, "--robot", "robot.xml"])
