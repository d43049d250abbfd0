"""Terms for tasks with a velocity command: the command, its curricula and its metrics.

A curriculum is ``(env, mask)``, called before resets; `mask` selects the environments that are
about to be reset, and the return value is logged. Metrics are float32, ``(num_envs,)``.
"""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch

from simtrain.env.commands import Arrow, CommandTerm
from simtrain.env.reading import mirrored_as
from simtrain.errors import ConfigError, choices
from simtrain.limits import Limits
from simtrain.mdp.observations import base_ang_vel, base_lin_vel
from simtrain.mdp.robot_state import find_command
from simtrain.mdp.rotations import wrap_to_pi, yaw_of

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env


@mirrored_as("planar_velocity")
@dataclass(eq=False, repr=False)
class UniformVelocityCommand(CommandTerm):
    """Walk forward, sideways and turn: [v_x, v_y, w_z] in the base's frame, drawn uniformly.

    Parameters are bounds, in m/s, rad/s and rad. A fraction `rel_heading_envs` of the environments
    keeps a heading: w_z is `heading_stiffness`, 1/s, times the heading error, within `ang_vel_z`. A
    fraction `rel_forward_envs` walks straight forward, with the absolute value of v_x. A fraction
    `rel_standing_envs` stands: its command is zero. With the probability `init_velocity_prob`, the
    base gets the velocity of the new command.
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
        self.odds = torch.tensor(odds, device=env.device)
        """Shares that keep a heading, walk straight forward and stand; a curriculum may declare
        them as its variable, and change them in place."""

    def resample(self, mask: Tensor) -> None:
        """See `CommandTerm.resample`."""
        random = torch.rand(self._env.num_envs, 8, device=self._env.device)
        drawn = torch.addcmul(self.low, random[:, :4], self.high - self.low)
        rows = mask.unsqueeze(1)
        torch.where(rows, drawn, self._drawn, out=self._drawn)
        torch.where(rows, random[:, 4:7] < self.odds, self._kinds, out=self._kinds)
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
        self.command.masked_fill_(self._kinds[:, 2:], 0.0)

    def _set_velocity(self, mask: Tensor) -> None:
        """Give the base the commanded velocity, level and without any other, in `mask`."""
        base, velocity = self._env.base, torch.zeros(self._env.num_envs, 6, device=mask.device)
        self.update()
        velocity[:, :2], velocity[:, 5] = self._in_world(), self.command[:, 2]
        entries = slice(base.linear.start, base.angular.stop)
        self._env.sim.write("qvel", velocity, mask, entries)

    def _in_world(self) -> Tensor:
        """The commanded velocity along the world's axes, m/s. Shape: ``(num_envs, 2)``."""
        yaw = yaw_of(self._env.bind("qpos")[:, self._env.base.quaternion])
        cos, sin, (x, y, _) = yaw.cos(), yaw.sin(), self.command.unbind(1)
        return torch.stack((cos * x - sin * y, sin * x + cos * y), dim=1)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """See `CommandTerm.bounds`; change these tensors in place to change the bounds."""
        return self.low[:3], self.high[:3]

    def markers(self, index: int) -> list[Arrow]:
        """The commanded velocity in green and the actual one in blue, 0.5 m long per m/s."""
        env = self._env
        actual = env.bind("qvel")[index, env.base.linear][:2]
        x, y, _ = env.bind("qpos")[index, env.base.position].tolist()
        z = float(env.bind("xpos")[index, :, 2].max()) + 0.2
        return [
            Arrow((x, y, height), (x + dx, y + dy, height), rgb)
            for (dx, dy), height, rgb in (
                ((0.5 * self._in_world()[index]).tolist(), z, (0.15, 0.75, 0.25)),
                ((0.5 * actual).tolist(), z + 0.04, (0.2, 0.45, 0.95)),
            )
        ]


class command_ranges:
    """Widen the bounds of a `UniformVelocityCommand`.

    They begin as `start` times the full bounds, and end as the full bounds. The change begins after
    `after_steps` control steps and ends at `steps`. `ranges` names the bounds to widen; the others
    are complete from the start.
    """

    def __init__(
        self,
        env: Env,
        command: str,
        start: float,
        steps: int,
        after_steps: int = 0,
        ranges: tuple[str, ...] = ("lin_vel_x", "lin_vel_y", "ang_vel_z"),
    ) -> None:
        self._term = find_command(env, command, UniformVelocityCommand)
        known = ("lin_vel_x", "lin_vel_y", "ang_vel_z")
        for name in ranges:
            if name not in known:
                raise ConfigError(f"ranges has {name!r}{choices(name, known)}")
        if after_steps >= steps:
            raise ConfigError(f"after_steps is {after_steps}; it must be below steps, {steps}")
        self._start, self._begin, self._steps = start, after_steps, steps - after_steps
        self._full = torch.stack(self._term.bounds())
        self._widened = torch.tensor([name in ranges for name in known], device=env.device)

    def __call__(self, env: Env, mask: Tensor) -> Tensor:
        """Set the command's bounds, in place; the part of them that is drawn from, scalar."""
        done = ((env.steps - self._begin) / self._steps).clamp(0.0, 1.0)
        part = self._start + (1.0 - self._start) * done
        bounds = torch.where(self._widened, self._full * part, self._full)
        self._term.low[:3], self._term.high[:3] = bounds
        return part


