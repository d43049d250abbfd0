"""Warp kernels of the GPU engine: masked copies of rows, peak buffer sizes, failed environments,
false contacts.

No ``from __future__ import annotations`` here: Warp reads the annotations as types.
"""

# mypy: ignore-errors

import mujoco
import warp as wp

wp.set_module_options({"enable_backward": False})
Mask = wp.array[bool]
Integers = wp.array[int]
Rows = wp.array2d[float]


@wp.struct
class Copy:
    """From where to where; a source of one row is copied to all of them."""

    source: Rows
    target: Rows


@wp.kernel
def copy_rows(
    mask: Mask, where: bool, copies: wp.array[Copy], numbers: Integers, columns: Integers
):
    """For each entry, copy that column of that one of `copies`, in rows where ``mask == where``."""
    row, entry = wp.tid()
    if mask[row] == where:
        copy = copies[numbers[entry]]
        column = columns[entry]
        copy.target[row, column] = copy.source[row % copy.source.shape[0], column]


@wp.kernel
def zero_columns(columns: Integers, target: Rows):
    """Zero the given columns of all rows."""
    row, i = wp.tid()
    target[row, columns[i]] = 0.0


@wp.kernel
def update_peaks(nefc: Integers, nacon: Integers, ncollision: Integers, peaks: Integers):
    """Keep the most constraints of an environment, and the most contacts and pairs of them all."""
    row = wp.tid()
    wp.atomic_max(peaks, 0, nefc[row])
    if row == 0:
        peaks[1] = wp.max(peaks[1], wp.max(nacon[0], ncollision[0]))


@wp.kernel
def find_failed(qpos: Rows, qvel: Rows, act: Rows, largest: float, failed: Mask):
    """Find the rows in which something is not finite, or too large (``mj_checkPos``)."""
    row = wp.tid()
    finite = bool(True)  # noqa: UP018 - for Warp a variable, not a constant
    for i in range(qpos.shape[1]):
        finite = finite and wp.abs(qpos[row, i]) <= largest
    for i in range(qvel.shape[1]):
        finite = finite and wp.abs(qvel[row, i]) <= largest
    for i in range(act.shape[1]):
        finite = finite and wp.abs(act[row, i]) <= largest
    failed[row] = not finite


@wp.kernel
def drop_false_contacts(
    nacon: Integers,
    geoms: wp.array[wp.vec2i],
    worlds: Integers,
    distances: wp.array[float],
    frames: wp.array[wp.mat33],
    geom_types: Integers,
    geom_rbound: Rows,
    geom_xmat: wp.array2d[wp.mat33],
    types: Integers,
):
    """Switch off contacts with height fields that a geom above one cannot have.

    MuJoCo Warp's depths between a capsule and an edge of a height field are sometimes wrong by
    much: then the geom lies deeper than it is large, or is pushed into the ground.
    """
    i = wp.tid()
    if i >= nacon[0]:
        return
    field, other, world = geoms[i][0], geoms[i][1], worlds[i]
    if field < 0 or other < 0 or geom_types[field] != wp.static(int(mujoco.mjtGeom.mjGEOM_HFIELD)):
        return
    xmat, normal = geom_xmat[world, field], frames[i][0]
    up = normal[0] * xmat[0, 2] + normal[1] * xmat[1, 2] + normal[2] * xmat[2, 2]
    radius = geom_rbound[world % geom_rbound.shape[0], other]
    if up < -0.01 or distances[i] < -radius:
        types[i] = 0
