"""Reward terms. Each returns float32, ``(num_envs,)``, a rate per second.

Terms that end in ``_l2`` are sums of squares; give them a negative weight. Terms that end in
``_exp`` are exp(-error^2 / std^2), which is 1/e at an error of `std`. The base and the contact
`sensors` of feet are as in `simtrain.mdp.observations`. `command` is the name of a velocity
command, [v_x, v_y, w_z] in the base's frame, m/s and rad/s. Up to a norm of `command_threshold`, it
is a command to stand. `velocity_sensors` are MuJoCo's ``<framelinvel>`` of the feet, in the world's
frame.
"""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal

import torch

from simtrain.env.names import match_values
from simtrain.mdp.observations import base_ang_vel, base_lin_vel, foot_height
from simtrain.mdp.robot_state import (
    base_height,
    base_rotation,
    feet_forces,
    feet_speed,
    feet_touch,
    is_moving,
    sensor_rows,
    touches,
)

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Entities, Joints, Sensors


Sigmoid = Literal["gaussian", "linear", "quadratic", "long_tail"]


def is_alive(env: Env) -> Tensor:
    """1 unless the episode fails at this step. Shape: ``(num_envs,)``."""
    return 1.0 - env.terminations.terminated.float()


def is_terminated(env: Env) -> Tensor:
    """1 if the episode fails at this step, without a time-out. Shape: ``(num_envs,)``."""
    return env.terminations.terminated.float()


def track_lin_vel_xy_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-|v_xy - command_xy|^2 / std^2), v the base's velocity in its own frame, m/s."""
    error = base_lin_vel(env)[:, :2] - env.command(command)[:, :2]
    return torch.exp(error.square().sum(dim=1) / -(std**2))


def track_ang_vel_z_exp(env: Env, command: str, std: float) -> Tensor:
    """exp(-(w_z - command_z)^2 / std^2), w the base's angular velocity in its own frame, rad/s."""
    error = base_ang_vel(env)[:, 2] - env.command(command)[:, 2]
    return torch.exp(error.square() / -(std**2))


def lin_vel_z_l2(env: Env) -> Tensor:
    """Squared velocity of the base along its own z axis, m^2/s^2."""
    return base_lin_vel(env)[:, 2].square()


def ang_vel_xy_l2(env: Env) -> Tensor:
    """Squared angular velocity of the base about its own x and y axes, rad^2/s^2."""
    return base_ang_vel(env)[:, :2].square().sum(dim=1)


def flat_orientation_l2(env: Env) -> Tensor:
    """Squared sine of the angle between the base's z axis and the vertical."""
    return base_rotation(env)[:, 2, :2].square().sum(dim=1)


def upright(env: Env, std: float) -> Tensor:
    """exp(-sin^2 of the angle between the base's z axis and the vertical / std^2)."""
    return torch.exp(flat_orientation_l2(env) / -(std**2))


def base_height_l2(env: Env, target_height: float) -> Tensor:
    """Squared difference of the base's height above the ground from `target_height`, m^2."""
    return (base_height(env) - target_height).square()


@dataclass(eq=False, repr=False)
class posture:
    """exp(-mean over joints of ((q - q_initial) / std)^2), with a smaller std when standing.

    The std, rad, is one number for all joints or one for each pattern of their names. It is
    `std_standing` if the norm of the command is at most `threshold`, `std_running` if it is at
    least `running_threshold`, and `std_moving` otherwise.
    """

    env: InitVar[Env]
    joints: Joints
    command: str
    std_standing: float | dict[str, float]
    std_moving: float | dict[str, float]
    threshold: float = 0.05
    std_running: float | dict[str, float] | None = None
    running_threshold: float = 1.5

    def __post_init__(self, env: Env) -> None:
        self._initial = env.initial_qpos[self.joints.qpos]
        running = self.std_moving if self.std_running is None else self.std_running
        stds, names = (self.std_standing, self.std_moving, running), self.joints.names
        values = [match_values(std, names, math.inf, "std") for std in stds]
        self._standing, self._moving, self._running = 1.0 / torch.tensor(values, device=env.device)

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        moving = is_moving(env, self.command, self.threshold)
        scale = torch.where(moving.unsqueeze(1), self._moving, self._standing)
        if self.std_running is not None:
            running = is_moving(env, self.command, self.running_threshold)
            scale = torch.where(running.unsqueeze(1), self._running, scale)
        error = (env.bind("qpos")[:, self.joints.qpos] - self._initial) * scale
        return torch.exp(-error.square().mean(dim=1))


