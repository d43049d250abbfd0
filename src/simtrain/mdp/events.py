"""Events: each is ``(env, mask, **params)`` and changes only the environments in `mask`.

`mask` is boolean, ``(num_envs,)``. Random numbers are always drawn for all environments, so that
those of an environment do not depend on resets of others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from simtrain.env.names import Bounds, find_free_bodies, initial_state
from simtrain.env.randomness import Draws, draw_where
from simtrain.env.reading import checked_by
from simtrain.errors import ConfigError, choices
from simtrain.mdp.robot_state import base_rotation
from simtrain.mdp.rotations import quat_from_euler, quat_mul

if TYPE_CHECKING:
    import mujoco
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Entities, Joints

Ranges = Mapping[str, Bounds]  # by axis; those of an axis that is not named are 0
AXES = ("x", "y", "z", "roll", "pitch", "yaw")  # along the world's, m or m/s; about, rad or rad/s


def _check_free(model: mujoco.MjModel, step_dt: float, **params: Any) -> None:
    """Raise ConfigError for a body that does not move freely."""
    find_free_bodies(model, params.get("bodies"))


@checked_by(_check_free)
class reset_root_state_uniform:
    """Set the base to its initial pose plus a uniform offset, with a uniform velocity.

    With `bodies`, set each of these free bodies, such as objects, with its own offset. The offset
    is in m and rad. On a terrain, it is relative to the environment's origin, and to the highest
    ground around the position. Its rotation is applied after the initial one. The velocity is in
    m/s along the world's axes and rad/s about the axes of the body.
    """

    def __init__(
        self,
        env: Env,
        pose_range: Ranges,
        velocity_range: Ranges | None = None,
        bodies: Entities | None = None,
    ) -> None:
        self._bodies = find_free_bodies(env.model, bodies)
        start = initial_state(env.model, env.cfg.keyframe).qpos
        self._are_turned = [any(start[b.quaternion] != (1.0, 0.0, 0.0, 0.0)) for b in self._bodies]
        ranges = (by_axis(pose_range), by_axis(velocity_range or {}))
        self._uniform = Draws(env, *ranges * len(self._bodies))

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        draws = self._uniform.draw()
        bodies = zip(self._bodies, self._are_turned, draws[::2], draws[1::2], strict=True)
        for body, is_turned, offset, velocity in bodies:
            position = env.initial_qpos[body.position] + offset[:, :3]
            if env.terrain is not None:
                position[:, :2].add_(env.terrain.origins[:, :2])
                position[:, 2].add_(env.terrain.highest(position[:, :2]))
            turn = quat_from_euler(*offset[:, 3:].unbind(1))
            if is_turned:
                turn = quat_mul(turn, env.initial_qpos[body.quaternion])
            pose = torch.cat((position, turn), dim=1)
            env.sim.write("qpos", pose, mask, body.pose)
            env.sim.write("qvel", velocity, mask, body.twist)


@checked_by(_check_free)
class push_by_setting_velocity:
    """Add a uniform change to the velocity of the base.

    It is in m/s along the world's axes and rad/s about the axes of the base. With `bodies`, the
    velocity of each of these free bodies is changed instead.
    """

    def __init__(self, env: Env, velocity_range: Ranges, bodies: Entities | None = None) -> None:
        self._bodies = find_free_bodies(env.model, bodies)
        self._change = Draws(env, *[by_axis(velocity_range)] * len(self._bodies))

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        for body, change in zip(self._bodies, self._change.draw(), strict=True):
            env.sim.write("qvel", env.bind("qvel")[:, body.twist] + change, mask, body.twist)


class apply_body_force:
    """Push bodies with a force at their centres of mass, and with a torque, for some time.

    `force_range` bounds the force, N, along the world's axes, and the torque, Nm, about them, drawn
    for each body. They last for a time within `duration_s`, s, and at least for one step dt, which
    is an impulse of force x dt. With None, they last until the next draw or the reset.
    """

    def __init__(
        self, env: Env, bodies: Entities, force_range: Ranges, duration_s: Bounds | None = None
    ) -> None:
        self._bodies, axes = bodies, by_axis(force_range)
        self._draws = Draws(env, *([pair] * len(bodies) for pair in axes))
        self._duration_s, self._left = duration_s, env.buffer("left")

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        forces = self._draws.draw().movedim(0, 2)
        env.sim.write("xfrc_applied", forces, mask, self._bodies.ids)
        if self._duration_s is not None:
            draw_where(mask, self._left, self._duration_s)
            self._left.clamp_(min=torch.finfo().tiny)  # also nothing lasts

    def follow(self, env: Env) -> None:
        """End the forces whose time is over, in place; called at every step."""
        if self._duration_s is not None:
            lasted = self._left > 0.0
            self._left.sub_(env.step_dt)
            # Half a step less, for sums of rounded numbers.
            over = lasted & (self._left < 0.5 * env.step_dt)
            self._left.masked_fill_(over, 0.0)
            env.sim.write("xfrc_applied", 0.0, over, self._bodies.ids)


class hold_upright:
    """Help the base to stay upright; the help decreases to nothing during training.

    At every control step, a fraction `part` of the base's roll and pitch velocity is replaced by
    that of a return to the vertical with `rate`, 1/s. The fraction decreases linearly to 0 over
    `steps` control steps. Evaluations run without this event, as without all events between resets.
    """

    def __init__(self, env: Env, part: float, rate: float, steps: int) -> None:
        self._part, self._steps = part, steps
        self._back = torch.tensor((-rate, rate), device=env.device)

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        tilt = base_rotation(env)[:, 2, :2]  # sines of -pitch and roll
        start = env.base.angular.start
        index = slice(start, start + 2)
        part = (env.steps * (-self._part / self._steps)).add_(self._part).clamp_(min=0.0)
        spin = env.bind("qvel")[:, index].lerp(tilt.flip(1).mul_(self._back), part)
        env.sim.write("qvel", spin, mask, index)


def reset_joints_uniform(
    env: Env,
    mask: Tensor,
    joints: Joints,
    position: Bounds = (0.0, 0.0),
    velocity: Bounds = (0.0, 0.0),
) -> None:
    """Set joints to their initial position plus a uniform offset, with a uniform velocity.

    Bounds are in m or rad, and in m/s or rad/s; `joints` are slides and hinges.
    """
    start = env.initial_qpos[joints.qpos]
    shape = (env.num_envs, len(joints))
    offset = torch.empty(shape, device=env.device).uniform_(*position)
    env.sim.write("qpos", start + offset, mask, joints.qpos)
    speed = torch.empty(shape, device=env.device).uniform_(*velocity)
    env.sim.write("qvel", speed, mask, joints.qvel)


def reset_joints_gaussian(
    env: Env, mask: Tensor, joints: Joints, position_std: float = 0.0, velocity_std: float = 0.0
) -> None:
    """Set joints to their initial position and zero velocity plus normally distributed offsets.

    Standard deviations are in m or rad, and in m/s or rad/s; `joints` are slides and hinges.
    """
    start = env.initial_qpos[joints.qpos]
    noise = torch.randn(2, env.num_envs, len(joints), device=env.device)
    env.sim.write("qpos", start + position_std * noise[0], mask, joints.qpos)
    env.sim.write("qvel", velocity_std * noise[1], mask, joints.qvel)


def by_axis(ranges: Ranges) -> list[Bounds]:
    """Bounds along and about `AXES`."""
    for axis in ranges:
        if axis not in AXES:
            raise ConfigError(f"there is no axis {axis!r}{choices(axis, AXES)}")
    return [ranges.get(axis, (0.0, 0.0)) for axis in AXES]
