"""The frame of a robot's base: in the middle of the robot, with x forward."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np

from simtrain.robots.inspect import Robot, inspect
from simtrain.robots.kinematics import at
from simtrain.robots.read import Source, compiled


def face_forward(
    source: Source, feet: Sequence[str], end: str | None, notes: list[str]
) -> tuple[mujoco.MjSpec, Robot]:
    """The model and its robot, with the frame of the base turned so that the robot faces along x.

    If the frame is not in the robot, such as on the ground or beside it, it is moved there. `notes`
    gets a sentence for each, in place. `feet` and `end` are those of `prepare`.
    """
    base, is_moved = source.base, False

    def look(spec: mujoco.MjSpec) -> tuple[mujoco.MjSpec, Robot]:
        return spec, inspect(spec, base, feet, end)

    spec, robot = look(source.spec)
    turned = 0.0
    if not robot.legs:  # if it looks along y, no leg is on the left
        spec, robot = look(_moved(source.spec, base, angle=np.pi / 2.0))
        turned = np.pi / 2.0
    if not robot.legs:  # if the frame is on the ground, no leg is below it
        spec, robot = look(_moved(source.spec, base, origin=_center(source.spec, base)))
        turned, is_moved = 0.0, True
    if not robot.legs:
        return look(source.spec)
    if robot.heading:
        turned -= robot.heading
        spec, robot = look(_moved(spec, base, angle=-robot.heading))
    if not _is_symmetric(robot):
        aside = np.array([0.0, float(np.mean([leg.center[1] for leg in robot.legs])), 0.0])
        centered = look(_moved(spec, base, origin=aside))
        if _is_symmetric(centered[1]):
            (spec, robot), is_moved = centered, True
    if is_moved:
        notes.append(f"the frame of {base} is moved to the middle of the robot")
    if turned:
        notes.append(f"its base is turned by {np.degrees(turned):.0f} degrees to look along x")
    return spec, robot


def _is_symmetric(robot: Robot) -> bool:
    """Whether each leg has a mirror image."""
    return all(robot.partners[name] != name for leg in robot.legs for name in leg.joints)


def _center(spec: mujoco.MjSpec, base: str) -> np.ndarray:
    """The center of mass in the frame of the body `base`, m."""
    model = compiled(spec)
    data, number = at(model, model.qpos0), model.body(base).id
    frame = data.xmat[number].reshape(3, 3)
    center: np.ndarray = (data.subtree_com[number] - data.xpos[number]) @ frame
    return center


def _moved(
    spec: mujoco.MjSpec, base: str, *, angle: float = 0.0, origin: np.ndarray | None = None
) -> mujoco.MjSpec:
    """A copy whose frame of the body `base` lies at `origin`, with its parts turned about z."""
    spec = spec.copy()
    body, model = spec.body(base), compiled(spec)
    quat = np.array([np.cos(angle / 2.0), 0.0, 0.0, np.sin(angle / 2.0)])
    parts = [*body.frames, *body.bodies, *body.geoms, *body.sites, *body.cameras, *body.lights]
    shift = np.zeros(3)
    if origin is not None:
        mujoco.mju_rotVecQuat(shift, -origin, quat)
    frame = body.add_frame(pos=shift, quat=quat)
    for part in parts:
        if part.frame is None:
            part.set_frame(frame)
    if body.explicitinertial:
        number, turned, place = model.body(base).id, np.zeros(4), np.zeros(3)
        mujoco.mju_mulQuat(turned, quat, model.body_iquat[number])
        mujoco.mju_rotVecQuat(place, model.body_ipos[number], quat)
        body.fullinertia = [np.nan, 0.0, 0.0, 0.0, 0.0, 0.0]
        body.ipos, body.iquat, body.inertia = place + shift, turned, model.body_inertia[number]
    return spec
