"""Files of recorded people: the position of each joint in each frame, in the file's axes and unit.

A BVH is read by bvhio; an ``.npy`` or ``.npz`` has positions ``(frames, joints, 3)``, and an AMASS
``.npz`` has rotations. AMASS's body models have licences of their own, so the rotations are applied
to a skeleton in SMPL's T-pose, with standard proportions (Winter, Biomechanics and Motor Control of
Human Movement, figure 4.1).
"""

import io
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import bvhio
import numpy as np
from scipy.spatial.transform import Rotation

from simtrain.errors import ConfigError, config_errors_of
from simtrain.files import check_uncompressed, damage_as_config_error, read_file

_LARGEST, _FARTHEST = 2**27, 1e9  # bytes of a file, and of what is packed in it; any unit
_LOWEST_RATE = 10.0  # frames a second
_SHORTEST = 0.5  # s
_STILL = 0.01  # parts of the body's size
_CALIBRATION, _JUMP = 3, 0.1  # frames; parts of the body's size
_USUAL_RATE, _RATES = 30.0, ("mocap_framerate", "mocap_frame_rate", "fps")
_INTERMIMIC = 591  # numbers a frame
_SMPL_JOINTS = (
    "pelvis", "left_hip", "right_hip", "spine1", "left_knee", "right_knee", "spine2", "left_ankle",
    "right_ankle", "spine3", "left_foot", "right_foot", "neck", "left_collar", "right_collar",
    "head", "left_shoulder", "right_shoulder", "left_elbow", "right_elbow", "left_wrist",
    "right_wrist",
)  # fmt: skip
"""The first 22 joints of SMPL, SMPL-H and SMPL-X, in their order."""
_SMPL_PARENTS = (-1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 12, 13, 14, 16, 17, 18, 19)
_HEIGHT = 1.7  # m; which one does not matter, for the robot's size is its own
_OFFSETS = {  # of the left and the middle, parts of the height: to the left, up, ahead
    "hip": (0.05, -0.02, 0.0), "knee": (0.0, -0.245, 0.0), "ankle": (0.0, -0.246, 0.0),
    "foot": (0.0, -0.03, 0.08), "spine1": (0.0, 0.07, 0.0), "spine2": (0.0, 0.08, 0.0),
    "spine3": (0.0, 0.03, 0.0), "neck": (0.0, 0.13, 0.0), "collar": (0.04, 0.08, 0.0),
    "head": (0.0, 0.05, 0.0), "shoulder": (0.075, 0.02, 0.0), "elbow": (0.16, 0.0, 0.0),
    "wrist": (0.146, 0.0, 0.0), "pelvis": (0.0, 0.0, 0.0),
}  # fmt: skip


@dataclass(frozen=True)
class Recording:
    """A person's joints in each frame."""

    fps: float
    names: tuple[str, ...]
    """Names of joints and of the ends of the last ones."""
    parents: tuple[int, ...]
    """The parent of each joint, -1 for the first; empty if the file does not contain it."""
    positions: np.ndarray
    """Positions in the file's axes and unit, ``(frames, joints, 3)``."""


def read_recording(path: Path, fps: float | None = None, names: tuple[str, ...] = ()) -> Recording:
    """The recording in a file; ConfigError, in one line, if it is not a recording.

    `fps` and `names` are for arrays of positions, which do not contain them.
    """
    data, kind = read_file(path, "the recording", _LARGEST), path.suffix.lower()
    damage = damage_as_config_error(f"it is no {kind.replace('.bvh', 'BVH')}, or damaged")
    with config_errors_of(f"the recording {path}"), damage, np.errstate(all="ignore"):
        if not data:
            raise ConfigError("it is empty")
        if kind == ".bvh":
            recording = _read_bvh(path, data)
        elif kind in (".npy", ".npz"):
            recording = _read_arrays(data, fps, names)
        elif kind == ".pt":
            recording = _read_tensor(data, fps)
        else:
            raise ConfigError("its name must end with .bvh, .npy, .npz or .pt")
        return _checked(_without_calibration(_checked(recording)))


def _without_calibration(recording: Recording) -> Recording:
    """The same without the T-pose of a frame or two at the start, as in CMU's files."""
    positions = recording.positions
    steps = np.abs(np.diff(positions, axis=0)).max(axis=(1, 2))
    jumps = np.flatnonzero(steps[:_CALIBRATION] > _JUMP * np.ptp(positions[0], axis=0).max())
    return replace(recording, positions=positions[jumps.max() + 1 :]) if len(jumps) else recording