class standing_envs:
    """Change the share of environments that a `UniformVelocityCommand` lets stand to `share`.

    It changes after `after_steps` control steps, when the robot has learned to walk: one that still
    falls while it stands has few samples of standing, for its episodes end early.
    """

    def __init__(
        self, env: Env, command: str, share: Annotated[float, Limits(0.0, 1.0)], after_steps: int
    ) -> None:
        self._odds = env.variable("odds", find_command(env, command, UniformVelocityCommand).odds)
        self._first, self._then = self._odds[2].clone(), torch.tensor(share, device=env.device)
        self._after_steps = after_steps

    def __call__(self, env: Env, mask: Tensor) -> Tensor:
        """Set the share, in place, and return it, scalar."""
        later = env.steps >= self._after_steps
        return torch.where(later, self._then, self._first, out=self._odds[2])


class terrain_levels:
    """Move robots that follow the velocity command to harder tiles, and others to easier ones.

    The criterion is the distance in the commanded direction, as a fraction of the commanded
    distance: from `promote` on, the level rises by one; below `demote`, it falls by one. After a
    failure, the commanded distance includes the rest of the episode with the last command. If less
    than half a tile was commanded, the level does not change.
    """

    def __init__(self, env: Env, command: str, promote: float = 0.8, demote: float = 0.5) -> None:
        if env.terrain is None:
            raise ConfigError("terrain_levels needs a task with a terrain")
        self._terrain, self._command = env.terrain, command
        self._promote, self._demote = promote, demote
        self._commanded, self._made = env.buffer("distances", (2,)).unbind(1)

    def observe(self, env: Env) -> None:
        """Add the distances of a step, m, in place."""
        command = env.command(self._command)[:, :2]
        speed = torch.linalg.vector_norm(command, dim=1)
        along = (base_lin_vel(env)[:, :2] * command).sum(dim=1) / speed.clamp(min=1e-6)
        self._commanded.add_(speed, alpha=env.step_dt)
        self._made.add_(along, alpha=env.step_dt)

    def __call__(self, env: Env, mask: Tensor) -> Tensor:
        """Change the levels and origins in `mask`, in place; the mean level, scalar."""
        speed = torch.linalg.vector_norm(env.command(self._command)[:, :2], dim=1)
        left = (env.max_episode_length - env.episode_length_buf) * env.step_dt
        distance = self._commanded + speed * left * env.terminations.terminated
        up, down = self._made >= self._promote * distance, self._made < self._demote * distance
        change = (up.long() - down.long()) * (distance > self._terrain.tile_size / 2.0)
        self._terrain.move(mask, change)
        return self._terrain.levels.float().mean()


class commanded_distance:
    """The commands of an episode add up to `distance`, m.

    Use it as a time-out, so that `terrain_levels` changes sooner. Evaluations run to their end.
    """

    in_evaluation: ClassVar = {"distance": 1e9}

    def __init__(self, env: Env, command: str, distance: float) -> None:
        self._command, self._distance = command, distance
        self._commanded = env.buffer("commanded")

    def __call__(self, env: Env) -> Tensor:
        """``(num_envs,)``, bool."""
        speed = torch.linalg.vector_norm(env.command(self._command)[:, :2], dim=1)
        self._commanded.add_(speed, alpha=env.step_dt)
        return self._commanded > self._distance


def lin_vel_error(env: Env, command: str) -> Tensor:
    """Norm of the difference between the base's horizontal velocity and the command, m/s."""
    error = base_lin_vel(env)[:, :2] - env.command(command)[:, :2]
    distance: Tensor = torch.linalg.vector_norm(error, dim=1)
    return distance


def ang_vel_error(env: Env, command: str) -> Tensor:
    """Difference between the base's yaw rate and the command's, rad/s."""
    return (base_ang_vel(env)[:, 2] - env.command(command)[:, 2]).abs()
