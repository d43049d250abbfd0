"""Visual geoms for a robot without meshes: collision geoms, bones and inertia ellipsoids."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np

from simtrain.robots.inspect import Robot
from simtrain.robots.kinematics import at
from simtrain.robots.read import compiled
from simtrain.robots.tree import inertia_sizes

_SHORTEST, _SLENDER, _THICKEST = 0.03, 0.1, 0.035
"""Minimum length of a bone, m; its radius as a fraction of its length, and at most, m."""


def add_looks(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Make all bodies visible, in place; new geoms have no mass and touch nothing.

    In a model without meshes, a body gets a bone between two joints that no shape connects. A body
    without a shape and with other than one bone is drawn as the ellipsoid of its inertia.
    """
    model = compiled(spec)
    bones = [] if spec.meshes else list(_bones(model, robot))
    with_bone = [body for body, *_ in bones]
    for number, body in enumerate(spec.bodies[1:], start=1):
        geoms = list(body.geoms)
        for geom in geoms if all(geom.group > 2 for geom in geoms) else ():
            geom.group = 2
        is_heavy = model.body_mass[number] > 0.002 * model.body_mass.sum()
        if not geoms and is_heavy and with_bone.count(number) != 1:
            look = body.add_geom(type=mujoco.mjtGeom.mjGEOM_ELLIPSOID, mass=0.0, group=2)
            look.pos, look.quat = model.body_ipos[number], model.body_iquat[number]
            look.size = np.sqrt(np.maximum(5.0 * inertia_sizes(model, number), 1e-6))
            look.contype = look.conaffinity = 0
    for number, start, end in bones:
        look = spec.bodies[number].add_geom(type=mujoco.mjtGeom.mjGEOM_CAPSULE, mass=0.0, group=2)
        look.fromto = [*start, *end]
        look.size[0] = min(_SLENDER * float(np.linalg.norm(end - start)), _THICKEST)
        look.contype = look.conaffinity = 0


def _bones(model: mujoco.MjModel, robot: Robot) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Bodies, and the ends of a bone in their frames: joints, feet and the tool of an arm."""
    data, weld = at(model, model.qpos0), model.body_weldid
    ends = [(foot.body, foot.center) for foot in robot.feet]
    ends += [] if robot.legs else [(robot.arms[0].end, robot.tool)]
    points = [(data.body(name), place) for name, place in ends]
    places = [(weld[body.id], body.xpos + body.xmat.reshape(3, 3) @ p) for body, p in points]
    moved = [model.joint(name).bodyid[0] for name in robot.joints]
    joints = {body: data.xanchor[model.body_jntadr[body]] for body in moved}
    places += [(weld[model.body_parentid[body]], anchor) for body, anchor in joints.items()]
    for body, end in places:
        start, frame = joints.get(body, data.xpos[body]), data.xmat[body].reshape(3, 3)
        geoms = np.flatnonzero(weld[model.geom_bodyid] == body)
        turned = data.geom_xmat[geoms].reshape(-1, 3, 3)
        center, half = np.split(model.geom_aabb[geoms], 2, axis=1)
        middle = np.einsum("nji,nj->ni", turned, (start + end) / 2.0 - data.geom_xpos[geoms])
        is_open = not (np.abs(middle - center) < half + 0.01).all(axis=1).any()
        if body and is_open and np.linalg.norm(end - start) > _SHORTEST:
            yield int(body), (start - data.xpos[body]) @ frame, (end - data.xpos[body]) @ frame
