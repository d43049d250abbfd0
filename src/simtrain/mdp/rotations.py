"""Quaternions, w first as in MuJoCo, and angles, in batches. Any leading shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def quat_from_euler(roll: Tensor, pitch: Tensor, yaw: Tensor) -> Tensor:
    """Rotation by `roll` about x, `pitch` about y, then `yaw` about z, fixed axes, rad.

    Shape: ``(..., 4)``.
    """
    half = 0.5 * torch.stack((roll, pitch, yaw))
    about_x, about_y, about_z = torch.stack((half.cos(), half.sin()), dim=1)
    # Products of a cosine or sine of each of the three, c c c to s s s.
    products = about_x[:, None, None] * about_y[:, None] * about_z
    ccc, ccs, csc, css, scc, scs, ssc, sss = products.flatten(0, 2)
    return torch.stack((ccc + sss, scc - css, csc + scs, ccs - ssc), dim=-1)


def quat_mul(first: Tensor, second: Tensor) -> Tensor:
    """Product: the rotation `second`, then `first`. Shape: ``(..., 4)``."""
    first, second = (q.movedim(-1, 0) for q in torch.broadcast_tensors(first, second))
    (w, x, y, z), (_, nx, ny, nz) = second, -second
    # What the units 1, i, j and k make of `second`.
    rows = torch.stack((w, x, y, z, nx, w, nz, y, ny, z, w, nx, nz, ny, x, w))
    product: Tensor = (first.unsqueeze(1) * rows.unflatten(0, (4, 4))).sum(dim=0)
    return product.movedim(0, -1)


def quat_conjugate(quaternion: Tensor) -> Tensor:
    """The inverse rotation. Shape: ``(..., 4)``."""
    return torch.cat((quaternion[..., :1], -quaternion[..., 1:]), dim=-1)


def rotate(quaternion: Tensor, vector: Tensor) -> Tensor:
    """`vector`, ``(..., 3)``, rotated. Shape: ``(..., 3)``."""
    w, axis = quaternion[..., :1], quaternion[..., 1:].expand(vector.shape)
    twice = 2.0 * torch.linalg.cross(axis, vector)
    rotated: Tensor = vector + w * twice + torch.linalg.cross(axis, twice)
    return rotated


def principal_axes(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, ``(..., 3)``, of symmetric matrices, ``(..., 3, 3)``, and the axes' rotation.

    Shape of the rotation: ``(..., 4)``. Uses Jacobi's method with a fixed number of sweeps, because
    `torch.linalg.eigh` waits for the device. The axes of nearly diagonal matrices change little.
    """
    turn = torch.zeros(*matrices.shape[:-2], 4, device=matrices.device)
    turn[..., 0] = 1.0
    for _ in range(4):
        for i, j, axis in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
            gap = matrices[..., i, i] - matrices[..., j, j]
            off = matrices[..., i, j]
            # At most an eighth of a turn.
            angle = 0.5 * torch.atan2(torch.copysign(2.0 * off, off * gap), gap.abs())
            cos, sin = angle.cos(), angle.sin()
            rotation = torch.eye(3, device=angle.device).expand_as(matrices).clone()
            rotation[..., i, i] = rotation[..., j, j] = cos
            rotation[..., j, i], rotation[..., i, j] = sin, -sin
            matrices = rotation.mT @ matrices @ rotation
            about = torch.zeros_like(turn)
            about[..., 0], about[..., 1 + axis] = (0.5 * angle).cos(), (0.5 * angle).sin()
            turn = quat_mul(turn, about)
    return matrices.diagonal(dim1=-2, dim2=-1), turn


def yaw_of(quaternion: Tensor) -> Tensor:
    """The angle of the rotated x axis about the vertical, rad. Shape: ``(...)``."""
    w, x, y, z = quaternion.unbind(-1)
    return torch.atan2(w * z + x * y, 0.5 - (y * y + z * z))


def about_vertical(angle: Tensor) -> Tensor:
    """Rotation matrices about the z axis by `angle`, rad. Shape: ``(..., 3, 3)``."""
    cos, sin, zero, one = angle.cos(), angle.sin(), torch.zeros_like(angle), torch.ones_like(angle)
    rows = (cos, -sin, zero, sin, cos, zero, zero, zero, one)
    matrices: Tensor = torch.stack(rows, dim=-1).unflatten(-1, (3, 3))
    return matrices


def angle_between(first: Tensor, second: Tensor) -> Tensor:
    """Angle between rotations, rad, from the distance of their matrices; exact for small angles.

    Shape: that of the matrices, without the last two dimensions.
    """
    chord = torch.linalg.vector_norm((first - second).flatten(-2), dim=-1)
    return 2.0 * torch.asin((chord / math.sqrt(8.0)).clamp(max=1.0))


def wrap_to_pi(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi), rad. Any shape."""
    return torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
