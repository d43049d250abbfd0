"""Problems of a motion, measured before a policy is trained to follow it.

The limits come from the robot's model: ranges of its joints, and shapes that can touch the floor
and each other. Parts that are nearer than 5 mm to the floor stand on it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np
from scipy.spatial import ConvexHull

from simtrain.motion.clip import MotionClip, qpos_of
from simtrain.motion.forces import TOUCH, joint_torques, posed

_SLIDE, _SLOW = 0.1, 0.15  # m/s
_MISSING = 0.3  # of the robot's weight
_EDGE = 0.01  # m; width of contacts at a line or a point


@dataclass(frozen=True)
class Figure:
    """A measured value and its limit."""

    name: str
    value: float
    limit: float
    unit: str
    where: str = ""
    """Details, such as the body with this value, and the frame."""

    @property
    def is_off(self) -> bool:
        """Whether the value is beyond its limit."""
        return not self.value <= self.limit


def check_motion(clip: MotionClip, model: mujoco.MjModel) -> list[Figure]:
    """All figures of a motion of a `load_robot` model."""
    shown = *_joint_figures(clip, model), *_floor_figures(clip, model), _unsupported(clip, model)
    return [*shown, _jump(clip)]


def _joint_figures(clip: MotionClip, model: mujoco.MjModel) -> Iterator[Figure]:
    """How far joints are beyond their ranges, and how fast they are."""
    low, high = model.jnt_range[1:].T
    beyond = np.maximum(low - clip.joint_pos, clip.joint_pos - high)
    beyond[:, model.jnt_limited[1:] == 0] = 0.0
    yield _largest("joint beyond its range", beyond, 0.01, "rad", clip.joint_names)
    yield _largest("joint speed", np.abs(clip.joint_vel), 20.0, "rad/s", clip.joint_names)


def _floor_figures(clip: MotionClip, model: mujoco.MjModel) -> Iterator[Figure]:
    """Depth in the floor, collisions with itself, time in the air, sliding feet, and balance."""
    names = ("world", *clip.body_names)
    depth = np.zeros((clip.frames, len(names)))
    collision, center = np.zeros_like(depth), np.zeros((clip.frames, 3))
    speed, outside, stands = np.zeros(clip.frames), np.zeros(clip.frames), 0
    for i, (data, bodies) in enumerate(posed(model, qpos_of(clip, model))):
        center[i], on_floor = data.subtree_com[0], (bodies == 0).any(axis=1)
        parts, points, heights = bodies.max(axis=1), data.contact.pos, data.contact.dist
        np.maximum.at(depth[i], parts[on_floor], -heights[on_floor])
        np.maximum.at(collision[i], parts[~on_floor], -heights[~on_floor])
        touching = on_floor & (heights < TOUCH)
        if touching.any():
            stands += 1
            speed[i] = _slowest(clip, i, parts[touching], points[touching], heights[touching])
            outside[i] = _outside(points[touching, :2] - center[i, :2])
    yield _largest("depth in the floor", depth, 0.02, "m", names)
    yield _largest("collision with itself", collision, 0.01, "m", names)
    yield Figure("in the air", 1.0 - stands / clip.frames, 0.5, "of the time")
    where = f"up to {speed.max():.2f} m/s, frame {speed.argmax()}"
    yield _share("no foot at rest", speed > _SLIDE, 0.2, where)
    where = f"up to {outside.max():.3f} m, frame {outside.argmax()}"
    yield _share("center of mass beside the feet", outside > 0.0, 1.0, where)
    moving = np.linalg.norm(np.gradient(center[:, :2], 1.0 / clip.fps, axis=0), axis=1)
    yield _share("center of mass at rest there", (outside > 0.0) & (moving < _SLOW), 0.05)


def _slowest(
    clip: MotionClip, frame: int, parts: np.ndarray, points: np.ndarray, heights: np.ndarray
) -> float:
    """Horizontal speed of the standing body that slides least, m/s."""
    bodies = parts - 1
    turning = np.cross(clip.body_ang_vel_w[frame, bodies], points - clip.body_pos_w[frame, bodies])
    sliding = np.linalg.norm((clip.body_lin_vel_w[frame, bodies] + turning)[:, :2], axis=1)
    # A foot that rolls rests at its lowest point, and one that takes off beside another.
    lowest = (np.where(bodies == body, heights, np.inf).argmin() for body in np.unique(bodies))
    return float(min(sliding[place] for place in lowest))


def _outside(standing: np.ndarray) -> float:
    """How far the centre of mass is outside of the contact points, ``(points, 2)`` from it, m."""
    corners = _EDGE * np.array([(-1, -1), (-1, 1), (1, -1), (1, 1)])
    sides = ConvexHull((standing[:, None] + corners).reshape(-1, 2)).equations
    return max(0.0, float(sides[:, 2].max()))


def _unsupported(clip: MotionClip, model: mujoco.MjModel) -> Figure:
    """How often the base accelerates more than the floor, gravity and the limbs allow."""
    missing = np.linalg.norm(joint_torques(clip, model)[0][:, :3], axis=1)
    missing /= mujoco.mj_getTotalmass(model) * np.linalg.norm(model.opt.gravity)
    where = f"up to {missing.max():.2f} of the weight, frame {missing.argmax()}"
    return _share("acceleration without a force", missing > _MISSING, 0.1, where)


def _jump(clip: MotionClip) -> Figure:
    """Difference between steps of bodies from frame to frame and steps by their velocities."""
    steps = 0.5 * (clip.body_lin_vel_w[1:] + clip.body_lin_vel_w[:-1]) / clip.fps
    missed = np.linalg.norm(np.diff(clip.body_pos_w, axis=0) - steps, axis=-1)
    return _largest("jump", missed, 0.02, "m", clip.body_names)


def _share(name: str, holds: np.ndarray, limit: float, where: str = "") -> Figure:
    return Figure(name, float(holds.mean()), limit, "of the time", where)


def _largest(
    name: str, values: np.ndarray, limit: float, unit: str, columns: tuple[str, ...]
) -> Figure:
    """The largest of values ``(frames, columns)``, and where it is."""
    frame, column = np.unravel_index(values.argmax(), values.shape)
    largest = max(0.0, float(values[frame, column]))
    where = f"{columns[column]}, frame {frame}" if largest else ""
    return Figure(name, largest, limit, unit, where)
