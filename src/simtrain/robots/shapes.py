"""Shapes of a robot's bodies: points on surfaces, soles, and inertias as boxes."""

from __future__ import annotations

from itertools import product

import mujoco
import numpy as np

_ROUND = [int(mujoco.mjtGeom.mjGEOM_SPHERE), int(mujoco.mjtGeom.mjGEOM_CAPSULE)]
_MESH = int(mujoco.mjtGeom.mjGEOM_MESH)
_CORNERS = np.array(list(product((-1.0, 1.0), repeat=3)))


def level_normal(sole: np.ndarray) -> np.ndarray | None:
    """The direction from a flat sole to the ground, if its points are nearly in a level plane."""
    _, spread, axes = np.linalg.svd(sole - sole.mean(axis=0), full_matrices=False)
    normal: np.ndarray = axes[2] * -np.sign(axes[2, 2])
    return normal if normal[2] < -0.97 and spread[1] > 0.1 * spread[0] else None


def collides(model: mujoco.MjModel, geom: int) -> bool:
    """Whether a geom can touch anything, by its bits or in a contact pair."""
    bits = model.geom_contype[geom] or model.geom_conaffinity[geom]
    return bool(bits) or geom in model.pair_geom1 or geom in model.pair_geom2


def radius(model: mujoco.MjModel, geom: int) -> float:
    """The rounding radius of a sphere or capsule, m; 0 for other shapes."""
    return float(model.geom_size[geom, 0]) if model.geom_type[geom] in _ROUND else 0.0


def surface(data: mujoco.MjData, geom: int, direction: np.ndarray) -> np.ndarray:
    """Points of a geom, including the farthest one in `direction`, in the world, ``(n, 3)``."""
    model = data.model
    if model.geom_type[geom] == _MESH:
        mesh = model.geom_dataid[geom]
        first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        points = model.mesh_vert[first : first + count]
    else:
        center, half = np.split(model.geom_aabb[geom], 2)
        points = center + _CORNERS * (half - radius(model, geom))
    frame = data.geom_xmat[geom].reshape(3, 3)
    return np.asarray(points @ frame.T + data.geom_xpos[geom] + radius(model, geom) * direction)


def inertia_sizes(model: mujoco.MjModel, body: int) -> np.ndarray:
    """Mean squared distances of a body's mass along the axes of its inertia, m^2, ``(3,)``."""
    x, y, z = model.body_inertia[body] / model.body_mass[body]
    return np.asarray(np.maximum([y + z - x, x + z - y, x + y - z], 0.0) / 2.0)


def inertia_box(data: mujoco.MjData, body: int) -> np.ndarray:
    """Corners of the box with a body's mass and inertia, in the world, ``(8, 3)``."""
    half, frame = np.sqrt(3.0 * inertia_sizes(data.model, body)), data.ximat[body].reshape(3, 3)
    return np.asarray((_CORNERS * half) @ frame.T + data.xipos[body])
