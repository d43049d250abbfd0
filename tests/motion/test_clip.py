"""Motion files: columns are found by their names, and what is wrong is told in one line."""

from __future__ import annotations

import os
from pathlib import Path

import mujoco
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from simtrain.errors import ConfigError
from simtrain.motion.clip import MotionClip, body_names, joint_names

XML = """
<mujoco><worldbody><geom type="plane" size="0 0 1"/><body name="base"><freejoint/>
<geom size="0.1"/>
<body name="left"><joint name="left_hip" axis="0 1 0"/><geom size="0.1"/></body>
<body name="right"><joint name="right_hip" axis="0 1 0"/><geom size="0.1"/>
<body name="foot"><joint name="slide" type="slide"/><geom size="0.1"/></body></body>
</body></worldbody></mujoco>"""
FRAMES = 5


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(XML)


@pytest.fixture
def content(model) -> dict[str, np.ndarray]:
    """A file of random poses and velocities whose columns have the model's order."""
    rng, data = np.random.default_rng(0), mujoco.MjData(model)
    joints, bodies = joint_names(model), body_names(model)
    qpos, pos, quat = rng.normal(size=(FRAMES, model.nq)), [], []
    qpos[:, 3:7] /= np.linalg.norm(qpos[:, 3:7], axis=1, keepdims=True)
    for data.qpos[:] in qpos:
        mujoco.mj_kinematics(model, data)
        pos.append(data.xpos[1:].copy())
        quat.append(data.xquat[1:].copy())
    return {
        "fps": np.array([50.0]),
        "joint_names": np.array(joints),
        "body_names": np.array(bodies),
        "joint_pos": qpos[:, 7:],
        "joint_vel": rng.normal(size=(FRAMES, len(joints))),
        "body_pos_w": np.array(pos),
        "body_quat_w": np.array(quat),
        "body_lin_vel_w": rng.normal(size=(FRAMES, len(bodies), 3)),
        "body_ang_vel_w": rng.normal(size=(FRAMES, len(bodies), 3)),
    }


def _write(path: Path, content: dict[str, np.ndarray]) -> Path:
    np.savez(path, **content)
    return path


def _arrays(clip: MotionClip) -> dict[str, np.ndarray]:
    return {name: value for name, value in vars(clip).items() if isinstance(value, np.ndarray)}


def test_a_file_is_read_in_the_models_order(model, content, tmp_path):
    clip = MotionClip.load(_write(tmp_path / "walk.npz", content), model)
    assert (clip.name, clip.fps, clip.frames, clip.seconds) == ("walk", 50.0, FRAMES, 0.08)
    assert clip.joint_names == ("left_hip", "right_hip", "slide")
    assert clip.body_names == ("base", "left", "right", "foot")
    for field, array in _arrays(clip).items():
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, content[field].astype(np.float32))


def test_shuffled_names_give_the_same_bits(model, content, tmp_path):
    rng = np.random.default_rng(1)
    shuffled = dict(content)
    for kind in ("joint", "body"):
        order = rng.permutation(len(content[f"{kind}_names"]))
        for field in (f for f in content if f.startswith(kind) and not f.endswith("names")):
            shuffled[field] = content[field][:, order]
        shuffled[f"{kind}_names"] = content[f"{kind}_names"][order]
    first = MotionClip.load(_write(tmp_path / "sorted.npz", content), model)
    second = MotionClip.load(_write(tmp_path / "shuffled.npz", shuffled), model)
    for field, array in _arrays(first).items():
        assert array.tobytes() == _arrays(second)[field].tobytes()
        assert _arrays(second)[field].flags.c_contiguous


def test_what_is_saved_is_read_bit_for_bit(model, content, tmp_path):
    first = MotionClip.load(_write(tmp_path / "walk.npz", content), model)
    first.save(tmp_path / "saved.npz")
    second = MotionClip.load(tmp_path / "saved.npz", model)
    for field, array in _arrays(first).items():
        assert array.tobytes() == _arrays(second)[field].tobytes()
    assert {path.name for path in tmp_path.iterdir()} == {"walk.npz", "saved.npz"}


