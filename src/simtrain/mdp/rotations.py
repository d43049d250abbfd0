"""Quaternions, w first as in MuJoCo, and angles, in batches. Any leading shape."""

import math

import torch
from torch import Tensor


def quat_from_euler(roll: Tensor, pitch: Tensor, yaw: Tensor) -> Tensor:
    """By `roll` about x, `pitch` about y, then `yaw` about z, fixed axes, rad: ``(..., 4)``."""
    half = 0.5 * torch.stack((roll, pitch, yaw))
    about_x, about_y, about_z = torch.stack((half.cos(), half.sin()), dim=1)
    # Products of a cosine or sine of each of the three, c c c to s s s.
    products = about_x[:, None, None] * about_y[:, None] * about_z
    ccc, ccs, csc, css, scc, scs, ssc, sss = products.flatten(0, 2)
    return torch.stack((ccc + sss, scc - css, csc + scs, ccs - ssc), dim=-1)


def quat_mul(first: Tensor, second: Tensor) -> Tensor:
    """The product: the rotation `second`, then `first`. Shape: ``(..., 4)``."""
    first, second = (q.movedim(-1, 0) for q in torch.broadcast_tensors(first, second))
    (w, x, y, z), (_, nx, ny, nz) = second, -second
    # What the units 1, i, j and k make of `second`.
    rows = torch.stack((w, x, y, z, nx, w, nz, y, ny, z, w, nx, nz, ny, x, w))
    product: Tensor = (first.unsqueeze(1) * rows.unflatten(0, (4, 4))).sum(dim=0)
    return product.movedim(0, -1)


def yaw_of(quaternion: Tensor) -> Tensor:
    """The angle of the rotated x axis about the vertical, rad. Shape: ``(...)``."""
    w, x, y, z = quaternion.unbind(-1)
    return torch.atan2(w * z + x * y, 0.5 - (y * y + z * z))


def wrap_to_pi(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi), rad. Any shape."""
    return torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
