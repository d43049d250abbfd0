"""Shapes of bodies, as points: where a foot may touch the ground."""

from __future__ import annotations

from itertools import product

import mujoco
import numpy as np

_ROUND = [int(mujoco.mjtGeom.mjGEOM_SPHERE), int(mujoco.mjtGeom.mjGEOM_CAPSULE)]
_MESH = int(mujoco.mjtGeom.mjGEOM_MESH)
_CORNERS = np.array(list(product((-1.0, 1.0), repeat=3)))


def geoms_of(model: mujoco.MjModel, body: int) -> range:
    """Ids of the geoms of a body."""
    first = int(model.body_geomadr[body])
    return range(first, first + int(model.body_geomnum[body]))


def collides(model: mujoco.MjModel, geom: int) -> bool:
    """Whether a geom may touch anything, by its bits or as one of a pair."""
    bits = model.geom_contype[geom] or model.geom_conaffinity[geom]
    return bool(bits) or geom in model.pair_geom1 or geom in model.pair_geom2


def radius(model: mujoco.MjModel, geom: int) -> float:
    """By which a sphere or capsule is rounded, m; 0 for other shapes."""
    return float(model.geom_size[geom, 0]) if model.geom_type[geom] in _ROUND else 0.0


def surface(
    model: mujoco.MjModel, data: mujoco.MjData, geom: int, direction: np.ndarray
) -> np.ndarray:
    """Points of a geom among which is the farthest in `direction`, in the world, ``(n, 3)``."""
    if model.geom_type[geom] == _MESH:
        mesh = model.geom_dataid[geom]
        first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        points = model.mesh_vert[first : first + count]
    else:
        center, half = np.split(model.geom_aabb[geom], 2)
        points = center + _CORNERS * (half - radius(model, geom))
    frame = data.geom_xmat[geom].reshape(3, 3)
    moved: np.ndarray = points @ frame.T + data.geom_xpos[geom] + radius(model, geom) * direction
    return moved


def inertia_sizes(model: mujoco.MjModel, body: int) -> np.ndarray:
    """Mean squares of the places of a body's mass along its inertia's axes, m^2, ``(3,)``."""
    x, y, z = model.body_inertia[body] / model.body_mass[body]
    squares: np.ndarray = np.maximum([y + z - x, x + z - y, x + y - z], 0.0) / 2.0
    return squares


def inertia_box(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> np.ndarray:
    """Corners of the even box that has a body's mass and inertia, in the world, ``(8, 3)``."""
    half, frame = np.sqrt(3.0 * inertia_sizes(model, body)), data.ximat[body].reshape(3, 3)
    corners: np.ndarray = (_CORNERS * half) @ frame.T + data.xipos[body]
    return corners
