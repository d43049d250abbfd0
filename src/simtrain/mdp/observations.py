"""Observation terms. Each returns float32, ``(num_envs, size)``.

"The base" is the floating base, ``Env.base``; its frame has x forward, y to the left and z up. Feet
have the model's order, and their contact sensors are MuJoCo's
``<contact data="found force" reduce="netforce">``: [found, fx, fy, fz] each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from simtrain.env.control.transmission import find_servos
from simtrain.env.reading import mirrored_as, read_as
from simtrain.mdp.robot_state import (
    base_rotation,
    computed_once,
    feet_forces,
    feet_touch,
    height_above_ground,
    touches,
)
from simtrain.mdp.rotations import yaw_of

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.env import Env
    from simtrain.env.names import Entities, Joints, Sensors


@mirrored_as("vector")
@computed_once
def base_lin_vel(env: Env) -> Tensor:
    """Velocity of the base in its own frame, m/s. Shape: ``(num_envs, 3)``."""
    velocity = env.bind("qvel")[:, env.base.linear]
    return (base_rotation(env) * velocity.unsqueeze(2)).sum(dim=1)


@mirrored_as("pseudo_vector")
def base_ang_vel(env: Env) -> Tensor:
    """Angular velocity of the base in its own frame, rad/s. Shape: ``(num_envs, 3)``."""
    return env.bind("qvel")[:, env.base.angular]


@mirrored_as("vector")
def projected_gravity(env: Env) -> Tensor:
    """Direction of gravity in the base's frame, (0, 0, -1) upright. Shape: ``(num_envs, 3)``."""
    return -base_rotation(env)[:, 2]


@mirrored_as("each")
def joint_pos(env: Env, joints: Joints) -> Tensor:
    """Positions of joints, m or rad. Shape: ``(num_envs, entries of qpos)``."""
    return env.bind("qpos")[:, joints.qpos]


@mirrored_as("relative_joints")
class joint_pos_rel:
    """Positions of slides and hinges relative to the initial state, m or rad.

    If `biased`, the values include the encoder bias of `randomize_encoder_bias`; this needs a
    position actuator on every joint. Otherwise they are the true positions.
    """

    def __init__(self, env: Env, joints: Joints, biased: bool = False) -> None:
        self._joints, self._initial = joints, env.initial_qpos[joints.qpos]
        self._servos: Tensor | None = None
        if biased:
            self._actuators = find_servos(env.model, joints, env.device)
            self._servos = env.sim.expand("actuator_biasprm")

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs, joints)``."""
        position = env.bind("qpos")[:, self._joints.qpos] - self._initial
        if self._servos is not None:
            # A servo's force is kp (ctrl - q - bias): biasprm[0] is -kp bias, biasprm[1] -kp.
            servos = self._servos[:, self._actuators]
            position += servos[..., 0] / servos[..., 1]
        return position


@mirrored_as("each")
def joint_vel(env: Env, joints: Joints) -> Tensor:
    """Velocities of joints, m/s or rad/s. Shape: ``(num_envs, degrees of freedom)``."""
    return env.bind("qvel")[:, joints.qvel]


@mirrored_as("actions")
def last_action(env: Env) -> Tensor:
    """The latest actions of the policy. Shape: ``(num_envs, num_actions)``."""
    return env.actions


@mirrored_as("command")
def generated_commands(env: Env, command: str) -> Tensor:
    """The present command with this name. Shape: ``(num_envs, size of the command)``."""
    return env.command(command)


@read_as("given")
def builtin_sensor(env: Env, sensors: Sensors) -> Tensor:
    """Values of sensors of the model, such as an IMU. Shape: ``(num_envs, entries)``."""
    return env.bind("sensordata")[:, sensors.data]


@mirrored_as("each")
def foot_contact(env: Env, sensors: Sensors) -> Tensor:
    """1 for each foot that touches something, else 0. Shape: ``(num_envs, feet)``."""
    return feet_touch(env, sensors).float()


@mirrored_as("each_vector")
def foot_contact_forces(env: Env, sensors: Sensors) -> Tensor:
    """Contact forces in the world, sign(f) log(1 + |f|) of N. Shape: ``(num_envs, 3 x feet)``."""
    force = feet_forces(env, sensors).flatten(1)
    return force.sign() * force.abs().log1p()


@mirrored_as("each")
def foot_height(env: Env, sites: Entities) -> Tensor:
    """Heights of the feet's sites above the ground, m. Shape: ``(num_envs, feet)``."""
    return height_above_ground(env, env.bind("site_xpos")[:, sites.ids])


