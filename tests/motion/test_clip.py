"""Motion files: columns are found by their names, and what is wrong is told in one line."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from motions import write_clip

from simtrain.errors import ConfigError
from simtrain.motion.clip import MotionClip

FRAMES = 5


@pytest.fixture
def content(model, tmp_path) -> dict[str, np.ndarray]:
    """A file whose columns have the model's order."""
    with np.load(write_clip(tmp_path / "content.npz", model, FRAMES)) as arrays:
        return {n: v if n.endswith("names") else v.astype(float) for n, v in arrays.items()}


def _write(path: Path, content: dict[str, np.ndarray]) -> Path:
    np.savez(path, **content)
    return path


def _is_same(clip: MotionClip, content: dict[str, np.ndarray]) -> None:
    for field in (name for name in content if name[-4:] in ("_pos", "_vel", "el_w", "os_w")):
        array = getattr(clip, field)
        assert array.dtype == np.float32
        assert array.tobytes() == content[field].astype(np.float32).tobytes()


def test_a_file_is_read_in_the_models_order_whatever_its_own_and_written(model, content, tmp_path):
    rng, shuffled = np.random.default_rng(1), dict(content)
    for kind in ("joint", "body"):
        order = rng.permutation(len(content[f"{kind}_names"]))
        for field in (f for f in content if f.startswith(kind) and not f.endswith("names")):
            shuffled[field] = content[field][:, order]
        shuffled[f"{kind}_names"] = content[f"{kind}_names"][order]
    for name, written in {"walk": content, "shuffled": shuffled}.items():
        clip = MotionClip.load(_write(tmp_path / f"{name}.npz", written), model)
        assert (clip.name, clip.fps, clip.frames, clip.seconds) == (name, 50.0, FRAMES, 0.08)
        assert clip.joint_names == ("mast", "left", "right")
        assert clip.body_names == ("base", "mast", "left", "right")
        _is_same(clip, content)
        assert clip.joint_pos.flags.c_contiguous
    (tmp_path / "again.npz").write_bytes(clip.packed())
    _is_same(MotionClip.load(tmp_path / "again.npz", model), content)


def test_mjlabs_file_without_names_is_taken_with_one_warning(model, content, tmp_path, capsys):
    for name in ("joint_names", "body_names"):
        del content[name]
    path = _write(tmp_path / "walk.npz", content)
    _is_same(MotionClip.load(path, model), content)
    MotionClip.load(path, model)
    text = "joint_names and body_names: its order is taken for the model's"
    assert capsys.readouterr().err == f"warning: the motion {path} has no {text}\n"


def test_holosomas_file_has_the_root_before_the_joints_and_more_bodies(model, content, tmp_path):
    """Velocities of its bodies are those of their poses."""
    holosoma = content | {"fps": np.array(50), "object_pos_w": np.zeros((FRAMES, 3))}
    for field, root in {"joint_pos": 7, "joint_vel": 6}.items():
        holosoma[field] = np.hstack((np.full((FRAMES, root), 9.0), content[field]))
    holosoma["body_names"] = np.array(["world", *content["body_names"]])
    for field in (f for f in content if f.endswith("_w")):
        first = np.full_like(content[field][:, :1], np.nan)
        own = -content[field] if "vel" in field else content[field]
        holosoma[field] = np.concatenate((first, own), axis=1)
    clip = MotionClip.load(_write(tmp_path / "walk.npz", holosoma), model)
    _is_same(clip, {name: content[name] for name in ("joint_pos", "joint_vel", "body_pos_w")})
    for field in ("body_lin_vel_w", "body_ang_vel_w"):
        np.testing.assert_allclose(getattr(clip, field), content[field], atol=0.02)


def _changed(content: dict[str, np.ndarray], field: str, index: object, value: float):
    array = content[field].copy()
    array[index] = value
    return {field: array}


def _cut(content: dict[str, np.ndarray], frames: int):
    return {name: v[:frames] for name, v in content.items() if v.ndim > 1}