def _checked(recording: Recording) -> Recording:
    """The recording; ConfigError if no robot can follow it."""
    positions, fps = recording.positions, recording.fps
    if not np.isfinite(fps) or fps < _LOWEST_RATE:
        raise ConfigError(
            f"it has {fps:.3g} frames a second; it must have {_LOWEST_RATE:g} or more"
        )
    if len(positions) < round(_SHORTEST * fps) + 1:
        raise ConfigError(f"it has {len(positions)} frames, less than {_SHORTEST:g} s")
    _check_finite(positions)
    size = np.ptp(positions[0], axis=0).max()
    if not np.ptp(positions, axis=0).max() > _STILL * size:
        raise ConfigError("nothing moves in it")
    return recording


def _check_finite(values: np.ndarray) -> None:
    """Raise ConfigError if a number is not finite, or too large; a row of `values` is a frame."""
    finite = (np.abs(values) < _FARTHEST).all(axis=tuple(range(1, values.ndim)))
    if not finite.all():
        text = f"a number is not finite, or above {_FARTHEST:g}"
        raise ConfigError(f"{text}, in frame {finite.argmin()}")


def _read_bvh(path: Path, data: bytes) -> Recording:
    text = data.decode("utf-8-sig", errors="replace")
    head = re.search(r"^\s*Frame\s+Time.*$", text, re.MULTILINE | re.IGNORECASE)
    if head is None:  # bvhio reads on for ever
        raise ConfigError("it is no BVH, or damaged: it has no line 'Frame Time'")
    with tempfile.NamedTemporaryFile("w", suffix=".bvh") as plain:
        plain.write(_plain_head(text[: head.end()]))
        plain.flush()
        file = bvhio.readAsBvh(plain.name, loadKeyFrames=False)
    if not file.FrameTime > 0.0:
        raise ConfigError(f"its frame time is {file.FrameTime:g} s")
    joints = [(joint, depth) for joint, _, depth in file.Root.layout()]
    channels = sum(len(joint.Channels) for joint, _ in joints)
    lines = [line for line in text[head.end() :].splitlines() if line.strip()]
    for frame, line in enumerate(lines):
        if (count := len(line.split())) != channels:
            raise ConfigError(f"frame {frame} has {count} numbers; its head says {channels}")
    if len(lines) != file.FrameCount:
        raise ConfigError(f"it has {len(lines)} frames; its head says {file.FrameCount}")
    values = np.loadtxt(lines, ndmin=2) if lines else np.zeros((0, channels))
    _check_finite(values)
    rows: list[tuple[str, int, np.ndarray, Rotation]] = []
    above: list[int] = []  # the joint that is open at each depth
    column = 0
    for joint, depth in joints:
        block = values[:, column : column + len(joint.Channels)]
        column += len(joint.Channels)
        kinds = [name.lower() for name in joint.Channels]
        offset = np.tile(np.array(joint.Offset, dtype=float), (len(values), 1))
        for axis, name in enumerate("xyz"):
            if f"{name}position" in kinds:
                offset[:, axis] = block[:, kinds.index(f"{name}position")]
        if unknown := [kind for kind in kinds if not re.fullmatch("[xyz](posi|rota)tion", kind)]:
            raise ConfigError(f"{joint.Name} has a channel {unknown[0]!r}, no position or rotation")
        turned = [kind.endswith("rotation") for kind in kinds]
        axes = "".join(kind[0].upper() for kind in kinds if kind.endswith("rotation"))
        still = Rotation.identity(len(values))
        turn = Rotation.from_euler(axes, block[:, turned], degrees=True) if axes else still
        above[depth:] = [len(rows)]
        rows.append((joint.Name, above[depth - 1] if depth else -1, offset, turn))
        if not joint.Children and any(joint.EndSite):
            end = np.array(joint.EndSite, dtype=float)
            rows.append((f"{joint.Name} end", above[depth], end, still))
    names, parents, offsets, turns = zip(*rows, strict=True)
    return Recording(1.0 / file.FrameTime, names, parents, _placed(parents, offsets, turns))


def _plain_head(text: str) -> str:
    """The hierarchy as bvhio reads it: braces on lines of their own, names without blanks."""
    text = re.sub(r"[{}]", r"\n\g<0>\n", text)
    words = "HIERARCHY|ROOT|JOINT|End Site|OFFSET|CHANNELS|MOTION|Frames|Frame Time"
    blanks = r"[ \t]+"
    for word in words.split("|"):
        pattern = rf"^[ \t]*{blanks.join(word.split())}(?=[\s:]|$)"
        text = re.sub(pattern, word, text, flags=re.MULTILINE | re.IGNORECASE)

    def joined(line: re.Match[str]) -> str:
        return f"{line[1]} {'_'.join(line[2].split())}"

    text = re.sub(r"^(ROOT|JOINT)[ \t]+(.*)$", joined, text, flags=re.MULTILINE)
    return "".join(f"{line.strip()}\n" for line in text.splitlines() if line.strip())


