"""A person's movement, for any skeleton: positions of hips, knees, feet, shoulders and hands.

Joints are recognized by their usual names, or by the tree. Axes, unit and heading of the file do
not matter: in the result z is up, the length of a leg is 1, and the person starts at the origin and
faces along x.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import commonprefix

import numpy as np
from scipy.interpolate import CubicSpline
from scipy.ndimage import binary_closing, binary_opening
from scipy.signal import savgol_filter
from scipy.spatial.transform import Rotation

from simtrain.errors import ConfigError, did_you_mean
from simtrain.retarget.recording import Recording

PARTS = ("hip", "knee", "ankle", "toe", "shoulder", "elbow", "wrist")
"""Parts of each side; the toe may be missing."""
LANDMARKS = tuple(f"{side}_{part}" for side in ("left", "right") for part in PARTS)
_ABOVE = {"knee": "hip", "ankle": "knee", "toe": "ankle", "elbow": "shoulder", "wrist": "elbow"}
_WORDS = {  # in the order of preference: LeftLeg is the shin if there is LeftUpLeg, else the thigh
    "hip": ("upleg", "upperleg", "uleg", "thigh", "femur", "hip", "leg", "hipjoint"),
    "knee": ("shin", "calf", "knee", "lowleg", "lowerleg", "tibia", "leg"),
    "ankle": ("ankle", "foot"),
    "toe": ("toebase", "toe", "toes", "ball", "toe0", "foot"),
    "shoulder": ("uparm", "upperarm", "uarm", "shldr", "humerus", "arm", "shoulder"),
    "elbow": ("forearm", "lowarm", "lowerarm", "farm", "elbow", "radius"),
    "wrist": ("wrist", "hand"),
}
_SIDES = {"left": ("left", "l"), "right": ("right", "r")}
Limb = tuple[int, int, int]
_BENT, _FOOT = 0.1, 0.05  # of both knees, sine by the squared leg; parts of a leg
_UPRIGHT, _SLANTED = 0.95, 0.2  # parts of the way from ankles to shoulders along an axis
_MOVED = 0.05  # parts of a leg
_SMOOTHED, _FEWEST = 0.15, 5  # s; frames
_LOW, _SLOW = 0.07, 0.4  # of a foot that stands: parts of a leg, and of a leg a second
_GAP, _STEP = 0.08, 0.12  # s; shorter gaps in standing are closed, shorter stands left out


@dataclass(frozen=True)
class Person:
    """A person's movement, in lengths of a leg from hip to ankle."""

    fps: float
    at: Mapping[str, np.ndarray]
    """Positions by landmark, ``(frames, 3)``; toes are always included."""
    ankle_height: float
    """Height of ankles above the floor while the foot is flat."""
    pitch: Mapping[str, np.ndarray]
    """By side: angle by which the heel is raised, rad, negative for the toes, ``(frames,)``."""
    stands: Mapping[str, np.ndarray]
    """By side: whether the foot is on the floor, ``(frames,)``."""
    leg: float
    """Length of the leg in the file's unit."""


def middle(at: Mapping[str, np.ndarray], part: str) -> np.ndarray:
    """The middle of the left and the right part, ``(..., 3)``."""
    return np.asarray((at[f"left_{part}"] + at[f"right_{part}"]) / 2.0)


def above(landmark: str) -> str:
    """The landmark at the upper end of the segment that ends at `landmark`."""
    side, part = landmark.split("_")
    return f"{side}_{_ABOVE[part]}"


def across(at: Mapping[str, np.ndarray], part: str) -> np.ndarray:
    """From the right to the left part, ``(..., 3)``."""
    return np.asarray(at[f"left_{part}"] - at[f"right_{part}"])


