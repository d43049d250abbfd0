"""A terrain's height field as a mesh for the web viewer, with few triangles where it is even."""

from __future__ import annotations

import mujoco
import numpy as np
import trimesh
from PIL import Image

from simtrain.env.terrain import NAME

_TOLERANCE = 1e-4  # m


def ground_mesh(model: mujoco.MjModel) -> trimesh.Trimesh:
    """The terrain of a model in the world, with a checkerboard of 1 m squares."""
    field, geom = model.hfield(NAME), model.geom(NAME)
    half_x, half_y, depth, _ = field.size
    heights = field.data.reshape(field.nrow[0], field.ncol[0]) * depth
    rows, columns = heights.shape
    x, y = np.meshgrid(np.linspace(-half_x, half_x, columns), np.linspace(-half_y, half_y, rows))
    vertices = np.stack((x, y, heights), axis=-1).reshape(-1, 3) + geom.pos
    squares = Image.fromarray(np.array([[200, 170], [170, 200]], dtype=np.uint8)).convert("RGB")
    material = trimesh.visual.material.PBRMaterial(
        baseColorTexture=squares.resize((256, 256), Image.Resampling.NEAREST),
        metallicFactor=0.0,
        roughnessFactor=1.0,
    )
    visual = trimesh.visual.TextureVisuals(uv=vertices[:, :2] / 2.0, material=material)
    mesh = trimesh.Trimesh(vertices, _faces(heights), visual=visual, process=False)
    mesh.remove_unreferenced_vertices()
    return mesh


def _faces(heights: np.ndarray) -> np.ndarray:
    """Triangles over the grid, ``(faces, 3)``; straight stretches of its strips are one piece.

    A strip lies between two rows of nodes. Between two of its nodes that are kept, both its edges
    are straight.
    """
    rows, columns = heights.shape
    bent = np.ones((rows, columns), dtype=bool)
    bent[:, 1:-1] = np.abs(np.diff(heights, n=2, axis=1)) > _TOLERANCE
    strip, column = np.nonzero(bent[:-1] | bent[1:])
    node = strip * columns + column
    same = strip[:-1] == strip[1:]
    left, right = node[:-1][same], node[1:][same]
    above_left, above_right = left + columns, right + columns
    return np.concatenate(
        (
            np.stack((left, right, above_right), axis=1),
            np.stack((left, above_right, above_left), axis=1),
        )
    )