class joint_pos_limits:
    """Distance of limited joints from the middle part `soft_limit_factor` of their range, rad,
    summed over joints."""

    def __init__(self, env: Env, joints: Joints, soft_limit_factor: float = 0.9) -> None:
        ranges = torch.tensor(env.model.jnt_range, dtype=torch.float32, device=env.device)
        is_free = torch.tensor(env.model.jnt_limited == 0, device=env.device)[joints.ids]
        low, high = ranges[joints.ids].unbind(1)
        self._joints, self._middle = joints, (low + high) / 2.0
        self._half = (soft_limit_factor * (high - low) / 2.0).masked_fill(is_free, math.inf)

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs,)``."""
        away = (env.bind("qpos")[:, self._joints.qpos] - self._middle).abs_()
        return away.sub_(self._half).clamp_(min=0.0).sum(dim=1)


def joint_vel_l2(env: Env, joints: Joints) -> Tensor:
    """Squared velocities of joints, summed, rad^2/s^2."""
    return env.bind("qvel")[:, joints.qvel].square().sum(dim=1)


def joint_vel_at_rest_l2(env: Env, joints: Joints, gait: str) -> Tensor:
    """Sum of squared joint velocities, rad/s, while the clock `gait` stands. ``(num_envs,)``."""
    stands = (env.command(gait) == 0.0).all(dim=1)
    return joint_vel_l2(env, joints) * stands


def joint_acc_l2(env: Env, joints: Joints) -> Tensor:
    """Squared accelerations of joints in the last physics step, summed, rad^2/s^4."""
    return env.bind("qacc")[:, joints.qvel].square().sum(dim=1)


def joint_torques_l2(env: Env, actuators: Entities) -> Tensor:
    """Squared forces of actuators in the last physics step, summed, N^2 m^2."""
    return env.bind("actuator_force")[:, actuators.ids].square().sum(dim=1)


def electrical_power(env: Env, joints: Joints, actuators: Entities) -> Tensor:
    """Electrical power of motors, W: the positive part of force x velocity, summed.

    `actuators` drive the `joints`, slides and hinges, one each and in the same order.
    """
    force = env.bind("actuator_force")[:, actuators.ids]
    return (force * env.bind("qvel")[:, joints.qvel]).clamp_(min=0.0).sum(dim=1)


def action_rate_l2(env: Env) -> Tensor:
    """Squared change of the actions since the last step, summed. Shape: ``(num_envs,)``."""
    return (env.actions - env.previous_actions).square().sum(dim=1)


class action_acc_l2:
    """Squared change of the actions' change since the last step, summed, for smooth actions."""

    def __init__(self, env: Env) -> None:
        self._change = env.buffer("change", (env.num_actions,))

    def __call__(self, env: Env) -> Tensor:
        """Note the change, in place. Shape: ``(num_envs,)``."""
        change = env.actions - env.previous_actions
        value = (change - self._change).square().sum(dim=1)
        self._change.copy_(change)
        return value


def angular_momentum_l2(env: Env, sensors: Sensors) -> Tensor:
    """Squared angular momentum, kg^2 m^4 / s^2, from MuJoCo's ``<subtreeangmom>`` of the base."""
    return env.bind("sensordata")[:, sensors.data].square().sum(dim=1)


@dataclass(eq=False, repr=False)
class feet_air_time:
    """At each touch-down, the foot's time in the air minus a `threshold`, s, summed over feet.

    The rate applies for one step: a landing after t seconds earns weight x (t - threshold) x the
    step's duration. It is 0 under a command to stand. With `substeps`, every physics step counts,
    otherwise only the last one of a control step.
    """

    env: InitVar[Env]
    sensors: Sensors
    command: str
    threshold: float
    command_threshold: float = 0.05
    substeps: bool = False

    def __post_init__(self, env: Env) -> None:
        self._record = env.substeps("sensordata") if self.substeps else None
        self._time = env.buffer("time", (len(self.sensors),))

    def __call__(self, env: Env) -> Tensor:
        """Count the step, in place. Shape: ``(num_envs,)``."""
        rewards = []
        contacts = touches(env, self.sensors, self._record)
        for contact in contacts:
            landed = contact.logical_and(self._time)
            rewards.append(((self._time - self.threshold) * landed).sum(dim=1))
            self._time.add_(env.step_dt / len(contacts)).masked_fill_(contact, 0.0)
        return reduce(torch.add, rewards) * is_moving(env, self.command, self.command_threshold)


@dataclass(eq=False, repr=False)
class air_time_variance:
    """Variance over feet of their last times in the air, plus that of their last times on the
    ground, s^2.

    As a penalty, it keeps a robot from hopping on some of its feet. It is 0 under a command to
    stand. Times are limited to `longest`, s. As ``air_time_variance_penalty`` of Isaac Lab's Spot.
    """

    env: InitVar[Env]
    sensors: Sensors
    command: str
    longest: float = 0.5
    command_threshold: float = 0.05

    def __post_init__(self, env: Env) -> None:
        # In the air and down: how long by now, and how long it was when it last ended.
        self._now = env.buffer("now", (2, len(self.sensors))).transpose(0, 1)
        self._last = env.buffer("last", (2, len(self.sensors))).transpose(0, 1)

    def __call__(self, env: Env) -> Tensor:
        """Count the step, in place. Shape: ``(num_envs,)``."""
        contact = feet_touch(env, self.sensors)
        over = torch.stack((contact, ~contact))
        torch.where(over & (self._now > 0.0), self._now, self._last, out=self._last)
        self._now.add_(env.step_dt).masked_fill_(over, 0.0)
        # What lasts longer than the last time did counts already.
        times = torch.maximum(self._last, self._now).clamp_(max=self.longest)
        variance = times.var(dim=2, correction=0).sum(dim=0)
        return variance * is_moving(env, self.command, self.command_threshold)