def find_landmarks(recording: Recording, given: Mapping[str, str]) -> dict[str, int]:
    """The joint of each landmark; `given` ones by their names in the file.

    ConfigError, with the missing landmarks, if they cannot be recognized.
    """
    landmarks = _by_names(recording.names)
    needed = [name for name in LANDMARKS if not name.endswith("toe")]
    if recording.parents and any(name not in landmarks for name in needed):
        landmarks = _by_tree(recording) or landmarks
    for landmark, name in given.items():
        if landmark not in LANDMARKS:
            near = did_you_mean(landmark, LANDMARKS)
            raise ConfigError(f"--map has no {landmark!r}{near}; it has {', '.join(LANDMARKS)}")
        if name not in recording.names:
            near = did_you_mean(name, recording.names)
            raise ConfigError(f"--map {landmark}: the recording has no joint {name!r}{near}")
        landmarks[landmark] = recording.names.index(name)
    if missing := [name for name in needed if name not in landmarks]:
        shown = ", ".join(recording.names[:12]) + (", ..." if len(recording.names) > 12 else "")
        text = f"no person is recognized: {', '.join(missing[:4])} not found among {shown}"
        raise ConfigError(f"{text}; name them, as --map {missing[0]} <joint>")
    for side in _SIDES:
        knee, ankle = (recording.positions[:, landmarks[f"{side}_{p}"]] for p in ("knee", "ankle"))
        below = [j for j, p in enumerate(recording.parents) if p == landmarks[f"{side}_ankle"]]
        if f"{side}_toe" not in landmarks and below:
            feet = {j: recording.positions[:, j] - ankle for j in below}
            landmarks[f"{side}_toe"] = max(below, key=lambda j: _off(feet[j], ankle - knee))
    return landmarks


def _off(foot: np.ndarray, shank: np.ndarray) -> float:
    """How far the end of a foot comes from the line of its shank, both ``(frames, 3)``."""
    lengths = np.linalg.norm(shank, axis=1).clip(min=1e-9)
    return float(np.percentile(np.linalg.norm(np.cross(foot, shank), axis=1) / lengths, 80))


def _knee_axis(at: Mapping[str, np.ndarray]) -> np.ndarray:
    """The axis about which knees bend, to the person's left, by their sine, ``(frames, 3)``."""
    left, right = (
        np.cross(at[f"{side}_knee"] - at[f"{side}_hip"], at[f"{side}_ankle"] - at[f"{side}_knee"])
        for side in _SIDES
    )
    return np.asarray(left + right)


def _by_names(names: Sequence[str]) -> dict[str, int]:
    plain = [re.sub("[^a-z0-9]", "", name.split(":")[-1].lower()) for name in names]
    joints = [name for name in plain if not name.endswith("end")] or plain
    shared = commonprefix(joints) if len({*joints}) > 1 else ""  # noqa: RUF071 - no paths
    plain = [name[len(shared) :] for name in plain]
    landmarks: dict[str, int] = {}
    for side, marks in _SIDES.items():
        words = {}
        for joint, name in reversed(list(enumerate(plain))):
            for mark in marks:
                if name.startswith(mark):
                    words[name.removeprefix(mark)] = joint
                if name.endswith(mark):
                    words[name.removesuffix(mark)] = joint
                    words[name.removesuffix(mark).removeprefix("m")] = joint
        for part, choices in _WORDS.items():
            taken = {joint for name, joint in landmarks.items() if name.startswith(side)}
            fits = [words[word] for word in choices if words.get(word, -1) not in {-1, *taken}]
            if fits:
                landmarks[f"{side}_{part}"] = fits[0]
    return landmarks


def _by_tree(recording: Recording) -> dict[str, int]:
    """Limbs by their positions: the lowest two chains from the trunk are legs."""
    parents, places = recording.parents, recording.positions
    away = np.linalg.norm(places - places[:, np.maximum(parents, 0)], axis=2)
    lengths, from_root = np.median(away, axis=0), np.linalg.norm(places - places[:, :1], axis=2)
    inner = set(parents)
    chains: dict[tuple[int, int, int], float] = {}
    for leaf in (j for j in range(len(parents)) if j not in inner):
        chain = [leaf]
        while parents[chain[0]] >= 0:
            chain.insert(0, parents[chain[0]])
        chain = [chain[0], *(j for j in chain[1:] if lengths[j] > 1e-6)]
        if len(chain) >= 4:
            pairs = range(1, len(chain) - 2)
            best = max(pairs, key=lambda i: min(lengths[chain[i + 1]], lengths[chain[i + 2]]))
            first, second, third = chain[best : best + 3]
            chains[first, second, third] = float(lengths[second] + lengths[third])
    limbs = sorted(chains, key=lambda limb: -chains[limb])[:4]
    if len(limbs) < 4 or len({joint for limb in limbs for joint in limb}) < 12:
        return {}
    # Legs hang on the root: their first joints are the nearest to it.
    limbs.sort(key=lambda limb: float(np.median(from_root[:, limb[0]])))
    legs, arms = limbs[:2], limbs[2:]
    to_left = _to_left(places, legs, arms, parents)
    landmarks: dict[str, int] = {}
    for limbs, parts in ((legs, PARTS[:3]), (arms, PARTS[4:])):
        pair = sorted(limbs, key=lambda limb: float((places[:, limb[0]] * to_left).sum()))
        for side, limb in zip(("right", "left"), pair, strict=True):
            landmarks |= {f"{side}_{part}": joint for part, joint in zip(parts, limb, strict=True)}
    return landmarks