OTHER_ORDER = "from where its joints put it; its columns or quaternions have another order, or"
HANDS = ["base", "mast", "left", "right", "hand"]
MISTAKES = [
    ({"joint_names": ["mast", "left", "hop"]}, "the model has no joint 'hop'"),
    ({"body_names": [*HANDS[:3], "right1"]}, "the model's body 'right' (did you mean 'right1'?)"),
    ({"joint_names": ["mast", "left", "left"]}, "has the joint 'left' twice"),
    ({"joint_names": [1, 2, 3]}, "its joint_names is int64 (3,); it must be text, a name a column"),
    ({"body_names": HANDS}, "its body_pos_w has 4 columns, and body_names has 5"),
    (lambda c: _changed(c, "joint_vel", (3, 1), np.nan), "its joint_vel is not finite in frame 3"),
    (lambda c: _changed(c, "body_pos_w", (2, 1), 1e60), "its body_pos_w is not finite in frame 2"),
    (lambda c: _changed(c, "body_quat_w", (4, 2), 0.6), "the quaternion of left in frame 4 has"),
    (lambda c: {"body_quat_w": c["body_quat_w"][..., [1, 2, 3, 0]]}, OTHER_ORDER),
    (lambda c: {name: c[name][:, ::-1] for name in ("joint_pos", "joint_vel")}, OTHER_ORDER),
    (lambda c: _cut(c, 0), "its joint_pos has 0 frames, not 2 or more"),
    (lambda c: _cut(c, 1), "its joint_pos has 1 frames, not 2 or more"),
    ({"body_lin_vel_w": np.zeros((4, 4, 3))}, "its body_lin_vel_w has 4 frames, and joint_pos has"),
    ({"fps": 0}, "its fps is 0; it must be 1 to 10000"),
    ({"fps": np.nan}, "its fps is nan; it must be 1 to 10000"),
    ({"fps": [50, 30]}, "its fps is [50 30]; it must be one number"),
    ({"joint_names": [b"\xff"] * 3}, "no .npz, or damaged: 'ascii'"),
    ({"body_quat_w": np.zeros((5, 4, 3))}, "(5, 4, 3); it must be numbers (frames, bodies, 4)"),
    ({"joint_pos": [["a"] * 3] * 5}, "its joint_pos is <U1 (5, 3); it must be numbers (frames, jo"),
    ({"fps": None, "joint_vel": None}, "lacks fps, joint_vel"),
    ({"joint_names": None, "joint_vel": np.zeros((FRAMES, 4))}, "4 columns, and the model has 3"),
    ({"body_names": np.array(["base", []], dtype=object)}, "damaged: Object arrays cannot be"),
]


@pytest.mark.parametrize(("change", "message"), MISTAKES)
def test_a_wrong_file_is_refused_in_one_line(change, message, model, content, tmp_path):
    content |= change(content) if callable(change) else change
    path = _write(
        tmp_path / "walk.npz", {n: np.array(v) for n, v in content.items() if v is not None}
    )
    with pytest.raises(ConfigError) as error:
        MotionClip.load(path, model)
    assert message in str(error.value)
    assert str(error.value).startswith(f"the motion {path}")
    assert "\n" not in str(error.value)


def test_what_is_no_npz_is_refused(model, content, tmp_path):
    whole = _write(tmp_path / "whole.npz", content).read_bytes()
    (tmp_path / "half.npz").write_bytes(whole[: len(whole) // 2])
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "empty.npz").touch()
    os.mkfifo(tmp_path / "pipe.npz")
    for name, reason in {
        "half.npz": "is no .npz, or damaged: File is not a zip file",
        "one.npy": "is no .npz, or damaged: File is not a zip file",
        "empty.npz": "is no .npz, or damaged: File is not a zip file",
        "pipe.npz": "cannot be read: it is no regular file",
        "missing.npz": "cannot be read: No such file or directory",
    }.items():
        with pytest.raises(ConfigError, match=reason):
            MotionClip.load(tmp_path / name, model)
