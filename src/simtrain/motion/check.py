"""What is wrong with a motion, measured before a policy is trained to follow it.

The robot's model says what can be: ranges of its joints, and which of its shapes meet the floor and
each other. What is nearer than 5 mm to the floor stands on it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np
from scipy.spatial import ConvexHull

from simtrain.motion.clip import MotionClip
from simtrain.motion.kinematics import qpos_of

_TOUCH = 0.005  # m
_SLIDE, _SLOW = 0.1, 0.15  # m/s
_EDGE = 0.01  # m; what touches at a line or a point has some width


@dataclass(frozen=True)
class Figure:
    """One thing that was measured, and the most that it may be."""

    name: str
    value: float
    limit: float
    unit: str
    where: str = ""
    """Of what, and in which frame."""

    @property
    def is_off(self) -> bool:
        """Whether it is beyond its limit."""
        return not self.value <= self.limit


def check_motion(clip: MotionClip, model: mujoco.MjModel) -> list[Figure]:
    """All figures of a motion of a `load_robot` model."""
    return [*_joint_figures(clip, model), *_floor_figures(clip, model), _jump(clip)]


def _joint_figures(clip: MotionClip, model: mujoco.MjModel) -> Iterator[Figure]:
    """How far joints are beyond their ranges, and how fast they are."""
    low, high = model.jnt_range[1:].T
    beyond = np.maximum(low - clip.joint_pos, clip.joint_pos - high)
    beyond[:, model.jnt_limited[1:] == 0] = 0.0
    yield _largest("joint beyond its range", beyond, 0.01, "rad", clip.joint_names)
    yield _largest("joint speed", np.abs(clip.joint_vel), 20.0, "rad/s", clip.joint_names)


def _floor_figures(clip: MotionClip, model: mujoco.MjModel) -> Iterator[Figure]:
    """What the robot does to the floor and itself, and whether it would tip over."""
    frames = list(_frames(clip, model))
    names = ("world", *clip.body_names)
    depth = np.zeros((len(frames), len(names)))
    collision = np.zeros_like(depth)
    speed = np.zeros(len(frames))
    stands = np.zeros(len(frames), dtype=bool)
    for i, frame in enumerate(frames):
        np.maximum.at(depth[i], frame.bodies, -frame.heights)
        np.maximum.at(collision[i], frame.colliding, frame.collisions)
        touching = frame.heights < _TOUCH
        stands[i] = touching.any()
        if stands[i]:
            bodies = frame.bodies[touching] - 1
            arm = frame.points[touching] - clip.body_pos_w[i, bodies]
            turning = np.cross(clip.body_ang_vel_w[i, bodies], arm)
            sliding = np.linalg.norm((clip.body_lin_vel_w[i, bodies] + turning)[:, :2], axis=1)
            # A foot that rolls rests at its lowest point, and one that takes off beside another.
            speed[i] = min(
                sliding[bodies == body][frame.heights[touching][bodies == body].argmin()]
                for body in np.unique(bodies)
            )
    yield _largest("depth in the floor", depth, 0.02, "m", names)
    yield _largest("collision with itself", collision, 0.01, "m", names)
    yield Figure("in the air", float(1.0 - stands.mean()), 0.5, "of the time")
    where = f"up to {speed.max():.2f} m/s, frame {speed.argmax()}"
    yield Figure("no foot at rest", float((speed > _SLIDE).mean()), 0.2, "of the time", where)
    yield from _balance_figures(clip, frames)


def _balance_figures(clip: MotionClip, frames: list["_Frame"]) -> Iterator[Figure]:
    """How long the centre of mass is beside the feet, and how long while it rests there."""
    centers = np.array([frame.center for frame in frames])
    speed = np.linalg.norm(np.gradient(centers, 1.0 / clip.fps, axis=0)[:, :2], axis=1)
    outside = np.array([_outside(frame) for frame in frames])
    where = f"up to {outside.max():.3f} m, frame {outside.argmax()}"
    yield Figure(
        "center of mass beside the feet", float((outside > 0).mean()), 1.0, "of the time", where
    )
    resting = (outside > 0.0) & (speed < _SLOW)
    yield Figure("center of mass at rest there", float(resting.mean()), 0.05, "of the time")


def _jump(clip: MotionClip) -> Figure:
    """How far bodies move from a frame to the next beside what their velocities tell."""
    told = 0.5 * (clip.body_lin_vel_w[1:] + clip.body_lin_vel_w[:-1]) / clip.fps
    missed = np.linalg.norm(np.diff(clip.body_pos_w, axis=0) - told, axis=-1)
    return _largest("jump", missed, 0.02, "m", clip.body_names)


@dataclass(frozen=True)
class _Frame:
    """What is near the floor in a frame, and what of the robot is in itself."""

    center: np.ndarray
    """The centre of mass, m, ``(3,)``."""
    points: np.ndarray
    """Places near the floor, m, ``(points, 3)``."""
    heights: np.ndarray
    """Of the robot above the floor there, m."""
    bodies: np.ndarray
    """Their bodies' ids."""
    collisions: np.ndarray
    """m that two parts are in each other."""
    colliding: np.ndarray
    """The one part's body's id."""


def _frames(clip: MotionClip, model: mujoco.MjModel) -> Iterator[_Frame]:
    data, margins = mujoco.MjData(model), model.geom_margin.copy()
    floor = model.geom_bodyid == 0
    model.geom_margin[floor] = np.maximum(margins[floor], 2 * _TOUCH)
    try:
        for qpos in qpos_of(clip, model):
            data.qpos = qpos
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_collision(model, data)
            contact = data.contact
            bodies = model.geom_bodyid[contact.geom].reshape(-1, 2)
            on_floor = (bodies == 0).any(axis=1)
            yield _Frame(
                data.subtree_com[0].copy(),
                contact.pos[on_floor].copy(),
                contact.dist[on_floor].copy(),
                bodies[on_floor].max(axis=1),
                -contact.dist[~on_floor],
                bodies[~on_floor].max(axis=1),
            )
    finally:
        model.geom_margin[:] = margins


def _outside(frame: _Frame) -> float:
    """How far the centre of mass is beside all that stands on the floor, m; 0 in the air."""
    standing = frame.points[frame.heights < _TOUCH, :2] - frame.center[:2]
    if not len(standing):
        return 0.0
    corners = _EDGE * np.array([(-1, -1), (-1, 1), (1, -1), (1, 1)])
    sides = ConvexHull((standing[:, None] + corners).reshape(-1, 2)).equations
    return max(0.0, float(sides[:, 2].max()))


def _largest(
    name: str, values: np.ndarray, limit: float, unit: str, columns: tuple[str, ...]
) -> Figure:
    """The largest of values ``(frames, columns)``, and where it is."""
    frame, column = np.unravel_index(values.argmax(), values.shape)
    largest = max(0.0, float(values[frame, column]))
    where = f"{columns[column]}, frame {frame}" if largest else ""
    return Figure(name, largest, limit, unit, where)