def _to_left(
    places: np.ndarray, legs: list[Limb], arms: list[Limb], parents: Sequence[int]
) -> np.ndarray:
    """Directions to the person's left, by how knees bend, or else by the toes, ``(frames, 3)``."""
    at = {
        f"{side}_{part}": places[:, joint]
        for side, leg in zip(_SIDES, legs, strict=True)
        for part, joint in zip(PARTS[:3], leg, strict=True)
    }
    bent = _knee_axis(at)
    if np.linalg.norm(bent, axis=1).mean() > _BENT * _leg(at) ** 2:
        return bent
    ankles = [leg[2] for leg in legs]
    toes = [next((j for j, p in enumerate(parents) if p == ankle), ankle) for ankle in ankles]
    up = places[:, [arm[0] for arm in arms]].sum(axis=1) - places[:, ankles].sum(axis=1)
    return np.cross(up, (places[:, toes] - places[:, ankles]).sum(axis=1))


def person_of(recording: Recording, given: Mapping[str, str], fps: float) -> Person:
    """The person in a recording at `fps` frames a second."""
    landmarks = find_landmarks(recording, given)
    places = recording.positions[:, list(landmarks.values())]
    frames = max(5, round(_SMOOTHED * recording.fps) | 1)
    places = savgol_filter(places, frames, 3, axis=0)
    last = (len(places) - 1) / recording.fps
    times = np.arange(int(last * fps + 1e-6) + 1) / fps
    if len(times) < _FEWEST:
        text = f"it has {len(times)} frames at {fps:g} a second, less than {_FEWEST}"
        raise ConfigError(f"{text}; give a higher --output-fps")
    places = CubicSpline(np.arange(len(places)) / recording.fps, places, axis=0)(times)
    at = {name: places[:, i] for i, name in enumerate(landmarks)}
    leg = _leg(at)
    if not leg > 0.0:
        raise ConfigError("the person's legs have no length")
    at = {name: place / leg for name, place in at.items()}
    if not all(_is_foot(at, side) for side in _SIDES):
        at = {name: place for name, place in at.items() if not name.endswith("toe")}
    at = _faced(at)
    person = on_floor(at, fps, leg)
    if not all(np.isfinite(place).all() for place in person.at.values()):
        raise ConfigError("both hips are at one place: whether the person faces ahead is unknown")
    return person


def _leg(at: Mapping[str, np.ndarray]) -> float:
    ends = [name for name in LANDMARKS if name.endswith(("knee", "ankle"))]
    lengths = [np.linalg.norm(at[name] - at[above(name)], axis=1) for name in ends]
    return float(np.median(lengths, axis=1).sum() / 2.0)


def _is_foot(at: Mapping[str, np.ndarray], side: str) -> bool:
    """Whether the toe tells where the foot points: some skeletons have it below the ankle."""
    if f"{side}_toe" not in at:
        return False
    knee, ankle, toe = (at[f"{side}_{part}"] for part in ("knee", "ankle", "toe"))
    length = float(np.median(np.linalg.norm(toe - ankle, axis=1)))
    return _off(toe - ankle, ankle - knee) > max(_FOOT, length / 2.0)


