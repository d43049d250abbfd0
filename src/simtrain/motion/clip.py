"""A motion of a robot, frame by frame: made of positions by MuJoCo, or read from a file.

A file is an ``.npz`` with mjlab's fields (``fps``, ``joint_pos``, ``joint_vel``, ``body_pos_w``,
``body_quat_w``, ``body_lin_vel_w``, ``body_ang_vel_w``) and two of ours, ``joint_names`` and
``body_names``, by which its columns are brought into the model's order. One without
names, as mjlab writes it, is taken to have the model's order if its sizes fit: the MJCF's, without
the world. Holosoma's has the root before the joints; that is left out, for it is among the bodies,
whose velocities are computed anew: its own are of centres of mass, and the angular ones are turned
by the base's rotation, as in the files that holosoma 0.0.3 ships.
"""

import functools
import io
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import mujoco
import numpy as np

from simtrain.errors import ConfigError, config_errors_of, did_you_mean
from simtrain.files import (
    available_memory,
    damage_as_config_error,
    gib,
    read_file,
    read_in_child_first,
)

_JOINT_FIELDS = {"joint_pos": 7, "joint_vel": 6}  # and their entries for a root
_BODY_FIELDS = {"body_pos_w": 3, "body_quat_w": 4, "body_lin_vel_w": 3, "body_ang_vel_w": 3}
_FIELDS = (*_JOINT_FIELDS, *_BODY_FIELDS)
_NAMES = ("joint_names", "body_names")
_UNIT_TOLERANCE = 1e-3
_APART = 0.1  # m; models of one robot differ by a few cm
_FREE = mujoco.mjtJoint.mjJNT_FREE.value
_FPS = (1.0, 1e4)


@dataclass(frozen=True, eq=False)
class MotionClip:
    """A motion of a model, with its hinges, slides and bodies in the model's order.

    Arrays are float32. Those of bodies are along the world's axes.
    """

    name: str
    """Name of the file, without its ending."""
    fps: float
    """Frames a second."""
    joint_names: tuple[str, ...]
    """Hinges and slides."""
    body_names: tuple[str, ...]
    """All bodies but the world."""
    joint_pos: np.ndarray
    """rad or m, ``(frames, joints)``."""
    joint_vel: np.ndarray
    """rad/s or m/s, ``(frames, joints)``."""
    body_pos_w: np.ndarray
    """Origins of the bodies (``xpos``), m, ``(frames, bodies, 3)``."""
    body_quat_w: np.ndarray
    """Orientations (``xquat``), w first, ``(frames, bodies, 4)``."""
    body_lin_vel_w: np.ndarray
    """Velocities of the origins, not of the centres of mass, m/s, ``(frames, bodies, 3)``."""
    body_ang_vel_w: np.ndarray
    """rad/s, ``(frames, bodies, 3)``."""

    @property
    def frames(self) -> int:
        """Number of frames, two or more."""
        return len(self.joint_pos)

    @property
    def seconds(self) -> float:
        """Time from the first frame to the last."""
        return (self.frames - 1) / self.fps

    @classmethod
    def load(cls, path: Path, model: mujoco.MjModel) -> Self:
        """The motion in a file; ConfigError, which says what is wrong, if it is not of `model`.

        Bodies that the model lacks are left out. That a file has no names is said once on stderr.
        """
        data, where, arrays = read_file(path, "the motion"), f"the motion {path}", {}
        joints, bodies = joint_names(model), body_names(model)
        with config_errors_of(where):
            with damage_as_config_error("it is no .npz, or damaged"):
                content = _unpacked(data)
                fps = _fps(content["fps"])
                for field in _FIELDS:
                    expected = joints if field in _JOINT_FIELDS else bodies
                    names = _names(content, field.split("_")[0], expected)
                    order = [names.index(name) for name in expected]
                    arrays[field] = _columns(content, field, len(names)).take(order, axis=1)
            _check_numbers(arrays, bodies)
            _check_bodies(arrays, model)
        if any(content[field].shape[1] > len(joints) for field in _JOINT_FIELDS):  # Holosoma's
            arrays |= _velocities(arrays["body_pos_w"], arrays["body_quat_w"], fps)
        if unnamed := " and ".join(name for name in _NAMES if name not in content):
            _warn_once(f"{where} has no {unnamed}: its order is taken for the model's")
        return cls(path.stem, fps, joints, bodies, **arrays)

    def of_bodies(self, bodies: int | list[int]) -> tuple[np.ndarray, ...]:
        """Positions, quaternions, velocities and angular velocities of some bodies."""
        return tuple(getattr(self, field)[:, bodies] for field in _BODY_FIELDS)

    def packed(self) -> bytes:
        """The content of its file, compressed."""
        # Numbers that follow each other in time are alike, and are packed tighter.
        content: dict[str, Any] = {n: np.asfortranarray(getattr(self, n)) for n in _FIELDS}
        content |= {name: np.array(getattr(self, name)) for name in _NAMES}
        file = io.BytesIO()
        np.savez_compressed(file, fps=np.array([self.fps]), **content)
        return file.getvalue()