def test_mjlabs_file_without_names_is_taken_with_one_warning(model, content, tmp_path, capsys):
    for name in ("joint_names", "body_names"):
        del content[name]
    path = _write(tmp_path / "walk.npz", content)
    clip = MotionClip.load(path, model)
    np.testing.assert_array_equal(clip.joint_pos, content["joint_pos"].astype(np.float32))
    MotionClip.load(path, model)
    assert capsys.readouterr().err == (
        f"warning: the motion {path} has no joint_names and body_names: its order is taken for "
        "the model's\n"
    )


def test_holosomas_file_has_the_root_before_the_joints_and_more_bodies(model, content, tmp_path):
    columns = {"joint_pos": 7, "joint_vel": 6}
    holosoma = dict(content)
    for field, root in columns.items():
        holosoma[field] = np.hstack((np.full((FRAMES, root), 9.0), content[field]))
    holosoma["body_names"] = np.array(["world", *content["body_names"]])
    for field in (f for f in content if f.endswith("_w")):
        first = np.full_like(content[field][:, :1], np.nan)
        holosoma[field] = np.concatenate((first, content[field]), axis=1)
    holosoma["fps"] = np.array(50)
    holosoma["object_pos_w"] = np.zeros((FRAMES, 3))
    clip = MotionClip.load(_write(tmp_path / "walk.npz", holosoma), model)
    for field in ("joint_pos", "joint_vel", "body_pos_w", "body_quat_w"):
        array = getattr(clip, field)
        np.testing.assert_array_equal(array, content[field].astype(np.float32))


def test_velocities_of_holosomas_bodies_are_those_of_their_poses(model, content, tmp_path):
    times = np.arange(FRAMES) / 50.0
    turns = Rotation.from_rotvec(np.outer(times, (0.3, -0.2, 1.0)))
    content["joint_pos"] = np.zeros((FRAMES, 3 + 7))
    content["joint_vel"] = np.zeros((FRAMES, 3 + 6))
    content["body_quat_w"][:] = turns.as_quat(scalar_first=True)[:, None]
    content["body_pos_w"] = np.tile(np.outer(times, (0.5, 0.1, -0.2))[:, None], (1, 4, 1))
    clip = MotionClip.load(_write(tmp_path / "walk.npz", content), model)
    np.testing.assert_allclose(clip.body_lin_vel_w[:, 2] - (0.5, 0.1, -0.2), 0.0, atol=1e-4)
    np.testing.assert_allclose(clip.body_ang_vel_w[:, 2] - (0.3, -0.2, 1.0), 0.0, atol=1e-4)


def _changed(field: str, index: object, value: float):
    def change(content: dict[str, np.ndarray]) -> None:
        content[field][index] = value

    return change


def _replaced(field: str, value: object):
    return lambda content: content.update({field: np.array(value)})


def _cut(frames: int):
    def cut(content: dict[str, np.ndarray]) -> None:
        for field in content:
            if "names" not in field and field != "fps":
                content[field] = content[field][:frames]

    return cut


