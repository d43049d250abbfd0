"""Warp kernels of the GPU engine: masked copies of rows, peak buffer sizes, failed environments.

No ``from __future__ import annotations`` here: Warp reads the annotations as types.
"""

# mypy: ignore-errors

import warp as wp

wp.set_module_options({"enable_backward": False})
Mask = wp.array[bool]
Integers = wp.array[int]
Rows = wp.array2d[float]


@wp.kernel
def copy_rows(mask: Mask, where: bool, source: Rows, target: Rows):
    """Copy the rows where ``mask == where``; a source of one row is copied to all of them."""
    row, column = wp.tid()
    if mask[row] == where:
        target[row, column] = source[row % source.shape[0], column]


@wp.func
def copy_entry(source: Rows, target: Rows, row: int, column: int):
    """Copy an entry if `target` has that column; a source of one row is copied to all of them."""
    if column < target.shape[1]:
        target[row, column] = source[row % source.shape[0], column]


@wp.kernel
def copy_rows_of_four(
    mask: Mask,
    source_a: Rows,
    source_b: Rows,
    source_c: Rows,
    source_d: Rows,
    target_a: Rows,
    target_b: Rows,
    target_c: Rows,
    target_d: Rows,
):
    """Copy the masked rows of four arrays, in one launch."""
    row, column = wp.tid()
    if mask[row]:
        copy_entry(source_a, target_a, row, column)
        copy_entry(source_b, target_b, row, column)
        copy_entry(source_c, target_c, row, column)
        copy_entry(source_d, target_d, row, column)


@wp.kernel
def zero_rows(mask: Mask, columns: Integers, target: Rows):
    """Zero the given columns of the masked rows."""
    row, i = wp.tid()
    if mask[row]:
        target[row, columns[i]] = 0.0


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
