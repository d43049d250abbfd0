"""Commands for a policy to follow: terms derived from `simtrain.env.commands.CommandTerm`."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING

import torch

from simtrain.algorithms.mirror import mirrored_as
from simtrain.env.commands import Arrow, CommandTerm, Sphere
from simtrain.mdp.rotations import wrap_to_pi, yaw_of

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Bounds


@mirrored_as("planar_velocity")
@dataclass(eq=False, repr=False)
class UniformVelocityCommand(CommandTerm):
    """Walk forward, sideways and turn: [v_x, v_y, w_z] in the base's frame, drawn uniformly.

    Parameters are bounds, in m/s, rad/s and rad. A part `rel_heading_envs` of the environments keep
    a heading instead: their w_z is `heading_stiffness`, 1/s, times the error of the heading, within
    `ang_vel_z`. A part `rel_forward_envs` walk straight ahead, at the absolute value of v_x. A part
    `rel_standing_envs` stand: their command is zero. With the probability `init_velocity_prob` the
    base is given the velocity that is newly commanded.
    """

    labels = ("forward [m/s]", "left [m/s]", "turn [rad/s]")
    stops_at_zero = True

    env: InitVar[Env]
    lin_vel_x: tuple[float, float]
    lin_vel_y: tuple[float, float]
    ang_vel_z: tuple[float, float]
    heading: tuple[float, float] = (-math.pi, math.pi)
    heading_stiffness: float = 0.5
    rel_heading_envs: float = 0.0
    rel_forward_envs: float = 0.0
    rel_standing_envs: float = 0.0
    init_velocity_prob: float = 0.0

    def __post_init__(self, env: Env) -> None:
        self._env = env
        bounds = (self.lin_vel_x, self.lin_vel_y, self.ang_vel_z, self.heading)
        limits = torch.tensor(bounds, device=env.device).T.clone()
        self.low, self.high = env.variable("bounds", limits)
        """Bounds of v_x, v_y, w_z and heading, ``(4,)``; curricula change them in place."""
        self.command = env.buffer("command", (3,), reset=None)
        self._drawn = env.buffer("drawn", (4,), reset=None)
        self._kinds = env.buffer("kinds", (3,), reset=None, dtype=torch.bool)
        odds = (self.rel_heading_envs, self.rel_forward_envs, self.rel_standing_envs)
        self._odds = torch.tensor(odds, device=env.device)

    def resample(self, mask: Tensor) -> None:
        """See `CommandTerm.resample`."""
        random = torch.rand(self._env.num_envs, 8, device=self._env.device)
        drawn = torch.addcmul(self.low, random[:, :4], self.high - self.low)
        rows = mask.unsqueeze(1)
        torch.where(rows, drawn, self._drawn, out=self._drawn)
        torch.where(rows, random[:, 4:7] < self._odds, self._kinds, out=self._kinds)
        if self.init_velocity_prob > 0.0:
            self._set_velocity(mask & (random[:, 7] < self.init_velocity_prob))

    def update(self) -> None:
        """See `CommandTerm.update`."""
        self.command.copy_(self._drawn[:, :3])
        if self.rel_heading_envs > 0.0:
            yaw = yaw_of(self._env.bind("qpos")[:, self._env.base.quaternion])
            rate = wrap_to_pi(self._drawn[:, 3] - yaw) * self.heading_stiffness
            rate = torch.clamp(rate, self.low[2], self.high[2])
            own = self.command[:, 2]
            torch.where(self._kinds[:, 0], rate, own, out=own)
        if self.rel_forward_envs > 0.0:
            ahead = self._kinds[:, 1]
            torch.where(ahead, self.command[:, 0].abs(), self.command[:, 0], out=self.command[:, 0])
            self.command[:, 1:].masked_fill_(ahead.unsqueeze(1), 0.0)
        if self.rel_standing_envs > 0.0:
            self.command.masked_fill_(self._kinds[:, 2:], 0.0)

    def _set_velocity(self, mask: Tensor) -> None:
        """Give the base the commanded velocity, level and without any other, in `mask`."""
        env, base = self._env, self._env.base
        self.update()
        x, y, turn = self.command.unbind(1)
        yaw = yaw_of(env.bind("qpos")[:, base.quaternion])
        cos, sin, zero = yaw.cos(), yaw.sin(), torch.zeros_like(x)
        velocity = (cos * x - sin * y, sin * x + cos * y, zero, zero, zero, turn)
        entries = slice(base.linear.start, base.angular.stop)
        env.sim.write("qvel", torch.stack(velocity, dim=1), mask, entries)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """See `CommandTerm.bounds`; a change of these, in place, changes what is drawn."""
        return self.low[:3], self.high[:3]

    def markers(self, index: int) -> list[Arrow]:
        """The commanded velocity in green and the actual one in blue, half a metre a m/s."""
        env = self._env
        yaw = yaw_of(env.bind("qpos")[index, env.base.quaternion])
        cos, sin = yaw.cos(), yaw.sin()
        forward, left = self.command[index, :2]
        commanded = torch.stack((cos * forward - sin * left, sin * forward + cos * left))
        actual = env.bind("qvel")[index, env.base.linear][:2]
        x, y, _ = env.bind("qpos")[index, env.base.position].tolist()
        z = float(env.bind("xpos")[index, :, 2].max()) + 0.2
        return [
            Arrow((x, y, height), (x + dx, y + dy, height), rgb)
            for (dx, dy), height, rgb in (
                ((0.5 * commanded).tolist(), z, (0.15, 0.75, 0.25)),
                ((0.5 * actual).tolist(), z + 0.04, (0.2, 0.45, 0.95)),
            )
        ]


class UniformPositionCommand(CommandTerm):
    """A goal in space: [x, y, z] in the world, m, drawn uniformly, drawn as a sphere of `radius`.

    Parameters are bounds in m, from the environment's origin on a terrain.
    """

    labels = ("goal x [m]", "goal y [m]", "goal z [m]")

    def __init__(self, env: Env, x: Bounds, y: Bounds, z: Bounds, radius: float = 0.02) -> None:
        self._env, self._radius = env, radius
        self.low, self.high = env.variable("bounds", torch.tensor([x, y, z]).T.clone())
        """Bounds of x, y and z, ``(3,)``; curricula change them in place."""
        self.command = env.buffer("command", (3,), reset=None)

    def resample(self, mask: Tensor) -> None:
        """See `CommandTerm.resample`."""
        drawn = torch.rand_like(self.command)
        torch.addcmul(self.low, drawn, self.high - self.low, out=drawn)
        if self._env.terrain is not None:
            drawn += self._env.terrain.origins
        torch.where(mask.unsqueeze(1), drawn, self.command, out=self.command)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """See `CommandTerm.bounds`."""
        return self.low, self.high

    def markers(self, index: int) -> list[Sphere]:
        """The goal in green."""
        x, y, z = self.command[index].tolist()
        return [Sphere((x, y, z), self._radius, (0.15, 0.75, 0.25))]