@functools.cache
def _warn_once(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def joint_names(model: mujoco.MjModel) -> tuple[str, ...]:
    """Names of the hinges and slides of a model."""
    kinds = (mujoco.mjtJoint.mjJNT_HINGE.value, mujoco.mjtJoint.mjJNT_SLIDE.value)
    return tuple(model.joint(i).name for i in range(model.njnt) if model.jnt_type[i] in kinds)


def body_names(model: mujoco.MjModel) -> tuple[str, ...]:
    """Names of the bodies of a model without the world."""
    return tuple(model.body(i).name for i in range(1, model.nbody))


def check_names(kind: str, names: Sequence[str], expected: Sequence[str]) -> None:
    """Raise ConfigError unless `names` has each of the `expected` ones once; more bodies may be."""
    if double := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"it has the {kind} {double[0]!r} twice")
    unknown = [name for name in names if name not in expected]
    if kind == "joint" and unknown:
        near = did_you_mean(unknown[0], expected)
        raise ConfigError(f"the model has no joint {unknown[0]!r}{near}")
    if missing := [name for name in expected if name not in names]:
        near = did_you_mean(missing[0], unknown)
        raise ConfigError(f"it lacks the model's {kind} {missing[0]!r}{near}")


def _unpacked(data: bytes) -> dict[str, np.ndarray]:
    """The arrays in a file's content, as far as they are of a motion."""
    most = available_memory() // 2
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        size = sum(record.file_size for record in archive.infolist())
    if size > most:
        raise ConfigError(f"it unpacks to {gib(size)}, and at most {gib(most)} can be read")
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        if missing := [field for field in ("fps", *_FIELDS) if field not in arrays]:
            raise ConfigError(f"it lacks {', '.join(missing)}")
        return {name: arrays[name] for name in ("fps", *_FIELDS, *_NAMES) if name in arrays}


def _fps(fps: np.ndarray) -> float:
    if fps.size != 1 or fps.dtype.kind not in "iuf":
        raise ConfigError(f"its fps is {str(fps)[:50]}; it must be one number")
    low, high = _FPS
    if not low <= fps.item() <= high:
        raise ConfigError(f"its fps is {fps.item():g}; it must be {low:g} to {high:g}")
    return float(fps.item())