def feet_contact_without_cmd(
    env: Env, sensors: Sensors, command: str, command_threshold: float = 0.05
) -> Tensor:
    """Fraction of the feet that touch the ground under a command to stand; 0 under any other."""
    part = feet_touch(env, sensors).float().mean(dim=1)
    return part.masked_fill_(is_moving(env, command, command_threshold), 0.0)


def feet_slide(env: Env, sensors: Sensors, velocity_sensors: Sensors) -> Tensor:
    """Horizontal speed of the feet that touch the ground, m/s, summed."""
    return (feet_speed(env, velocity_sensors) * feet_touch(env, sensors)).sum(dim=1)


def feet_clearance(
    env: Env, sites: Entities, velocity_sensors: Sensors, target_height: float
) -> Tensor:
    """Sum over feet of |height - target| x horizontal speed, m^2/s: a penalty for low swings."""
    error = (foot_height(env, sites) - target_height).abs_()
    return (error * feet_speed(env, velocity_sensors)).sum(dim=1)


@dataclass(eq=False, repr=False)
class feet_swing_height:
    """At each touch-down, (highest point of the swing / target - 1)^2, summed over feet.

    Heights of the feet's `sites` and `target_height`, m, are relative to the height of the sites in
    stance. It is 0 under a command to stand.
    """

    env: InitVar[Env]
    sensors: Sensors
    sites: Entities
    command: str
    target_height: float
    command_threshold: float = 0.05

    def __post_init__(self, env: Env) -> None:
        self._down = env.buffer("down", (len(self.sensors),), reset=None)
        self._peak = env.buffer("peak", (len(self.sensors),))

    def __call__(self, env: Env) -> Tensor:
        """Follow the swings, in place. Shape: ``(num_envs,)``."""
        contact, height = feet_touch(env, self.sensors), foot_height(env, self.sites)
        landed = contact & (self._peak > 0.0)
        error = (self._peak / self.target_height - 1.0).square().mul_(landed).sum(dim=1)
        torch.where(contact, height, self._down, out=self._down)
        torch.maximum(self._peak, height - self._down, out=self._peak)
        self._peak.masked_fill_(contact, 0.0)
        return error * is_moving(env, self.command, self.command_threshold)


def self_collision_cost(env: Env, sensors: Sensors) -> Tensor:
    """Contacts of the robot with itself, from MuJoCo's ``<contact data="found ...">``, summed."""
    return sensor_rows(env, sensors)[:, :, 0].sum(dim=1)


class soft_landing:
    """Force on each foot at touch-down, N, summed over the feet that touch down at this step."""

    def __init__(self, env: Env, sensors: Sensors) -> None:
        self._sensors = sensors
        self._airborne = env.buffer("airborne", (len(sensors),), reset=False, dtype=torch.bool)

    def __call__(self, env: Env) -> Tensor:
        """Note which feet are in the air, in place. Shape: ``(num_envs,)``."""
        contact = feet_touch(env, self._sensors)
        landed = contact & self._airborne
        torch.logical_not(contact, out=self._airborne)
        force = feet_forces(env, self._sensors).square().sum(dim=2).sqrt()
        return (force * landed).sum(dim=1)


def tolerance(
    value: Tensor,
    margin: float,
    value_at_margin: float = 0.1,
    *,
    bounds: tuple[float, float] = (0.0, 0.0),
    sigmoid: Sigmoid = "gaussian",
) -> Tensor:
    """1 if a value is within `bounds`, decreasing to `value_at_margin` at a distance of `margin`.

    `sigmoid` is the shape of the decrease; ``linear`` and ``quadratic`` reach 0. As ``tolerance``
    of the DeepMind Control Suite (Tassa et al. 2018), with its names. Any shape.
    """
    low, high = bounds
    away = value if low == high == 0.0 else (low - value).clamp_(min=0.0).maximum(value - high)
    if sigmoid == "gaussian":
        return away.square().mul_(math.log(value_at_margin) / margin**2).exp_()
    if sigmoid == "long_tail":
        return away.square().mul_((1.0 / value_at_margin - 1.0) / margin**2).add_(1.0).reciprocal_()
    away, margin = (away.abs(), margin) if sigmoid == "linear" else (away.square(), margin**2)
    return away.mul_((value_at_margin - 1.0) / margin).add_(1.0).clamp_(min=0.0)
