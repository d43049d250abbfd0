"""Motions from keyframes, targets of soles, pelvis and hands, by mink's inverse kinematics.

Keyframes are YAML:

  start: knees_bent                # the MJCF's keyframe that all begin from
  soles: [left_foot, right_foot]   # sites or bodies that only go where they are told to
  motions:
    squat:
      - {time: 0.5}
      - {time: 2.5, pelvis: {z: -0.25, pitch: 20}, left_hand: {x: 0.2}}
      - {time: 4.5, pelvis: {z: 0, pitch: 0}, left_hand: {x: 0}}

``x``, ``y`` and ``z`` are m from where the part is at the start, along the world's axes; ``roll``,
``pitch`` and ``yaw`` are degrees about them. A keyframe changes only the coordinates that it names.
Coordinates that no keyframe names follow from posture and balance: the centre of mass is over the
middle of the soles, or of those in ``over``. Between keyframes everything moves with minimum jerk,
and rests at each (Flash and Hogan, 1985).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mink
import mujoco
import numpy as np
from scipy.interpolate import BPoly

from simtrain.errors import ConfigError, config_errors_of, did_you_mean
from simtrain.files import check_path, damage_as_config_error, read_yaml
from simtrain.motion.clip import MotionClip, body_names, clip_of, root_body

_AXES = ("x", "y", "z", "roll", "pitch", "yaw")
_SOLES, _PARTS, _TURN, _BALANCE, _POSTURE = 100.0, 20.0, 5.0, 20.0, 0.3  # costs
_ITERATIONS, _CONVERGED, _DAMPING = 50, 1e-5, 0.03
_LARGEST_FILE = 2**20  # bytes
_FROM_LIMITS = 0.03  # rad
_MISSED = 0.01  # m
_LONGEST = 600.0  # s
_LARGEST_NUMBER = 1e6


@dataclass(frozen=True)
class Keyframe:
    """Coordinates that change at one time of a motion."""

    time: float
    """s"""
    over: tuple[str, ...] = ()
    """The soles that the centre of mass is over from now on; none for those of before."""
    parts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By site or body, the coordinates that change: m and degrees from the start."""


@dataclass(frozen=True)
class Motion:
    """A motion to be made."""

    name: str
    start: str
    """The model's keyframe that it begins from."""
    soles: tuple[str, ...]
    keyframes: tuple[Keyframe, ...]


def read_motions(path: Path) -> dict[str, Motion]:
    """The motions in a file of keyframes; ConfigError, which says where, for a mistake in it."""
    with config_errors_of(str(path)), damage_as_config_error("it has no keyframes"):
        content = read_yaml(path, "the keyframes", _LARGEST_FILE)
        if {*content} != {"start", "soles", "motions"}:
            raise ConfigError("it must have start, soles and motions, and nothing else")
        start, soles, motions = str(content["start"]), content["soles"], content["motions"]
        if not isinstance(motions, dict) or not motions:
            raise ConfigError("motions must name one or more")
        if not isinstance(soles, list) or not soles:
            raise ConfigError("soles must be a list of one or more sites or bodies")
        for name in motions:
            if not isinstance(name, str) or not name or Path(name).name != name:
                raise ConfigError(f"{name!r} cannot be a motion's name: its file is named so")
            check_path(name, "the motion")
        soles = tuple(map(str, soles))
        return {
            name: Motion(name, start, soles, _keyframes(name, soles, entries))
            for name, entries in motions.items()
        }


def make_motion(motion: Motion, model: mujoco.MjModel, fps: float = 50.0) -> MotionClip:
    """The motion of a `load_robot` model; ConfigError where it cannot be reached."""
    with config_errors_of(motion.name):
        return clip_of(model, motion.name, fps, _solve(motion, model, fps))


