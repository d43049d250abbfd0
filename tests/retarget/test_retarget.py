"""A made-up person's walk becomes a robot's, whatever the skeleton's names, unit and axes."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import mujoco
import numpy as np
import pytest
from needs_opengl import needs_opengl
from robots.models import biped
from scipy.spatial.transform import Rotation
from walking_person import BONES, MIXAMO, OPTITRACK, SHANK, SOMA, STRIDE, THIGH, write_walk

from simtrain.cli.motion import motion
from simtrain.errors import ConfigError
from simtrain.motion.check import check_motion
from simtrain.motion.clip import MotionClip, clip_of, qpos_of
from simtrain.retarget.humanoid import Humanoid, load_humanoid
from simtrain.retarget.person import Person, find_landmarks, middle, person_of
from simtrain.retarget.recording import read_recording
from simtrain.retarget.solve import correct, solve
from simtrain.retarget.steps import targets_of

_ROWS = "\n".join(f"0 {i} 0 0 0 {i} {i} 0 0" for i in range(60))
_HAND = f"""HIERARCHY
ROOT LeftHand
{{
OFFSET 0 0 0
CHANNELS 6 Xposition Yposition Zposition Zrotation Xrotation Yrotation
JOINT LeftHandThumb
{{
OFFSET 0 3 0
CHANNELS 3 Zrotation Xrotation Yrotation
End Site
{{
OFFSET 0 3 0
}}
}}
}}
MOTION
Frames: 60
Frame Time: 0.0333333
{_ROWS}"""


def _deep(text: str, depth: int) -> str:
    """The same with many joints below each other."""
    joint = "JOINT x\n{\nOFFSET 0 1 0\nCHANNELS 1 Zrotation\n"
    end = "End Site\n{\nOFFSET 0 1 0\n}\n"
    return text.replace("JOINT", depth * joint + end + depth * "}\n" + "JOINT", 1)


def _without_frames(text: str) -> str:
    head = text.partition("Frame Time")[0].rpartition("Frames")[0]
    return f"{head}Frames: 0\nFrame Time: 0.0166667\n"


def _still(text: str) -> str:
    """The same with the first frame in the place of each."""
    *head, first = text.splitlines()[:-59]
    return "\n".join([*head, *[first] * 60])


G1 = Path("tasks/g1/scene.xml")


def _off(qpos: np.ndarray, model: mujoco.MjModel, fps: float = 50.0) -> list[str]:
    """What the check of a motion finds wrong."""
    return [f.name for f in check_motion(clip_of(model, "walk", fps, qpos), model) if f.is_off]


@pytest.fixture(scope="module")
def g1() -> Humanoid:
    return load_humanoid(G1)


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Person:
    path = write_walk(tmp_path_factory.mktemp("walk") / "walk.bvh")
    return person_of(read_recording(path), {}, 50.0)


@pytest.mark.parametrize("names", [MIXAMO, SOMA, OPTITRACK, BONES])
@pytest.mark.parametrize(("unit", "up", "channels"), [(100.0, "y", 3), (1.0, "z", 6)])
def test_person_is_the_same_in_every_skeleton(
    names: tuple[str, str, str, str], unit: float, up: str, channels: int, person: Person,
    tmp_path: Path,
) -> None:  # fmt: skip
    path = write_walk(tmp_path / "walk.bvh", names, unit, up, channels=channels)
    seen = person_of(read_recording(path), {}, 50.0)
    assert seen.leg == pytest.approx(unit * (THIGH + SHANK), rel=1e-3)
    for landmark, place in person.at.items():
        np.testing.assert_allclose(seen.at[landmark], place, atol=2e-3, err_msg=landmark)


@pytest.mark.parametrize("toe", ["0.00000 -6.00000 0.00000", "0.00000 -1.00000 -13.00000"])
def test_knees_tell_where_ahead_is_if_toes_do_not(toe: str, person: Person, tmp_path: Path) -> None:
    path = write_walk(tmp_path / "walk.bvh")
    path.write_text(path.read_text().replace("0.00000 -6.00000 13.00000", toe))
    seen = person_of(read_recording(path), {}, 50.0)
    for name in (name for name in person.at if not name.endswith("toe")):
        np.testing.assert_allclose(seen.at[name][:, :2], person.at[name][:, :2], atol=2e-3)


def test_up_is_where_the_floor_is_not_if_a_person_bends_far(tmp_path: Path) -> None:
    recording = read_recording(write_walk(tmp_path / "walk.bvh", up="z"))
    bent = recording.positions.copy()
    bent[:, :, 0] += 2.0 * bent[:, :, 2]
    person = person_of(dataclasses.replace(recording, positions=bent), {}, 50.0)
    toes = np.concatenate([person.at[f"{side}_toe"] for side in ("left", "right")])
    assert np.ptp(toes[:, 2]) < 0.2
    assert toes[:, 2].min() == pytest.approx(0.0, abs=0.05)


def test_up_is_above_the_feet_of_a_seated_person(tmp_path: Path) -> None:
    recording = read_recording(write_walk(tmp_path / "walk.bvh", up="z"))
    frames = np.arange(len(recording.positions))
    places = {"hip": (0.0, 0.55), "knee": (0.5, 0.5), "ankle": (0.5, 0.08), "toe": (0.67, 0.0)}
    places |= {"shoulder": (-0.05, 1.15), "elbow": (0.0, 0.85), "wrist": (0.25, 0.85)}
    seated = recording.positions.copy()
    for landmark, joint in find_landmarks(recording, {}).items():
        x, z = places[landmark.split("_")[1]]
        seated[:, joint] = [x, 0.1 if "left" in landmark else -0.1, z]
    moved = np.arange(seated.shape[1]) == find_landmarks(recording, {})["left_wrist"]
    seated[:, moved, 2] += 0.1 * np.sin(0.2 * frames)[:, None]
    seated[:, :, 2] += 0.01 * np.sin(0.3 * frames)[:, None]  # feet tap
    person = person_of(dataclasses.replace(recording, positions=seated), {}, 50.0)
    assert person.at["left_shoulder"][:, 2].min() > 1.0


def test_knees_that_bend_little_do_not_mirror_a_person_without_toes(tmp_path: Path) -> None:
    recording = read_recording(write_walk(tmp_path / "walk.bvh", up="z"))
    joints = find_landmarks(recording, {})
    still = np.repeat(recording.positions[:1], 120, axis=0)
    for side, y in (("left", 0.1), ("right", -0.1)):
        for part, x, z in (("hip", 0.0, 0.9), ("knee", -0.02, 0.5), ("ankle", 0.0, 0.08)):
            still[:, joints[f"{side}_{part}"]] = [x, y, z]
        still[:, joints[f"{side}_toe"]] = [0.0, y, 0.02]
        still[:, joints[f"{side}_wrist"]] = [0.4, y, 1.2]
    still[:, joints["left_wrist"], 2] += 0.1 * np.sin(0.2 * np.arange(120))
    person = person_of(dataclasses.replace(recording, positions=still), {}, 50.0)
    assert person.at["left_wrist"][:, 0].min() > 0.0


def test_positions_of_a_person_may_have_any_name(tmp_path: Path) -> None:
    path = write_walk(tmp_path / "walk.bvh")
    recording = read_recording(path)
    np.savez(tmp_path / "a.npz", joint_pos=recording.positions, names=recording.names, fps=60)
    assert read_recording(tmp_path / "a.npz").names == recording.names


def _braces_on_lines(text: str) -> str:
    return text.replace("\n{", " {")


@pytest.mark.parametrize(
    "style",
    [
        _braces_on_lines,
        lambda text: "\ufeff" + text.replace("JOINT", "Joint").replace("OFFSET", "offset"),
        lambda text: text.replace("Xpos", "XPos").replace("MOTION", "Motion").replace("\n", "\r\n"),
        lambda text: text.replace("mixamorig:Left", "Bip 01 Left").replace("mixamorig:", "Bip 01 "),
    ],
)
def test_files_of_other_programs_are_read(style, person: Person, tmp_path: Path) -> None:
    path = write_walk(tmp_path / "walk.bvh")
    path.write_text(style(path.read_text()))
    seen = person_of(read_recording(path), {}, 50.0)
    for landmark, place in person.at.items():
        np.testing.assert_allclose(seen.at[landmark], place, atol=2e-3, err_msg=landmark)


def test_a_robots_motion_is_not_retargeted() -> None:
    with pytest.raises(ConfigError, match="it is the motion of a robot"):
        read_recording(Path("tasks/g1/motions/bow.npz"))


def test_feet_stand_in_turn(person: Person) -> None:
    assert 0.4 < person.stands["left"].mean() < 0.7
    assert (person.stands["left"] | person.stands["right"]).all()
    assert not (person.stands["left"] & person.stands["right"]).mean() > 0.3
    hips = middle(person.at, "hip")
    speed = hips[-1, 0] / ((len(hips) - 1) / person.fps)
    assert speed == pytest.approx(STRIDE / 0.6 / (THIGH + SHANK), rel=0.02)


def test_g1_walks_as_the_person_without_sliding(g1: Humanoid, person: Person) -> None:
    qpos = solve(g1, targets_of(person, g1), person.fps)
    assert not _off(qpos, g1.model)
    data, side = mujoco.MjData(g1.model), "left"
    sole, places = g1.soles[side], []
    for data.qpos in qpos:
        mujoco.mj_kinematics(g1.model, data)
        body = data.body(sole.body)
        places.append(body.xpos + body.xmat.reshape(3, 3) @ sole.center)
    standing = np.array(places)[person.stands[side]]
    assert np.abs(standing[:, 2]).max() < 0.01
    runs = np.split(standing, np.flatnonzero(np.diff(np.flatnonzero(person.stands[side])) > 1) + 1)
    assert max(np.ptp(run[:, :2], axis=0).max() for run in runs) < 0.02


def test_a_foot_that_points_down_in_the_air_does_not_pull_the_base(
    g1: Humanoid, person: Person
) -> None:
    at = dict(person.at)
    for side, away in (("left", 0.03), ("right", -0.03)):
        swings = ~person.stands[side]
        at[f"{side}_toe"] = at[f"{side}_toe"].copy()
        at[f"{side}_toe"][swings] = at[f"{side}_ankle"][swings] + [-0.01, away, -0.16]
    person = dataclasses.replace(person, at=at)
    qpos = solve(g1, targets_of(person, g1), person.fps)
    figures = check_motion(clip_of(g1.model, "walk", 50.0, qpos), g1.model)
    forces = next(figure for figure in figures if figure.name == "acceleration without a force")
    assert forces.value < 0.02


def test_a_foot_tilted_beyond_the_vertical_keeps_its_heading(g1: Humanoid, person: Person) -> None:
    at, swings = dict(person.at), ~person.stands["left"]
    at["left_toe"] = at["left_toe"].copy()
    at["left_toe"][swings] = at["left_ankle"][swings] + [-0.13, 0.0, -0.1]
    _, turns = targets_of(dataclasses.replace(person, at=at), g1).soles["left"]
    assert np.abs(np.arctan2(turns[:, 1, 0], turns[:, 0, 0])).max() < 0.1


def test_base_does_not_sway_to_flatten_soles_that_no_ankle_rolls(
    person: Person, tmp_path: Path
) -> None:
    text = biped()
    for side in "uv":  # its ankle joint about the sole's forward axis
        before, after = text.split(f'"j{side}5"')
        text = f'{before}"j{side}5"{after.replace("revolute", "fixed", 1)}'
    (tmp_path / "biped.urdf").write_text(text)
    robot, at = load_humanoid(tmp_path / "biped.urdf"), dict(person.at)
    for side in ("left", "right"):  # feet closer together than hips
        for part, share in (("knee", 0.5), ("ankle", 0.0), ("toe", 0.0)):
            at[f"{side}_{part}"] = at[f"{side}_{part}"] * [1.0, share, 1.0]
    qpos = solve(robot, targets_of(dataclasses.replace(person, at=at), robot), person.fps)
    assert np.ptp(qpos[:, 1]) < 0.03
    assert not _off(qpos, robot.model)


def test_hands_stay_as_at_home(g1: Humanoid, person: Person) -> None:
    qpos = solve(g1, targets_of(person, g1), person.fps)
    model = g1.model
    hands = model.jnt_qposadr[[j for j in range(model.njnt) if "wrist" in model.joint(j).name]]
    assert len(hands) == 6
    assert np.abs(qpos[:, hands] - g1.home[hands]).max() < 0.25


def test_arms_with_large_hands_pass_the_legs_at_a_distance(person: Person, tmp_path: Path) -> None:
    spec = mujoco.MjSpec.from_file(str(G1))
    hand = {"size": [0.14, 0.0, 0.0], "pos": [0.1, 0.0, 0.0], "mass": 1e-3}
    for side in ("left", "right"):
        spec.body(f"{side}_wrist_yaw_link").add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, **hand)
    path = tmp_path / "hands.xml"
    path.write_text(spec.to_xml())
    robot = load_humanoid(path)
    assert not _off(solve(robot, targets_of(person, robot), person.fps), robot.model)


def test_a_motion_of_the_robot_is_corrected(g1: Humanoid) -> None:
    model, fps = g1.model, 25.0
    qpos = qpos_of(MotionClip.load(Path("tasks/g1/motions/wave.npz"), model), model)[::2]
    arms = model.jnt_qposadr[[j for j in range(model.njnt) if _is_of_arms(model.joint(j).name)]]
    assert len(arms) == 14
    np.testing.assert_allclose(correct(qpos, g1, fps)[:, arms], qpos[:, arms], atol=0.01)

    leaning = qpos.copy()  # forward, on its toes, and above the floor
    lean = Rotation.from_euler("y", 0.075)
    leaning[:, :3] = lean.apply(qpos[:, :3] - [0.1, 0.0, 0.0])
    leaning[:, :3] += [0.1, 0.0, 0.02]
    turned = lean * Rotation.from_quat(qpos[:, 3:7], scalar_first=True)
    leaning[:, 3:7] = turned.as_quat(scalar_first=True)
    assert "in the air" in _off(leaning, model, fps)
    corrected = correct(leaning, g1, fps)
    assert not _off(corrected, model, fps)
    np.testing.assert_allclose(corrected[:, arms], leaning[:, arms], atol=0.03)


def _is_of_arms(joint: str) -> bool:
    return any(part in joint for part in ("shoulder", "elbow", "wrist"))


def test_described_by_tree_and_places(g1: Humanoid) -> None:
    assert g1.chest == "torso_link"
    assert g1.segments.keys() == {
        f"{side}_{part}"
        for side in ("left", "right")
        for part in ("knee", "ankle", "elbow", "wrist")
    }
    assert g1.leg == pytest.approx(0.63, abs=0.03)  # 0.33 + 0.30 m


def test_a_robot_that_must_be_prepared_is_described_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "biped.urdf").write_text(biped())
    robot = load_humanoid(tmp_path / "biped.urdf")
    assert robot.leg == pytest.approx(0.6, abs=0.01)  # 0.3 + 0.3 m
    assert robot.model.jnt_type[0] == mujoco.mjtJoint.mjJNT_FREE
    assert robot.soles["left"].center[2] == pytest.approx(-0.05, abs=1e-6)


def test_joints_of_arrays_are_named(tmp_path: Path) -> None:
    recording = read_recording(write_walk(tmp_path / "walk.bvh"))
    np.savez(tmp_path / "walk.npz", joints=recording.positions, names=np.array(recording.names))
    read = read_recording(tmp_path / "walk.npz", fps=recording.fps)
    np.testing.assert_array_equal(read.positions, recording.positions)
    np.save(tmp_path / "walk.npy", recording.positions[:, :-1])
    with pytest.raises(ConfigError, match="--names"):
        read_recording(tmp_path / "walk.npy")
    named = read_recording(tmp_path / "walk.npy", names=recording.names[:-1])
    assert find_landmarks(named, {}) == find_landmarks(read, {})
    with pytest.raises(ConfigError, match="did you mean 'left_hip'"):
        find_landmarks(named, {"left_hips": "mixamorig:LeftLeg"})
    alike = ("left",) * recording.positions.shape[1]
    np.savez(tmp_path / "walk.npz", joints=recording.positions, names=np.array([alike]))
    with pytest.raises(ConfigError, match="no person is recognized"):
        find_landmarks(read_recording(tmp_path / "walk.npz"), {})


def test_too_few_frames_to_act_by_are_refused(tmp_path: Path) -> None:
    recording = read_recording(write_walk(tmp_path / "walk.bvh", seconds=1.0))
    with pytest.raises(ConfigError, match="higher --output-fps"):
        person_of(recording, {}, 2.0)


def test_a_file_that_unpacks_to_much_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simtrain.retarget.recording._LARGEST", 100_000)
    np.savez_compressed(tmp_path / "a.npz", positions=np.zeros((1000, 22, 3)))
    with pytest.raises(ConfigError, match="are packed into"):
        read_recording(tmp_path / "a.npz")


def test_amass_stands_upright_in_its_rest_pose(tmp_path: Path) -> None:
    frames = 60
    poses, trans = np.zeros((frames, 66)), np.zeros((frames, 3))
    poses[:, 0], trans[:, 1] = np.pi / 2, np.linspace(0.0, -0.5, frames)  # z is up in AMASS
    np.savez(tmp_path / "a.npz", poses=poses, trans=trans, mocap_framerate=30.0)
    person = person_of(read_recording(tmp_path / "a.npz"), {}, 50.0)
    assert person.at["left_shoulder"][0, 2] > 1.4
    np.testing.assert_allclose(
        person.at["left_hip"][:, 1], -person.at["right_hip"][:, 1], atol=1e-6
    )


def test_rotations_of_amass_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    poses, trans = np.zeros((60, 66)), np.zeros((60, 3))
    poses[7, 5] = np.nan
    np.savez(tmp_path / "a.npz", poses=poses, trans=trans, mocap_framerate=30.0)
    with pytest.raises(ConfigError, match=r"a number is not finite, .* in frame 7"):
        read_recording(tmp_path / "a.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "it is empty"),
        (lambda text: text[: len(text) // 8], "frame 3 has 35 numbers; its head says 57"),
        (lambda text: text.rsplit("\n", 3)[0], "its head says"),
        (lambda text: text.replace("Time: 0.0166667", "Time: 1.0"), "1 frames a second"),
        (lambda text: text.replace("Time: 0.0166667", "Time: 0"), "its frame time is 0 s"),
        (lambda text: text.replace("Xrot", "Wrot"), "a channel 'wrotation', no position or rot"),
        (lambda text: _HAND, "no person is recognized: left_hip, left_knee"),
        (lambda text: text.partition("MOTION")[0], "no line 'Frame Time'"),
        (lambda text: text.replace(" 10.00000 ", " 1e20 "), "a number is not finite, or above"),
        (lambda text: f"{text.rpartition(' ')[0]} nan\n", "a number is not finite.* in frame 59"),
        (lambda text: _deep(text, 2000), "no BVH, or damaged: maximum recursion depth"),
        (lambda text: text.replace("Frames: ", "Frames: 10000000"), "its head says"),
        (_without_frames, "it has 0 frames, less than"),
        (_still, "nothing moves"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(change, message: str, tmp_path: Path) -> None:
    path = write_walk(tmp_path / "walk.bvh", seconds=1.0)
    path.write_text(change(path.read_text()))
    with pytest.raises(ConfigError, match=message):
        motion(["retarget", str(path), str(tmp_path / "out.npz")])
    assert not (tmp_path / "out.npz").exists()


def test_convert_corrects_and_checks(tmp_path: Path, capsys) -> None:
    out = tmp_path / "out.npz"
    files = ["tasks/g1/motions/bow.npz", str(out)]
    assert motion(["convert", *files, "--end", "0.6", "--correct", "True"]) == 0
    assert "out, 0.6 s: ok" in capsys.readouterr().out
    assert MotionClip.load(out, load_humanoid(G1).model).frames == 31


@needs_opengl
def test_command_writes_a_motion_and_a_picture(tmp_path: Path, capsys) -> None:
    path = write_walk(tmp_path / "walk.bvh", seconds=1.5)
    assert motion(["retarget", str(path), str(tmp_path / "out.npz"), "--robot", "g1"]) == 0
    clip = MotionClip.load(tmp_path / "out.npz", load_humanoid(G1).model)
    assert clip.fps == 50.0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")
    assert "joint beyond its range" in capsys.readouterr().out
