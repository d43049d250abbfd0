"""Targets of a robot's soles and base in each frame, from the positions of a person's parts."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import CubicHermiteSpline
from scipy.ndimage import gaussian_filter1d, label, maximum_filter1d
from scipy.spatial.transform import Rotation

from simtrain.retarget.humanoid import Humanoid, Sole
from simtrain.retarget.person import Person, above, across, middle

_STRETCHED = 0.97  # how straight the robot's legs are where the person's are straight
_LONGEST, _SINKING = 0.975, 0.06  # of a leg, from hip to ankle; s
_TALL, _MOST_LEAN = 0.08, 0.15  # of a leg; rad
_ROLLED = (-0.2, 0.3)  # rad; how far a sole that touches the floor is pitched, at most
_FLAT = 0.12  # rad
_LEVEL = 0.8  # of its usual length above the floor; a foot that is seen shorter has no heading
_TURNED = 1.7  # rad; a foot that is turned further from the pelvis is tilted beyond the vertical
_CLEARANCE = 0.02  # m; of a foot in the middle of a step


@dataclass(frozen=True)
class Targets:
    """Targets of the robot's parts in each frame."""

    base: np.ndarray
    """The middle of the hips, m, ``(frames, 3)``."""
    pelvis: np.ndarray
    """Rotation of the base, ``(frames, 3, 3)``."""
    chest: np.ndarray
    """Rotation of the chest, relative to its own at home, ``(frames, 3, 3)``."""
    soles: Mapping[str, tuple[np.ndarray, np.ndarray]]
    """By side: centers of the soles, m, and rotations."""
    stands: Mapping[str, np.ndarray]
    """By side: whether the foot is on the floor."""
    directions: Mapping[str, np.ndarray]
    """Directions of the robot's segments, by the landmark at their lower end, ``(frames, 3)``."""
    posture: np.ndarray | None = None
    """Positions that are preferred among equal ones, ``(frames, nq)``; None for those at home."""


def targets_of(person: Person, robot: Humanoid, stretched: float = _STRETCHED) -> Targets:
    """The person's movement, scaled to the robot.

    The robot's legs are `stretched` where the person's are straight, as a part of their length.
    """
    apart = across(person.at, "hip")
    left = _unit(apart)
    up = _upright(person, left)
    pelvis, chest = _frame(up, left), _frame(up, _unit(across(person.at, "shoulder")))
    scale, ankle = robot.leg, np.mean([sole.ankle[2] for sole in robot.soles.values()])
    hips = middle(person.at, "hip")
    base = scale * hips
    base[:, 2] = ankle + stretched * scale * (hips[:, 2] - person.ankle_height)
    width = scale * np.median(np.linalg.norm(apart, axis=1))
    wider = (robot.stance - width) / 2.0 * _unit(left * [1.0, 1.0, 0.0])
    soles = {
        side: _sole_path(person, side, sole, scale, wider if side == "left" else -wider)
        for side, sole in robot.soles.items()
    }
    base[:, 2] -= _too_high(robot, base, pelvis, soles, person.fps)
    directions = {n: _unit(person.at[n] - person.at[above(n)]) for n in robot.segments}
    return Targets(base, pelvis, chest, soles, person.stands, directions)


def _upright(person: Person, left: np.ndarray) -> np.ndarray:
    """Directions from hips to shoulders, without the lean of the skeleton itself."""
    hips = middle(person.at, "hip")
    up = _unit(middle(person.at, "shoulder") - hips)
    ahead = _unit(np.cross(left, [0.0, 0.0, 1.0]))
    lean = np.arctan2((up * ahead).sum(axis=1), up[:, 2])
    tall = hips[:, 2] > np.percentile(hips[:, 2], 95) - _TALL
    bias = float(np.median(lean[tall]).clip(-_MOST_LEAN, _MOST_LEAN))
    return np.asarray(Rotation.from_rotvec(-bias * np.cross([0.0, 0.0, 1.0], ahead)).apply(up))


def _too_high(
    robot: Humanoid,
    base: np.ndarray,
    pelvis: np.ndarray,
    soles: Mapping[str, tuple[np.ndarray, np.ndarray]],
    fps: float,
) -> np.ndarray:
    """How far the hips must be lowered for the legs to reach the soles, m, ``(frames,)``."""
    between = (robot.hips["left"] + robot.hips["right"]) / 2.0
    lowered = np.zeros(len(base))
    for side, (centers, turns) in soles.items():
        hip = base + pelvis @ (robot.hips[side] - between)
        away = hip - (centers + turns @ robot.soles[side].ankle)
        high = np.square(_LONGEST * robot.leg) - np.square(away[:, :2]).sum(axis=1)
        lowered = np.maximum(lowered, away[:, 2] - np.sqrt(high.clip(min=0.0)))
    frames = max(1, round(_SINKING * fps))
    lowered = maximum_filter1d(lowered.clip(max=0.3 * robot.leg), 2 * frames + 1)
    return np.asarray(gaussian_filter1d(lowered, frames / 2.0, mode="nearest"))


