"""Terms that a policy can see. Each returns float32, ``(num_envs, size)``.

"The base" is the body of the model's first free joint, ``Env.base``; its frame has x forward, y to
the left and z up. Feet come in the model's order, and their contact sensors are MuJoCo's
``<contact data="found force" reduce="netforce">``: [found, fx, fy, fz] each.
"""

import torch
from torch import Tensor

from simtrain.env.actions import find_actuators_of
from simtrain.env.env import Env
from simtrain.env.names import Entities, Joints, Sensors
from simtrain.mdp.robot_state import (
    base_rotation,
    base_velocity,
    feet_forces,
    feet_touch,
    height_above_ground,
)
from simtrain.mdp.rotations import yaw_of


def base_lin_vel(env: Env) -> Tensor:
    """Velocity of the base in its own frame, m/s. Shape: ``(num_envs, 3)``."""
    return base_velocity(env)


def base_ang_vel(env: Env) -> Tensor:
    """Angular velocity of the base in its own frame, rad/s. Shape: ``(num_envs, 3)``."""
    return env.bind("qvel")[:, env.base.angular]


def projected_gravity(env: Env) -> Tensor:
    """Direction of gravity in the base's frame, (0, 0, -1) upright. Shape: ``(num_envs, 3)``."""
    return -base_rotation(env)[:, 2]


def joint_pos(env: Env, joints: Joints) -> Tensor:
    """Positions of joints, m or rad. Shape: ``(num_envs, entries of qpos)``."""
    return env.bind("qpos")[:, joints.qpos]


class joint_pos_rel:
    """Positions of slides and hinges relative to the initial state, m or rad.

    If `biased`, what the encoders read, with the bias that `randomize_encoder_bias` gave them;
    otherwise the truth. That needs a position actuator on every joint.
    """

    def __init__(self, env: Env, joints: Joints, biased: bool = False) -> None:
        self._joints, self._initial = joints, env.initial_qpos[joints.qpos]
        self._servos: Tensor | None = None
        if biased:
            self._actuators = find_actuators_of(env.model, joints, env.device)
            self._servos = env.sim.expand("actuator_biasprm")

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs, joints)``."""
        position = env.bind("qpos")[:, self._joints.qpos] - self._initial
        if self._servos is not None:
            # A servo's force is kp (ctrl - q - bias): biasprm[0] is -kp bias, biasprm[1] -kp.
            servos = self._servos[:, self._actuators]
            position += servos[..., 0] / servos[..., 1]
        return position


def joint_vel(env: Env, joints: Joints) -> Tensor:
    """Velocities of joints, m/s or rad/s. Shape: ``(num_envs, degrees of freedom)``."""
    return env.bind("qvel")[:, joints.qvel]


def last_action(env: Env) -> Tensor:
    """The latest actions as the policy gave them. Shape: ``(num_envs, num_actions)``."""
    return env.actions


def generated_commands(env: Env, command: str) -> Tensor:
    """The present command of that name. Shape: ``(num_envs, size of the command)``."""
    return env.command(command)


def foot_contact(env: Env, sensors: Sensors) -> Tensor:
    """1 for each foot that touches something, else 0. Shape: ``(num_envs, feet)``."""
    return feet_touch(env, sensors).float()


def foot_contact_forces(env: Env, sensors: Sensors) -> Tensor:
    """Contact forces in the world, sign(f) log(1 + |f|) of N. Shape: ``(num_envs, 3 x feet)``."""
    force = feet_forces(env, sensors).flatten(1)
    return force.sign() * force.abs().log1p()


def foot_height(env: Env, sites: Entities) -> Tensor:
    """Heights of the feet's sites above the ground, m. Shape: ``(num_envs, feet)``."""
    return height_above_ground(env, env.bind("site_xpos")[:, sites.ids])


class height_scan:
    """How far the ground is below the base, less an offset, at a grid of points about it, m.

    The grid, of `size` forward and sideways and with points `resolution` apart, m, turns with the
    base's heading; `offset` is about the base's height when standing. An `image` is for a CNN.
    """

    def __init__(
        self,
        env: Env,
        size: tuple[float, float] = (1.6, 1.0),
        resolution: float = 0.2,
        offset: float = 0.3,
        image: bool = False,
    ) -> None:
        sides = [torch.linspace(-n / 2, n / 2, round(n / resolution) + 1) for n in size]
        self._x, self._y = torch.cartesian_prod(*sides).to(env.device).unbind(1)
        self._offset = offset
        self._shape = (1, *map(len, sides)) if image else (len(self._x),)

    def __call__(self, env: Env) -> Tensor:
        """Points from back to front, and then from right to left: ``(num_envs, points)``, or
        ``(num_envs, 1, rows, columns)``, the first row at the back, the first column at the right.
        """
        distances: Tensor = self._distances(env).unflatten(1, self._shape)
        return distances

    def _distances(self, env: Env) -> Tensor:
        position = env.bind("qpos")[:, env.base.position].T.unsqueeze(2)
        distance = (position[2] - self._offset).expand(-1, len(self._x))
        if env.terrain is None:
            return distance
        yaw = yaw_of(env.bind("qpos")[:, env.base.quaternion]).unsqueeze(1)
        cos, sin = yaw.cos(), yaw.sin()
        forward, left = torch.stack((cos, sin)), torch.stack((-sin, cos))
        points = position[:2] + forward * self._x + left * self._y
        return distance - env.terrain.height(points.movedim(0, -1))


class foot_air_time:
    """How long each foot has been in the air, s; 0 while it touches the ground."""

    def __init__(self, env: Env, sensors: Sensors) -> None:
        self._sensors = sensors
        self._time = env.buffer("time", (len(sensors),))

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs, feet)``."""
        self._time.add_(env.step_dt).masked_fill_(feet_touch(env, self._sensors), 0.0)
        return self._time
