"""Quaternions, w first as in MuJoCo, and angles, in batches. Any leading shape."""

import math

import torch
from torch import Tensor


def quat_from_euler(roll: Tensor, pitch: Tensor, yaw: Tensor) -> Tensor:
    """By `roll` about x, `pitch` about y, then `yaw` about z, fixed axes, rad: ``(..., 4)``."""
    cr, cp, cy = (0.5 * roll).cos(), (0.5 * pitch).cos(), (0.5 * yaw).cos()
    sr, sp, sy = (0.5 * roll).sin(), (0.5 * pitch).sin(), (0.5 * yaw).sin()
    w = cr * cp * cy + sr * sp * sy
    x = sr * cp * cy - cr * sp * sy
    y = cr * sp * cy + sr * cp * sy
    z = cr * cp * sy - sr * sp * cy
    return torch.stack((w, x, y, z), dim=-1)


def quat_mul(first: Tensor, second: Tensor) -> Tensor:
    """The product: the rotation `second`, then `first`. Shape: ``(..., 4)``."""
    w1, x1, y1, z1 = first.unbind(-1)
    w2, x2, y2, z2 = second.unbind(-1)
    w = w1 * w2 - x1 * x2 - y1 * y2 - z1 * z2
    x = w1 * x2 + x1 * w2 + y1 * z2 - z1 * y2
    y = w1 * y2 - x1 * z2 + y1 * w2 + z1 * x2
    z = w1 * z2 + x1 * y2 - y1 * x2 + z1 * w2
    return torch.stack((w, x, y, z), dim=-1)


def yaw_of(quaternion: Tensor) -> Tensor:
    """The angle of the rotated x axis about the vertical, rad. Shape: ``(...)``."""
    w, x, y, z = quaternion.unbind(-1)
    return torch.atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def wrap_to_pi(angle: Tensor) -> Tensor:
    """The same angle in [-pi, pi), rad. Any shape."""
    return torch.remainder(angle + math.pi, 2.0 * math.pi) - math.pi