MISTAKES = {
    "missing joint": (
        _replaced("joint_names", ["left_hip", "right_hip", "left_hop"]),
        "the model has no joint 'left_hop' (did you mean 'left_hip'?)",
    ),
    "missing body": (
        _replaced("body_names", ["base", "left", "right", "foot1"]),
        "lacks the model's body 'foot' (did you mean 'foot1'?)",
    ),
    "joint twice": (
        _replaced("joint_names", ["left_hip", "left_hip", "slide"]),
        "has the joint 'left_hip' twice",
    ),
    "body twice": (
        _replaced("body_names", ["base", "left", "left", "right", "foot"]),
        "has the body 'left' twice",
    ),
    "names that are numbers": (
        _replaced("joint_names", [1, 2, 3]),
        "its joint_names is int64 (3,); it must be text, a name a column",
    ),
    "fewer names": (
        _replaced("body_names", ["base", "left", "right", "foot", "hand"]),
        "its body_pos_w has 4 columns, and body_names has 5",
    ),
    "NaN": (_changed("joint_vel", (3, 1), np.nan), "its joint_vel is not finite in frame 3"),
    "infinity": (
        _changed("body_pos_w", (2, 1, 0), 1e60),
        "its body_pos_w is not finite in frame 2",
    ),
    "quaternion": (
        _changed("body_quat_w", (4, 2), 0.6),
        "the quaternion of right in frame 4 has length 1.2, not 1",
    ),
    "quaternions x y z w": (
        lambda content: content.update(body_quat_w=content["body_quat_w"][..., [1, 2, 3, 0]]),
        "from where its joints put it; its columns or quaternions have another order, or it is",
    ),
    "joints in another order and no names": (
        lambda content: content.update(
            {name: content[name][:, ::-1] for name in ("joint_pos", "joint_vel")},
            joint_names=content["joint_names"],
        ),
        "m from where its joints put it; its columns or quaternions have another order, or it is",
    ),
    "no frames": (_cut(0), "its joint_pos has 0 frames, not 2 or more"),
    "one frame": (_cut(1), "its joint_pos has 1 frames, not 2 or more"),
    "frames that differ": (
        _replaced("body_lin_vel_w", np.zeros((4, 4, 3))),
        "its body_lin_vel_w has 4 frames, and joint_pos has 5",
    ),
    "fps of zero": (_replaced("fps", 0), "its fps is 0; it must be 1 to 10000"),
    "fps of a trillion": (_replaced("fps", 1e12), "its fps is 1e+12; it must be 1 to 10000"),
    "names of no language": (
        _replaced("joint_names", [b"\xff"] * 3),
        "no .npz, or damaged: 'ascii'",
    ),
    "fps that is no number": (_replaced("fps", np.nan), "its fps is nan; it must be 1 to 10000"),
    "two fps": (_replaced("fps", [50, 30]), "its fps is [50 30]; it must be one number"),
    "a field of another shape": (
        _replaced("body_quat_w", np.zeros((5, 4, 3))),
        "its body_quat_w is float64 (5, 4, 3); it must be numbers (frames, bodies, 4)",
    ),
    "a field that is text": (
        _replaced("joint_pos", [["a"] * 3] * 5),
        "its joint_pos is <U1 (5, 3); it must be numbers (frames, joints)",
    ),
    "missing fields": (
        lambda content: [content.pop(field) for field in ("fps", "joint_vel")],
        "lacks fps, joint_vel",
    ),
    "no names and another robot": (
        lambda content: [
            content.pop("joint_names"),
            content.update(joint_vel=np.zeros((FRAMES, 4))),
        ],
        "its joint_vel has 4 columns, and the model has 3",
    ),
    "pickled names": (
        _replaced("body_names", np.array(["base", None], dtype=object)),
        "is no .npz, or damaged: Object arrays cannot be loaded when allow_pickle=False",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_file_is_refused_in_one_line(mistake, model, content, tmp_path):
    change, message = MISTAKES[mistake]
    change(content)
    path = _write(tmp_path / "walk.npz", content)
    with pytest.raises(ConfigError) as error:
        MotionClip.load(path, model)
    assert message in str(error.value)
    assert str(error.value).startswith(f"the motion {path}")
    assert "\n" not in str(error.value)


def test_what_is_no_npz_is_refused(model, content, tmp_path):
    whole = _write(tmp_path / "whole.npz", content).read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.npz").write_text("walk")
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "empty.npz").touch()
    os.mkfifo(tmp_path / "pipe.npz")
    for name, reason in {
        "half.npz": "is no .npz, or damaged: File is not a zip file",
        "text.npz": "is no .npz, or damaged: File is not a zip file",
        "one.npy": "is no .npz, or damaged: File is not a zip file",
        "empty.npz": "is no .npz, or damaged: File is not a zip file",
        "pipe.npz": "cannot be read: it is no regular file",
        "missing.npz": "cannot be read: No such file or directory",
    }.items():
        with pytest.raises(ConfigError, match=reason):
            MotionClip.load(tmp_path / name, model)
