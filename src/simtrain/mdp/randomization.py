"""Domain randomization: events that give model fields values of each environment's own.

Values are drawn about the model's own, not about those of the last draw, so that an event may come
at start-up, at resets or at intervals. Parameters are bounds. Actuators of `joints` are position
actuators, of one slide or hinge each. What follows from masses (``mj_setConst``) is recomputed.
"""

import torch
from torch import Tensor

from simtrain.env.actions import find_actuators_of
from simtrain.env.env import Env
from simtrain.env.names import Bounds, Entities, Joints
from simtrain.errors import ConfigError
from simtrain.mdp.uniform import Uniform
from simtrain.sim.engine import Index


class randomize_friction:
    """Draw the sliding friction coefficient of geoms, one for all of them in an environment.

    Of two geoms that touch, MuJoCo takes the friction of the one with the higher priority, or the
    larger friction if these are equal: give the robot's feet, with a priority above the ground's.
    """

    def __init__(self, env: Env, geoms: Entities, friction: Bounds) -> None:
        self._geoms, self._uniform = geoms, _uniform(env, 1, friction)
        self._values = env.sim.expand("geom_friction")

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        values = self._values[:, self._geoms.ids].clone()
        values[:, :, 0] = self._uniform.draw()[0]
        env.sim.write("geom_friction", values, mask, self._geoms.ids)


class randomize_mass:
    """Scale mass and inertia of bodies, each by a factor of its own: their density changes."""

    def __init__(self, env: Env, bodies: Entities, scale: Bounds) -> None:
        self._bodies, self._uniform = bodies, _uniform(env, len(bodies), scale)
        self._mass = _nominal(env, "body_mass", bodies.ids)
        self._inertia = _nominal(env, "body_inertia", bodies.ids)

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        scale = self._uniform.draw()[0]
        env.sim.write("body_mass", self._mass * scale, mask, self._bodies.ids)
        env.sim.write("body_inertia", self._inertia * scale.unsqueeze(2), mask, self._bodies.ids)
        env.sim.set_const(mask)


class randomize_center_of_mass:
    """Move the centres of mass of bodies, each by an `offset` along its body's x, y and z, m."""

    def __init__(self, env: Env, bodies: Entities, offset: tuple[Bounds, Bounds, Bounds]) -> None:
        self._bodies, self._uniform = bodies, _uniform(env, len(bodies), *offset)
        self._position = _nominal(env, "body_ipos", bodies.ids)

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        position = self._position + self._uniform.draw().movedim(0, 2)
        env.sim.write("body_ipos", position, mask, self._bodies.ids)
        env.sim.set_const(mask)


class randomize_actuator_gains:
    """Scale stiffness, kp, and damping, kv, of position actuators, each by factors of its own."""

    def __init__(self, env: Env, joints: Joints, stiffness: Bounds, damping: Bounds) -> None:
        self._actuators = find_actuators_of(env.model, joints, env.device)
        self._uniform = _uniform(env, len(joints), stiffness, damping)
        self._gain = _nominal(env, "actuator_gainprm", self._actuators)
        self._bias = _nominal(env, "actuator_biasprm", self._actuators)
        self._biases = env.sim.expand("actuator_biasprm")

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        # Force: gainprm[0] ctrl + biasprm[0] + biasprm[1] q + biasprm[2] qvel, with
        # biasprm[1] = -kp and biasprm[2] = -kv; biasprm[0] scales along, for an encoder's bias.
        kp, kv = self._uniform.draw()
        gain = self._gain.repeat(env.num_envs, 1, 1)
        gain[:, :, 0] *= kp
        bias = self._bias.repeat(env.num_envs, 1, 1)
        bias[:, :, 1] *= kp
        bias[:, :, 2] *= kv
        now = self._biases[:, self._actuators]
        bias[:, :, 0] = now[:, :, 0] * bias[:, :, 1] / now[:, :, 1]
        env.sim.write("actuator_gainprm", gain, mask, self._actuators)
        env.sim.write("actuator_biasprm", bias, mask, self._actuators)


class randomize_encoder_bias:
    """Let joint encoders read the truth plus a constant, each its own.

    Both that use an encoder are misled alike: the servo, which holds its target where the encoder
    says it is, and `joint_pos_rel` with ``biased=True``. The bias is kept in the servo itself,
    whose force becomes kp (ctrl - (q + bias)) - kv qvel: ``biasprm[0] = -kp bias``. In m or rad.
    """

    def __init__(self, env: Env, joints: Joints, bias: Bounds) -> None:
        self._actuators = find_actuators_of(env.model, joints, env.device)
        self._uniform = _uniform(env, len(joints), bias)
        self._biases = env.sim.expand("actuator_biasprm")

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        values = self._biases[:, self._actuators].clone()
        values[:, :, 0] = values[:, :, 1] * self._uniform.draw()[0]
        env.sim.write("actuator_biasprm", values, mask, self._actuators)


def _uniform(env: Env, count: int, *bounds: Bounds) -> Uniform:
    """Draws of `count` values for every environment, for each of `bounds`."""
    for low, high in bounds:
        if low > high:
            raise ConfigError(f"the lower bound {low} is above the upper bound {high}")
    return Uniform(env, *([pair] * count for pair in bounds))


def _nominal(env: Env, field: str, index: Index) -> Tensor:
    """The model's own values of some entries of a field that is expanded here, on the device."""
    env.sim.expand(field)
    values = getattr(env.model, field)
    return torch.as_tensor(values, dtype=torch.float32, device=env.device).clone()[index]