def _grid(size: tuple[float, float], resolution: float) -> list[Tensor]:
    """Where the rows and the columns of a `height_scan` are, forward and to the left, m."""
    return [torch.linspace(-n / 2, n / 2, round(n / resolution) + 1) for n in size]


def _scan(env: Env, params: Mapping[str, Any]) -> dict[str, Any]:
    """The points of a `height_scan`, whose distances a robot's program gives, and its offset."""
    points = torch.cartesian_prod(*_grid(params["size"], params["resolution"]))
    return {"points": points.tolist(), "minus": torch.tensor([params["offset"]])}


@mirrored_as("grid")
@read_as("given", more=_scan)
class height_scan:
    """Height of the base above the ground, minus `offset`, at a grid of points around it, m.

    The grid has `size` forward and sideways, and points with a distance of `resolution`, m. It
    turns with the heading of the base. `offset` is about the height of the base when standing. Use
    `image` for a CNN.
    """

    def __init__(
        self,
        env: Env,
        size: tuple[float, float] = (1.6, 1.0),
        resolution: float = 0.2,
        offset: float = 0.3,
        image: bool = False,
    ) -> None:
        sides = _grid(size, resolution)
        self._x, self._y = torch.cartesian_prod(*sides).to(env.device).unbind(1)
        self._offset = offset
        self._shape = (1, *map(len, sides)) if image else (len(self._x),)

    def __call__(self, env: Env) -> Tensor:
        """Points from back to front, and then from right to left: ``(num_envs, points)``, or
        ``(num_envs, 1, rows, columns)`` with the first row at the back and the first column at the
        right.
        """
        position = env.bind("qpos")[:, env.base.position].T.unsqueeze(2)
        distances = (position[2] - self._offset).expand(-1, len(self._x))
        if env.terrain is not None:
            yaw = yaw_of(env.bind("qpos")[:, env.base.quaternion]).unsqueeze(1)
            cos, sin = yaw.cos(), yaw.sin()
            forward, left = torch.stack((cos, sin)), torch.stack((-sin, cos))
            points = position[:2] + forward * self._x + left * self._y
            distances = distances - env.terrain.height(points.movedim(0, -1))
        return torch.unflatten(distances, 1, self._shape)


@mirrored_as("each")
class foot_air_time:
    """How long each foot has been in the air, s; 0 while it touches the ground.

    With `substeps`, every physics step counts, otherwise only the last one of a control step.
    """

    def __init__(self, env: Env, sensors: Sensors, substeps: bool = False) -> None:
        self._sensors = sensors
        self._record = env.substeps("sensordata") if substeps else None
        self._time = env.buffer("time", (len(sensors),))

    def __call__(self, env: Env) -> Tensor:
        """Shape: ``(num_envs, feet)``."""
        contacts = touches(env, self._sensors, self._record)
        for contact in contacts:
            self._time.add_(env.step_dt / len(contacts)).masked_fill_(contact, 0.0)
        if self._record is not None:  # nothing has been recorded where an episode begins
            self._time.masked_fill_(env.is_fresh.unsqueeze(1), 0.0)
        return self._time


def _at_each_substep(reflection: Any, params: Any) -> list[tuple[int, float]]:
    feet = reflection.partners(params["sensors"])
    return [(k * len(feet) + i, 1.0) for k in range(reflection.cfg.decimation) for i, _ in feet]


@mirrored_as(_at_each_substep)
class foot_contact_history:
    """1 for each foot that touched something at a physics step of the control step, else 0.

    It detects a foot that touches the ground and leaves it between two control steps.
    """

    def __init__(self, env: Env, sensors: Sensors) -> None:
        self._sensors, self._record = sensors, env.substeps("sensordata")

    def __call__(self, env: Env) -> Tensor:
        """Physics steps from first to last, the feet in each: ``(num_envs, decimation x feet)``."""
        return torch.cat(touches(env, self._sensors, self._record), dim=1).float()