def _names(content: dict[str, np.ndarray], kind: str, expected: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the columns of joints or bodies; each of the `expected` ones is there once."""
    if (array := content.get(f"{kind}_names")) is None:
        return expected
    if array.ndim != 1 or array.dtype.kind not in "US":
        text = f"{array.dtype} {array.shape}; it must be text, a name a column"
        raise ConfigError(f"its {kind}_names is {text}")
    names = tuple(array.astype(str).tolist())
    check_names(kind, names, expected)
    return names


def _columns(content: dict[str, np.ndarray], field: str, count: int) -> np.ndarray:
    """A field as float32, ``(frames, count, ...)``, without a root's columns before the joints'."""
    array, size, its = content[field], _BODY_FIELDS.get(field), f"its {field}"
    kind, tail = ("body", (size,)) if size else ("joint", ())
    if array.dtype.kind not in "iuf" or array.ndim < 2 or array.shape[2:] != tail:
        shape = f"(frames, bodies, {size})" if size else "(frames, joints)"
        raise ConfigError(f"{its} is {array.dtype} {array.shape}; it must be numbers {shape}")
    if len(array) < 2:
        raise ConfigError(f"{its} has {len(array)} frames, not 2 or more")
    if len(array) != (frames := len(content["joint_pos"])):
        raise ConfigError(f"{its} has {len(array)} frames, and joint_pos has {frames}")
    if array.shape[1] not in (count, count + _JOINT_FIELDS.get(field, 0)):
        other = f"{kind}_names" if f"{kind}_names" in content else "the model"
        raise ConfigError(f"{its} has {array.shape[1]} columns, and {other} has {count}")
    with np.errstate(over="ignore"):  # `_check_numbers` refuses what becomes infinite
        return array[:, -count:].astype(np.float32)


def _check_numbers(arrays: dict[str, np.ndarray], bodies: tuple[str, ...]) -> None:
    """Raise ConfigError for numbers that are not finite, and quaternions that are not unit."""
    for field, array in arrays.items():
        finite = np.isfinite(array).reshape(len(array), -1).all(axis=1)
        if not finite.all():
            raise ConfigError(f"its {field} is not finite in frame {finite.argmin()}")
    lengths = np.linalg.norm(arrays["body_quat_w"].astype(np.float64), axis=-1)
    frame, body = np.unravel_index(np.abs(lengths - 1.0).argmax(), lengths.shape)
    if abs(lengths[frame, body] - 1.0) > _UNIT_TOLERANCE:
        text = f"of {bodies[body]} in frame {frame} has length {lengths[frame, body]:.4g}, not 1"
        raise ConfigError(f"the quaternion {text}")


def _check_bodies(arrays: dict[str, np.ndarray], model: mujoco.MjModel) -> None:
    """Raise ConfigError unless bodies are where the joints put them, in every tenth frame.

    Columns in another order, such as another simulator's, and quaternions x y z w show there.
    """
    data, free = mujoco.MjData(model), np.flatnonzero(model.jnt_type == _FREE)
    if not len(free):
        return
    root, adr = int(model.jnt_bodyid[free[0]]), int(model.jnt_qposadr[free[0]])
    joints = [model.joint(name).qposadr[0] for name in joint_names(model)]
    for frame in range(0, len(arrays["joint_pos"]), 10):
        place, turn, pose = (arrays[n][frame] for n in ("body_pos_w", "body_quat_w", "joint_pos"))
        data.qpos[adr : adr + 7] = np.concatenate((place[root - 1], turn[root - 1]))
        data.qpos[joints] = pose
        mujoco.mj_kinematics(model, data)
        off = np.linalg.norm(data.xpos[1:] - place, axis=1)
        if off.max() > _APART:
            body = f"{model.body(off.argmax() + 1).name} in frame {frame} is {off.max():.2f} m"
            reason = "its columns or quaternions have another order, or it is of another robot"
            raise ConfigError(f"{body} from where its joints put it; {reason}")


def _velocities(pos: np.ndarray, quat: np.ndarray, fps: float) -> dict[str, np.ndarray]:
    """Velocities of bodies by the differences of their poses."""
    from scipy.spatial.transform import Rotation

    turn, bodies = Rotation.from_quat(quat.reshape(-1, 4), scalar_first=True), quat.shape[1]
    steps = (turn[bodies:] * turn[:-bodies].inv()).as_rotvec().reshape(-1, bodies, 3) * fps
    linear = np.gradient(pos, 1.0 / fps, axis=0)
    angular = _mean_of_neighbours(steps).astype(np.float32)
    return {"body_lin_vel_w": linear, "body_ang_vel_w": angular}


def _mean_of_neighbours(steps: np.ndarray) -> np.ndarray:
    """The mean of the steps, ``(frames - 1, ...)``, before and after each frame."""
    padded = np.concatenate((steps[:1], steps, steps[-1:]))
    return np.asarray(0.5 * (padded[1:] + padded[:-1]))


def load_robot(path: Path, spec: mujoco.MjSpec | None = None) -> mujoco.MjModel:
    """Compile an MJCF of a robot with a floating base; it gets a floor if it has no plane.

    It is read from `path`, in a separate process first, unless it is there as `spec`. ConfigError
    if it cannot be used.
    """

    def compile_robot() -> mujoco.MjModel:
        try:
            robot = mujoco.MjSpec.from_file(str(path)) if spec is None else spec
            if not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in robot.worldbody.geoms):
                robot.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05])
            model = robot.compile()
        except (ValueError, mujoco.FatalError) as error:
            text = " ".join(str(error).split())
            raise ConfigError(f"{path} is not a valid model: {text}") from error
        check_robot(model, str(path))
        return model

    return compile_robot() if spec is not None else read_in_child_first(path, compile_robot)


def check_robot(model: mujoco.MjModel, where: str) -> None:
    """Raise ConfigError unless a model is of one free joint, then hinges and slides."""
    floats = model.njnt > 0 and model.jnt_type[0] == _FREE
    if not floats or model.nq != 7 + len(joint_names(model)):
        needed = "of a free joint, followed by hinges and slides alone"
        raise ConfigError(f"{where} is not {needed}, as robots of motions must be")


def root_body(model: mujoco.MjModel) -> int:
    """The id of the body that floats."""
    return int(model.jnt_bodyid[0])


def qpos_of(clip: MotionClip, model: mujoco.MjModel) -> np.ndarray:
    """A motion as MuJoCo's positions, float64, ``(frames, nq)``."""
    root = root_body(model) - 1
    parts = (clip.body_pos_w[:, root], clip.body_quat_w[:, root], clip.joint_pos)
    return np.concatenate(parts, axis=1, dtype=np.float64)


def qvel_of(model: mujoco.MjModel, qpos: np.ndarray, fps: float) -> np.ndarray:
    """Velocities of positions ``(frames, nq)`` by ``mj_differentiatePos``: ``(frames, nv)``.

    In each frame it is the mean of the differences to the frame before and the frame after.
    """
    steps = np.zeros((len(qpos) - 1, model.nv))
    for i in range(len(steps)):
        # A turn of the base has the same entries in both of its frames: it is about its own axis.
        mujoco.mj_differentiatePos(model, steps[i], 1.0 / fps, qpos[i], qpos[i + 1])
    return _mean_of_neighbours(steps)


def clip_of(model: mujoco.MjModel, name: str, fps: float, qpos: np.ndarray) -> MotionClip:
    """The motion through positions ``(frames, nq)`` of a `load_robot` model, two or more.

    Positions are rounded to 8 um or urad, and velocities to 0.2 mm/s or mrad/s, so that its file
    is half as large.
    """
    qpos = np.concatenate((_rounded(qpos[:, :3], 17), qpos[:, 3:7], _rounded(qpos[:, 7:], 17)), 1)
    qvel = qvel_of(model, qpos, fps)
    data, frames = mujoco.MjData(model), []
    for data.qpos, data.qvel in zip(qpos, qvel, strict=True):
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_comVel(model, data)
        # cvel is of the point of the body that is at its robot's centre of mass.
        arm, angular = data.xpos - data.subtree_com[model.body_rootid], data.cvel[:, :3].copy()
        linear = data.cvel[:, 3:] + np.cross(angular, arm)
        frames.append((data.xpos.copy(), data.xquat.copy(), linear, angular))
    pos, quat, *velocities = (np.array(rows)[:, 1:] for rows in zip(*frames, strict=True))
    places = [_rounded(array, 17) for array in (pos, quat)]
    joint_vel, *body_vel = (_rounded(array, 12) for array in (qvel[:, 6:], *velocities))
    arrays = (qpos[:, 7:], joint_vel, *places, *body_vel)
    float32 = (np.ascontiguousarray(array, dtype=np.float32) for array in arrays)
    return MotionClip(name, fps, joint_names(model), body_names(model), *float32)


def _rounded(array: np.ndarray, bits: int) -> np.ndarray:
    """The array with so many bits after the point."""
    return np.asarray(np.ldexp(np.round(np.ldexp(array, bits)), -bits))