def _sole_path(
    person: Person, side: str, sole: Sole, scale: float, aside: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Centers and rotations of a sole that neither slides nor sinks while the foot stands."""
    foot = person.at[f"{side}_toe"] - person.at[f"{side}_ankle"]
    left = across(person.at, "hip")
    ahead = np.unwrap(np.arctan2(-left[:, 0], left[:, 1]))
    yaw = (np.arctan2(foot[:, 1], foot[:, 0]) - ahead + np.pi) % (2.0 * np.pi) - np.pi
    level = np.linalg.norm(foot[:, :2], axis=1)
    is_upright = np.linalg.norm(left[:, :2], axis=1) > np.linalg.norm(left, axis=1) / 2.0
    unknown = (level < _LEVEL * np.median(level)) | (is_upright & (np.abs(yaw) > _TURNED))
    if unknown.any() and not unknown.all():
        frames = np.arange(len(yaw))  # the heading of toes that point down or back is not known
        yaw = np.interp(frames, frames[~unknown], yaw[~unknown])
        yaw = gaussian_filter1d(yaw, 0.04 * person.fps, mode="nearest")
    yaw = np.unwrap(yaw + ahead)
    stands, pitch = person.stands[side], person.pitch[side] * bool(sole.length)
    ankle = scale * person.at[f"{side}_ankle"] + aside
    ankle[:, 2] = sole.ankle[2] + scale * (person.at[f"{side}_ankle"][:, 2] - person.ankle_height)
    # A sole that stands is flat unless the person's heel or toes are clearly raised.
    rolled = (pitch - pitch.clip(-_FLAT, _FLAT)).clip(*_ROLLED)
    pitch = np.where(stands, rolled, pitch.clip(-0.6, 0.8))
    pitch = gaussian_filter1d(pitch, 0.02 * person.fps, mode="nearest")
    half = sole.length / 2.0

    def turned(headings: np.ndarray) -> Rotation:
        return Rotation.from_euler("ZY", np.stack((headings, pitch), axis=1))

    def raised(headings: np.ndarray) -> np.ndarray:
        """From the center of a sole that is flat about its toe, if the heel is raised, or heel."""
        toe = half * np.sign(pitch)
        back = toe * (1.0 - np.cos(pitch))
        place = back * np.cos(headings), back * np.sin(headings), toe * np.sin(pitch)
        return np.stack(place, axis=1)

    flat = ankle - turned(yaw).apply(sole.ankle) - raised(yaw)
    runs, count = label(stands)
    moved = np.zeros((len(yaw), 4))
    for run in range(1, count + 1):
        frames = runs == run
        weight = np.exp(-np.square(pitch[frames] / 0.1)) + 1e-3
        place = np.average(flat[frames], axis=0, weights=weight) * [1.0, 1.0, 0.0]
        moved[frames, :3] = place - flat[frames]
        moved[frames, 3] = np.median(yaw[frames]) - yaw[frames]
    if count:
        moved = _blended(moved, stands)
    headings = yaw + moved[:, 3]
    centers = flat + moved[:, :3] + raised(headings)
    lowest = centers[:, 2] - half * np.abs(np.sin(pitch))
    swing, count = label(~stands)
    for run in range(1, count + 1):
        frames = np.flatnonzero(swing == run)
        phase = (np.arange(len(frames)) + 1.0) / (len(frames) + 1.0)
        needed = min(_CLEARANCE, 0.01 * len(frames)) * np.sin(np.pi * phase)
        centers[frames, 2] += np.maximum(0.0, needed - lowest[frames])
    return centers, turned(headings).as_matrix()


def _blended(moved: np.ndarray, is_held: np.ndarray) -> np.ndarray:
    """Corrections ``(frames, n)`` of the held frames, interpolated smoothly over the others."""
    known = np.flatnonzero(is_held)
    values = moved[[known[0], *known, known[-1]]]
    spline = CubicHermiteSpline([-1, *known, len(is_held)], values, np.zeros_like(values))
    return np.asarray(spline(np.arange(len(is_held))))


def _frame(up: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Rotations with z `up` and y about `left`, ``(frames, 3, 3)``."""
    ahead = _unit(np.cross(left, up))
    return np.stack((ahead, np.cross(up, ahead), up), axis=2)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9))