def _faced(at: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same with z up, from the origin along x, and not mirrored."""
    up, is_down = _upward(at)
    at = {name: np.roll(place, 2 - up, axis=1) for name, place in at.items()}
    if is_down:
        at = {name: place * [1.0, -1.0, -1.0] for name, place in at.items()}
    hips = across(at, "hip")
    forward = np.cross(hips, [0.0, 0.0, 1.0])
    hips /= np.linalg.norm(hips, axis=1, keepdims=True).clip(min=1e-9)
    ahead = (_knee_axis(at) * hips).sum(axis=1).mean()  # knees bend in one direction
    if abs(ahead) < _BENT:
        toes = middle(at, "toe") - middle(at, "ankle") if "left_toe" in at else np.zeros(3)
        ahead = (toes * forward).sum(axis=1).mean()
    if ahead < 0.0:  # left-handed axes
        at = {name: place * [1.0, -1.0, 1.0] for name, place in at.items()}
        forward *= [-1.0, 1.0, 1.0]
    ahead = forward[: max(1, len(forward) // 20)].mean(axis=0)
    turn = Rotation.from_euler("z", -np.arctan2(ahead[1], ahead[0]))
    origin = middle(at, "hip")[0] * [1.0, 1.0, 0.0]
    return {name: turn.apply(place - origin) for name, place in at.items()}


def _upward(at: Mapping[str, np.ndarray]) -> tuple[int, bool]:
    """The axis that points up, and whether it points down instead.

    Shoulders are above ankles. Of a person who lies or crawls, the floor tells, at which the lowest
    part always is.
    """
    trunk = middle(at, "shoulder") - middle(at, "ankle")
    parts = trunk.mean(axis=0) / np.linalg.norm(trunk, axis=1).mean().clip(1e-9)
    up = int(np.abs(parts).argmax())
    if abs(parts[up]) < _UPRIGHT:
        lowest = (np.stack(list(at.values())) * np.sign(parts)).min(axis=0)
        spread = np.where(np.abs(parts) > _SLANTED, np.ptp(lowest, axis=0), np.inf)
        if spread.min() < min(spread[up] / 2.0, spread[up] - _MOVED):
            up = int(spread.argmin())
    return up, bool(parts[up] < 0.0)


def on_floor(at: dict[str, np.ndarray], fps: float, leg: float) -> Person:
    """Detect the floor, and when each foot stands on it."""
    for side in _SIDES:
        if f"{side}_toe" not in at:
            ahead = np.cross(across(at, "hip"), [0.0, 0.0, 1.0])
            ahead /= np.linalg.norm(ahead, axis=1, keepdims=True)
            at[f"{side}_toe"] = at[f"{side}_ankle"] + 0.17 * ahead - [0.0, 0.0, 0.06]
    toes = np.concatenate([at[f"{side}_toe"][:, 2] for side in _SIDES])
    ankles = np.concatenate([at[f"{side}_ankle"][:, 2] for side in _SIDES])
    floor, ankle = np.percentile(toes, 5), np.percentile(ankles, 10)
    if ankle < floor:  # the toes of some skeletons end above the ankles' height
        floor = ankle
    at = {name: place - [0.0, 0.0, floor] for name, place in at.items()}
    height = float(ankle - floor)
    stands, pitch = {}, {}
    for side in _SIDES:
        on_floor = []
        for part, rest in (("toe", 0.0), ("ankle", height)):
            place = at[f"{side}_{part}"]
            speed = np.linalg.norm(np.gradient(place, 1.0 / fps, axis=0), axis=1)
            on_floor.append((place[:, 2] < rest + _LOW) & (speed < _SLOW))
        either = on_floor[0] | on_floor[1]
        padded = np.pad(either, round(fps), mode="edge")
        padded = binary_closing(padded, np.ones(round(_GAP * fps) + 1))
        padded = binary_opening(padded, np.ones(round(_STEP * fps) + 1))
        stands[side] = padded[round(fps) : -round(fps)]
        foot = at[f"{side}_ankle"] - at[f"{side}_toe"]
        raised = np.arctan2(foot[:, 2], np.linalg.norm(foot[:, :2], axis=1))
        flat = on_floor[0] & on_floor[1]
        pitch[side] = raised - np.median(raised[flat] if flat.any() else raised)
    return Person(fps, at, height, pitch, stands, leg)