def _solve(motion: Motion, model: mujoco.MjModel, fps: float) -> np.ndarray:
    """The motion's positions, ``(frames, nq)``."""
    if motion.start not in (names := [model.key(i).name for i in range(model.nkey)]):
        near = did_you_mean(motion.start, names)
        raise ConfigError(f"the model has no keyframe {motion.start!r}{near}")
    configuration = mink.Configuration(model)
    configuration.update_from_keyframe(motion.start)
    times = np.arange(round(motion.keyframes[-1].time * fps) + 1) / fps
    if len(times) < 2:
        raise ConfigError("its keyframes end before the second frame")
    parts = {
        name: _Part(configuration, motion, name, axes, times)
        for name, axes in _controlled(motion, model).items()
    }
    centers = _centers(motion, parts, times)
    posture = mink.PostureTask(model, _POSTURE)
    posture.set_target_from_configuration(configuration)
    balance = mink.ComTask([_BALANCE, _BALANCE, 0.0])
    tasks = [posture, balance, *(task for part in parts.values() for task in part.tasks)]
    limits = [mink.ConfigurationLimit(model, min_distance_from_limits=_FROM_LIMITS)]
    qpos = np.zeros((len(times), model.nq))
    for i, time in enumerate(times):
        balance.set_target(np.append(centers[i], 0.0))
        for part in parts.values():
            part.go_on(i)
        try:
            for _ in range(_ITERATIONS):
                step = mink.solve_ik(
                    configuration, tasks, 1.0, "daqp", damping=_DAMPING, limits=limits
                )
                configuration.integrate_inplace(step, 1.0)
                if np.abs(step).max() < _CONVERGED:
                    break
        except mink.NoSolutionFound as error:
            text = f"after {time:.2f} s no pose is within the ranges of the joints"
            narrow = f"some may be narrower than {2 * _FROM_LIMITS:g} rad or m"
            raise ConfigError(f"{text}; {narrow}") from error
        qpos[i] = configuration.q
        errors = {name: part.compute_error(configuration) for name, part in parts.items()}
        missed = {name: float(np.linalg.norm(error)) for name, error in errors.items()}
        missed["the center of mass"] = float(np.abs(balance.compute_error(configuration)[:2]).max())
        worst = max(missed, key=lambda name: missed[name])
        if missed[worst] > _MISSED:
            text = f"after {time:.2f} s {worst} is {missed[worst]:.3f} m from where it is to be"
            raise ConfigError(f"{text}; it is out of reach")
    return qpos


class _Part(mink.Task):
    """A site or body that follows its coordinates in the keyframes: a task for its position."""

    def __init__(
        self,
        configuration: mink.Configuration,
        motion: Motion,
        name: str,
        axes: Collection[str],
        times: np.ndarray,
    ) -> None:
        model, is_sole = configuration.model, name in motion.soles
        sites, bodies = [model.site(i).name for i in range(model.nsite)], body_names(model)
        if name not in sites and name not in bodies:
            near = did_you_mean(name, (*sites, *bodies))
            raise ConfigError(f"the model has no site or body {name!r}{near}")
        self._frame = name, "site" if name in sites else "body"
        self._axes = [i for i, axis in enumerate(_AXES[:3]) if axis in axes]
        cost = np.full(len(self._axes), _SOLES if is_sole else _PARTS)
        super().__init__(cost=cost, lm_damping=1.0)
        self._start = configuration.get_transform_frame_to_world(*self._frame)
        values = np.zeros((len(motion.keyframes), len(_AXES)))
        for row, keyframe in enumerate(motion.keyframes):
            for axis, value in keyframe.parts.get(name, {}).items():
                values[row:, _AXES.index(axis)] = value
        values[:, 3:] = np.radians(values[:, 3:])
        self.places = self._start.translation() + values[:, :3]
        """Position in each keyframe, m, ``(keyframes, 3)``; valid in coordinates that are given."""
        self._target, self._path = self.places[0], _minimum_jerk(motion, values, times)
        self._turn = mink.FrameTask(*self._frame, 0.0, _SOLES if is_sole else _TURN, lm_damping=1.0)
        self.tasks: list[mink.Task] = [self] if self._axes else []
        self.tasks += [self._turn] if {*_AXES[3:]} & {*axes} else []

    def go_on(self, frame: int) -> None:
        """Set the tasks' targets to those of a frame."""
        self._target = self._start.translation() + self._path[frame, :3]
        turned = mink.SO3.from_rpy_radians(*self._path[frame, 3:])
        rotation = turned.multiply(self._start.rotation())
        self._turn.set_target(mink.SE3.from_rotation(rotation))

    def compute_error(self, configuration: mink.Configuration) -> np.ndarray:
        """Difference of the position from the target in coordinates that are given, m."""
        place = configuration.get_transform_frame_to_world(*self._frame).translation()
        return np.asarray((place - self._target)[self._axes])

    def compute_jacobian(self, configuration: mink.Configuration) -> np.ndarray:
        """Derivative of the error by the degrees of freedom, ``(axes, nv)``."""
        frame = configuration.get_transform_frame_to_world(*self._frame)
        # mink's is along the axes of the site or body.
        own = configuration.get_frame_jacobian(*self._frame)[:3]
        return np.asarray((frame.rotation().as_matrix() @ own)[self._axes])


