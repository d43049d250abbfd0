"""Warp kernels of the GPU engine: masked copies of rows, peak buffer sizes, failed environments.

No ``from __future__ import annotations`` here: Warp reads the annotations as types.
"""

# mypy: ignore-errors

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
