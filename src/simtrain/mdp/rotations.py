"""Quaternions, w first as in MuJoCo, and angles, in batches. Any leading shape."""

import math

import torch
from torch import Tensor


def quat_from_euler(roll: Tensor, pitch: Tensor, yaw: Tensor) -> Tensor:
    """By `roll` about x, `pitch` about y, then `yaw` about z, fixed axes, rad: ``(..., 4)``."""
    half = 0.5 * torch.stack((roll, pitch, yaw), dim=-1)
    about_x, about_y, about_z = torch.stack((half.cos(), half.sin()), dim=-1).unbind(-2)
    # Products of a cosine or sine of each of the three, c c c to s s s.
    products = about_x.unsqueeze(-1) * about_y.unsqueeze(-2)
    products = products.unsqueeze(-1) * about_z[..., None, None, :]
    ccc, ccs, csc, css, scc, scs, ssc, sss = products.flatten(-3).unbind(-1)
    return torch.stack((ccc + sss, scc - css, csc + scs, ccs - ssc), dim=-1)


def quat_mul(first: Tensor, second: Tensor) -> Tensor:
    """The product: the rotation `second`, then `first`. Shape: ``(..., 4)``."""
    w, x, y, z = second.unbind(-1)
    _, nx, ny, nz = (-second).unbind(-1)
    # What the units 1, i, j and k make of `second`.
    rows = torch.stack((w, x, y, z, nx, w, nz, y, ny, z, w, nx, nz, ny, x, w), dim=-1)
    return (first.unsqueeze(-1) * rows.unflatten(-1, (4, 4))).sum(dim=-2)


def yaw_of(quaternion: Tensor) -> Tensor:
    """The angle of the rotated x axis about the vertical, rad. Shape: ``(...)``."""
    products = quaternion.unsqueeze(-1) * quaternion.unsqueeze(-2)
    wz, xy, yy, zz = (products[..., i, j] for i, j in ((0, 3), (1, 2), (2, 2), (3, 3)))
    return torch.atan2(wz + xy, 0.5 - (yy + zz))


def wrap_to_pi(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi), rad. Any shape."""
    return torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
