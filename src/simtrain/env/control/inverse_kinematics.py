"""Differential inverse kinematics of a site, by damped least squares, for all environments."""

from typing import Any

import mujoco
import torch
from torch import Tensor

from simtrain.env.control.cfg import ActionTerm, DifferentialIKActionCfg, InitialState
from simtrain.env.control.transmission import find_driving, target_limits
from simtrain.env.names import ONE_DEGREE, as_index, find_id, find_joints
from simtrain.errors import ConfigError

_HINGE = mujoco.mjtJoint.mjJNT_HINGE.value


class DifferentialIK(ActionTerm):
    """Gives joints' servos the targets by which a site moves and turns by the actions."""

    def __init__(
        self,
        cfg: DifferentialIKActionCfg,
        model: mujoco.MjModel,
        start: InitialState,
        device: torch.device | str,
    ) -> None:
        self._joints = find_joints(model, cfg.joints, device)
        names = self._joints.names
        actuators = find_driving(model, "joint", names, type(cfg).__name__, "position")
        self.dim, self.actuators = 6 if cfg.orientation else 3, tuple(actuators)
        self._site = find_id(model, "site", cfg.site)
        self._frame = None if cfg.frame is None else find_id(model, "body", cfg.frame)
        moving, body = set(), int(model.site_bodyid[self._site])
        while body:
            moving.add(body)
            body = int(model.body_parentid[body])
        ids = [model.joint(name).id for name in names]
        for name, joint in zip(names, ids, strict=True):
            if int(model.jnt_bodyid[joint]) not in moving:
                raise ConfigError(f"{name!r} does not move the site {cfg.site!r}")
            if model.jnt_type[joint] not in ONE_DEGREE:
                raise ConfigError(f"{name!r} is neither a slide nor a hinge")
        scale = [cfg.position_scale] * 3 + [cfg.rotation_scale] * 3
        self._scale = torch.tensor(scale[: self.dim], device=device)
        self._damping = cfg.damping**2 * torch.eye(self.dim, device=device)
        is_hinge = torch.as_tensor(model.jnt_type[ids] == _HINGE)
        self._hinges = is_hinge.float().unsqueeze(1).to(device)
        limits = torch.as_tensor(target_limits(model, actuators), dtype=torch.float32)
        self._low, self._high = limits.to(device)
        self._index, self._places = as_index(actuators, device), as_index(ids, device)

    def declare(self, env: Any) -> None:
        """Take what it reads from `env`; it keeps nothing."""
        names = ("qpos", "xanchor", "xaxis", "site_xpos", "xmat")
        self._fields: list[Tensor] = [env.bind(name) for name in names]

    def apply(self, actions: Tensor, ctrl: Tensor) -> None:
        """See `ActionTerm.apply`."""
        qpos = self._fields[0][:, self._joints.qpos]
        jacobian = self._jacobian()  # (num_envs, dim, joints)
        error = self._along_frame(actions * self._scale)
        squared = jacobian @ jacobian.transpose(1, 2) + self._damping
        step = jacobian.transpose(1, 2) @ solve_positive(squared, error.unsqueeze(2))
        ctrl[:, self._index] = torch.clamp(qpos + step.squeeze(2), self._low, self._high)

    def _jacobian(self) -> Tensor:
        """The site's velocity, and its angular one, for each joint's, along the world's axes."""
        _, anchors, axes, sites, _ = self._fields
        axis = axes[:, self._places]
        arm = sites[:, self._site].unsqueeze(1) - anchors[:, self._places]
        linear = torch.lerp(axis, torch.linalg.cross(axis, arm), self._hinges)
        if self.dim == 6:
            linear = torch.cat((linear, axis * self._hinges), dim=2)
        return linear.transpose(1, 2)

    def _along_frame(self, vectors: Tensor) -> Tensor:
        """Vectors along the frame's axes, ``(num_envs, dim)``, along those of the world."""
        if self._frame is None:
            return vectors
        rotation = self._fields[4].view(len(vectors), -1, 3, 3)[:, self._frame]
        turned: Tensor = rotation @ vectors.unflatten(1, (-1, 3)).transpose(1, 2)
        return turned.transpose(1, 2).flatten(1)


def solve_positive(matrix: Tensor, right: Tensor) -> Tensor:
    """``matrix^-1 right`` of positive definite matrices, ``(n, k, k)`` and ``(n, k, m)``.

    By Gauss and Jordan; pivots need no search, and so nothing waits for the device.
    """
    size = matrix.shape[1]
    rows = torch.cat((matrix, right), dim=2)
    for i in range(size):
        pivot = rows[:, i] / rows[:, i, i].unsqueeze(1)
        rows = rows - rows[:, :, i].unsqueeze(2) * pivot.unsqueeze(1)
        rows[:, i] = pivot
    return rows[:, :, size:]