def _placed(
    parents: Sequence[int], offsets: Sequence[np.ndarray], turns: Sequence[Rotation]
) -> np.ndarray:
    """Positions ``(frames, joints, 3)`` from each joint's offset and rotation in its parent."""
    places: list[np.ndarray] = []
    rotations: list[Rotation] = []
    for parent, place, turn in zip(parents, offsets, turns, strict=True):
        root = parent < 0
        places.append(place if root else places[parent] + rotations[parent].apply(place))
        rotations.append(turn if root else rotations[parent] * turn)
    return np.stack(places, axis=1)


def _read_arrays(data: bytes, fps: float | None, names: tuple[str, ...]) -> Recording:
    """Positions, or AMASS's rotations; 30 frames a second if neither file nor `fps` gives it."""
    content = np.load(io.BytesIO(data), allow_pickle=False)
    if isinstance(content, np.ndarray):
        arrays = {"positions": content}
    else:
        check_uncompressed(content.zip, _LARGEST)
        arrays = dict(content)
    rates = [arrays[name] for name in _RATES if name in arrays]
    rate = fps or float(np.asarray(rates[0] if rates else _USUAL_RATE).reshape(-1)[0])
    if "trans" in arrays and ("poses" in arrays or "root_orient" in arrays):
        return Recording(rate, _SMPL_JOINTS, _SMPL_PARENTS, _amass_positions(arrays))
    if "joint_pos" in arrays and arrays["joint_pos"].ndim == 2:
        raise ConfigError("it is the motion of a robot; `motion check` and `convert` are for these")
    shaped = [a for a in arrays.values() if a.ndim == 3 and a.shape[2] == 3 and a.dtype.kind == "f"]
    if len(shaped) != 1:
        text = f"{len(shaped)} arrays of positions (frames, joints, 3)"
        raise ConfigError(f"it has {text}, not one, and it is no AMASS file with poses and trans")
    for field in ("names", "joint_names"):
        if not names and field in arrays:
            names = tuple(arrays[field].astype(str).reshape(-1).tolist())
    return _named(rate, shaped[0].astype(float), names)


def _amass_positions(arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Joints of an AMASS file, m, in its axes, ``(frames, 22, 3)``."""
    if "poses" in arrays:
        poses = arrays["poses"]
    else:
        poses = np.concatenate((arrays["root_orient"], arrays["pose_body"]), axis=1)
    frames, count = len(arrays["trans"]), len(_SMPL_JOINTS)
    if poses.ndim != 2 or poses.shape[0] != frames or poses.shape[1] < 3 * count:
        raise ConfigError(
            f"its poses are {poses.shape}; they must be ({frames}, {3 * count} or more)"
        )
    for rows in (arrays["trans"], poses):
        _check_finite(rows)
    offsets = [np.asarray(arrays["trans"], dtype=float)]
    for name in _SMPL_JOINTS[1:]:
        side = [-1.0, 1.0, 1.0] if name.startswith("right") else 1.0
        offsets.append(_HEIGHT * np.array(_OFFSETS[name.split("_")[-1]]) * side)
    turns = [Rotation.from_rotvec(poses[:, 3 * j : 3 * j + 3]) for j in range(count)]
    return _placed(_SMPL_PARENTS, offsets, turns)


def _read_tensor(data: bytes, fps: float | None) -> Recording:
    """OMOMO in InterMimic's format: 591 numbers per frame."""
    import torch

    rows = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if not isinstance(rows, torch.Tensor) or rows.ndim != 2 or rows.shape[1] != _INTERMIMIC:
        raise ConfigError(f"it must be a tensor (frames, {_INTERMIMIC}), as InterMimic's files are")
    if rows.numel() > len(data):
        raise ConfigError(f"it claims {len(rows)} frames, more than are in it")
    positions = rows[:, 162 : 162 + 3 * 52].reshape(-1, 52, 3).double().detach().numpy()
    return _named(fps or _USUAL_RATE, positions, ())


def _named(fps: float, positions: np.ndarray, names: tuple[str, ...]) -> Recording:
    names = names or _NAMED.get(positions.shape[1], ())
    if len(names) != positions.shape[1]:
        text = f"it has {positions.shape[1]} joints, and {len(names)} names are known"
        raise ConfigError(f"{text}; name them with --names")
    return Recording(fps, names, (), positions)


_SIDES = ("left", "right")
_LEGS = " ".join(f"{side}_{part}" for side in _SIDES for part in ("hip", "knee", "ankle", "toe"))
_ARM = "collar", "shoulder", "elbow", "wrist", *(f"finger{i}" for i in range(15))
_ARMS = " ".join(f"{side}_{part}" for side in _SIDES for part in _ARM)
_NAMED = {
    22: _SMPL_JOINTS,
    24: (*_SMPL_JOINTS, "left_hand", "right_hand"),
    52: tuple(f"pelvis {_LEGS} torso spine chest neck head {_ARMS}".split()),
    53: tuple(f"hips spine spine1 neck head {_ARMS} {_LEGS} left_sole right_sole".split()),
}
"""Joints by their number, for files without names: SMPL's, OMOMO's, and holosoma's recordings."""