def _controlled(motion: Motion, model: mujoco.MjModel) -> dict[str, set[str]]:
    """The parts that have targets, with their coordinates: soles, the base, and named ones."""
    base = model.body(root_body(model)).name
    controlled = {name: {*_AXES} for name in motion.soles}
    controlled[base] = {"z", *_AXES[3:]}
    for keyframe in motion.keyframes:
        for name, coordinates in keyframe.parts.items():
            controlled.setdefault(name, set()).update(coordinates)
    return controlled


def _centers(motion: Motion, parts: Mapping[str, _Part], times: np.ndarray) -> np.ndarray:
    """Horizontal targets of the centre of mass, m, ``(frames, 2)``."""
    over, places = motion.soles, []
    for row, keyframe in enumerate(motion.keyframes):
        over = keyframe.over or over
        places.append(np.mean([parts[name].places[row, :2] for name in over], axis=0))
    return _minimum_jerk(motion, np.array(places), times)


def _minimum_jerk(motion: Motion, values: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Values of the keyframes ``(keyframes, n)`` at all times, ``(frames, n)``."""
    knots, rest = [keyframe.time for keyframe in motion.keyframes], np.zeros_like(values)
    path = BPoly.from_derivatives(knots, np.stack((values, rest, rest), axis=1))
    return np.asarray(path(times.clip(max=knots[-1])))


def _keyframes(name: str, soles: tuple[str, ...], content: Any) -> tuple[Keyframe, ...]:
    """The keyframes of a motion, with one at its beginning; ConfigError for a mistake."""
    if not isinstance(content, list) or not content:
        raise ConfigError(f"{name} must be a list of keyframes")
    keyframes = [Keyframe(0.0)]
    for number, entry in enumerate(content, start=1):
        with config_errors_of(f"{name}, keyframe {number}"):
            keyframes.append(_keyframe(entry, keyframes[-1].time, soles))
    return tuple(keyframes)


def _keyframe(entry: Any, before: float, soles: tuple[str, ...]) -> Keyframe:
    """A keyframe at a time after `before`, s."""
    if not isinstance(entry, dict) or not _is_number(entry.get("time")):
        raise ConfigError("it must have a time, s, and what changes then")
    if not before < (time := float(entry["time"])) <= _LONGEST:
        text = f"its time, {time:g} s, must be after the one before"
        raise ConfigError(f"{text}, and at most {_LONGEST:g} s")
    parts = {str(name): value for name, value in entry.items() if name not in ("time", "over")}
    for name, coordinates in parts.items():
        if not isinstance(coordinates, dict) or not all(map(_is_number, coordinates.values())):
            raise ConfigError(f"{name} must be numbers by axis, such as {{z: -0.2}}")
        if unknown := {*coordinates} - {*_AXES}:
            raise ConfigError(f"{name} has {unknown.pop()!r}, not one of {', '.join(_AXES)}")
    over = entry.get("over", [])
    if not isinstance(over, list) or not {*map(str, over)} <= {*soles}:
        raise ConfigError(f"over must be a list of soles: {', '.join(soles)}")
    return Keyframe(time, tuple(map(str, over)), parts)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < _LARGEST_NUMBER
