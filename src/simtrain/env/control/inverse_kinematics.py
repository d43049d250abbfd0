"""Differential inverse kinematics of a site, by damped least squares, for all environments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mujoco
import torch

from simtrain.env.control.cfg import ActionTerm
from simtrain.env.control.transmission import ONE_DEGREE
from simtrain.env.names import as_index
from simtrain.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.control.cfg import DifferentialIKActionCfg
    from simtrain.env.names import Joints

_HINGE = mujoco.mjtJoint.mjJNT_HINGE.value


class DifferentialIK(ActionTerm):
    """Gives joints' servos the targets by which a site moves and turns as it is told to."""

    def __init__(
        self,
        cfg: DifferentialIKActionCfg,
        model: mujoco.MjModel,
        joints: Joints,
        actuators: list[int],
    ) -> None:
        self._site = _id_of("site", [model.site(i).name for i in range(model.nsite)], cfg.site)
        self._frame: int | None = None
        if cfg.frame is not None:
            bodies = [model.body(i).name for i in range(model.nbody)]
            self._frame = _id_of("body", bodies, cfg.frame)
        moving, body = set(), int(model.site_bodyid[self._site])
        while body:
            moving.add(body)
            body = int(model.body_parentid[body])
        ids = [model.joint(name).id for name in joints.names]
        for joint in ids:
            if int(model.jnt_bodyid[joint]) not in moving:
                raise ConfigError(
                    f"{model.joint(joint).name!r} does not move the site {cfg.site!r}"
                )
            if model.jnt_type[joint] not in ONE_DEGREE:
                raise ConfigError(f"{model.joint(joint).name!r} is neither a slide nor a hinge")
        self.dim, self.actuators = 6 if cfg.orientation else 3, tuple(actuators)
        self._cfg, self._joints, self._ids = cfg, joints, ids
        self._is_hinge = model.jnt_type[ids] == _HINGE
        self._ranges = model.actuator_ctrlrange[actuators]

    def declare(self, env: Any) -> None:
        """Take what it reads from `env`; it keeps nothing."""
        cfg, device = self._cfg, env.device
        names = ("qpos", "xanchor", "xaxis", "site_xpos", "xmat")
        self._fields: list[Tensor] = [env.bind(name) for name in names]
        scale = [cfg.position_scale] * 3 + [cfg.rotation_scale] * 3
        self._scale = torch.tensor(scale[: self.dim], device=device)
        self._damping = cfg.damping**2 * torch.eye(self.dim, device=device)
        self._hinges = torch.as_tensor(self._is_hinge, device=device).float().unsqueeze(1)
        low, high = torch.as_tensor(self._ranges, dtype=torch.float32).T
        limited = low < high
        self._low = torch.where(limited, low, -torch.inf).to(device)
        self._high = torch.where(limited, high, torch.inf).to(device)
        self._index = as_index(list(self.actuators), device)
        self._places = as_index(self._ids, device)

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


def _id_of(kind: str, names: list[str], name: str) -> int:
    if name not in names:
        known = f"{did_you_mean(name, names)}; the model has {', '.join(filter(None, names))}"
        raise ConfigError(f"no {kind} is called {name!r}{known}")
    return names.index(name)
