"""Shapes of bodies, as points: where a foot may touch the ground."""

from __future__ import annotations

import mujoco
import numpy as np

SPHERE, CAPSULE = int(mujoco.mjtGeom.mjGEOM_SPHERE), int(mujoco.mjtGeom.mjGEOM_CAPSULE)
_MESH = int(mujoco.mjtGeom.mjGEOM_MESH)


def geoms_of(model: mujoco.MjModel, body: int) -> range:
    """Ids of the geoms of a body."""
    first = int(model.body_geomadr[body])
    return range(first, first + int(model.body_geomnum[body])) if first >= 0 else range(0)


def collides(model: mujoco.MjModel, geom: int) -> bool:
    """Whether a geom may touch anything, by its bits or as one of a pair."""
    bits = model.geom_contype[geom] or model.geom_conaffinity[geom]
    return bool(bits) or geom in model.pair_geom1 or geom in model.pair_geom2


def surface(
    model: mujoco.MjModel, data: mujoco.MjData, geom: int, direction: np.ndarray
) -> list[np.ndarray]:
    """Points of a geom's surface that lie farthest in `direction`, and corners, in the world."""
    place, frame = data.geom_xpos[geom], data.geom_xmat[geom].reshape(3, 3)
    size, kind = model.geom_size[geom], model.geom_type[geom]
    if kind == SPHERE:
        return [place + size[0] * direction]
    if kind == CAPSULE:
        axis = size[1] * frame[:, 2]
        return [place + sign * axis + size[0] * direction for sign in (-1.0, 1.0)]
    if kind == _MESH:
        mesh = model.geom_dataid[geom]
        first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
        return list(model.mesh_vert[first : first + count] @ frame.T + place)
    return _corners(size, frame, place)


def inertia_box(model: mujoco.MjModel, data: mujoco.MjData, body: int) -> list[np.ndarray]:
    """Corners of the even box that has a body's mass and inertia, in the world."""
    ix, iy, iz = model.body_inertia[body]
    squares = np.array([iy + iz - ix, ix + iz - iy, ix + iy - iz]) * 1.5 / model.body_mass[body]
    half = np.sqrt(np.maximum(squares, 0.0))
    return _corners(half, data.ximat[body].reshape(3, 3), data.xipos[body])


def _corners(half: np.ndarray, frame: np.ndarray, place: np.ndarray) -> list[np.ndarray]:
    """The corners of a box, in the world."""
    corners = np.stack(np.meshgrid(*[(-s, s) for s in half], indexing="ij"), axis=-1)
    return list(corners.reshape(-1, 3) @ frame.T + place)
