"""Domain randomization: events that give model fields values of each environment's own.

Values are drawn from the model's own, not from those of the last draw, so that an event may come at
start-up, at resets or at intervals. Random numbers are drawn for all environments, whoever is
changed, from torch's default generator: the same seed gives the same values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import mujoco
import torch
from torch import Tensor

from simtrain.env.actions import find_actuators_of
from simtrain.errors import ConfigError

if TYPE_CHECKING:
    from simtrain.env.env import Env
    from simtrain.env.names import Entities, Joints

Bounds = tuple[float, float]


class randomize_friction:
    """Draw the sliding friction coefficient of geoms, one for all of them in an environment.

    Of two geoms that touch, MuJoCo takes the friction of the one with the higher priority, or the
    larger friction if these are equal: give the robot's feet, with a priority above the ground's.
    """

    def __init__(self, env: Env, geoms: Entities, friction: Bounds) -> None:
        """Prepare.

        Args:
            env: the environment.
            geoms: geoms to change.
            friction: bounds of the coefficient.
        """
        self._geoms = geoms
        self._uniform = _Uniform(env, friction, 1)
        self._values = env.sim.expand("geom_friction")

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`, boolean ``(num_envs,)``."""
        values = self._values[:, self._geoms.ids].clone()
        values[:, :, 0] = self._uniform.draw()
        env.sim.write("geom_friction", values, mask, self._geoms.ids)


class randomize_mass:
    """Scale mass and inertia of bodies, each by a factor of its own, as if their density changed.

    What follows from them (``mj_setConst``) is recomputed.
    """

    def __init__(self, env: Env, bodies: Entities, scale: Bounds) -> None:
        """Prepare.

        Args:
            env: the environment.
            bodies: bodies to change.
            scale: bounds of the factor.
        """
        self._bodies = bodies
        self._uniform = _Uniform(env, scale, len(bodies))
        self._mass = _nominal(env, "body_mass", bodies)
        self._inertia = _nominal(env, "body_inertia", bodies)

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`, boolean ``(num_envs,)``."""
        scale = self._uniform.draw()
        env.sim.write("body_mass", self._mass * scale, mask, self._bodies.ids)
        env.sim.write("body_inertia", self._inertia * scale.unsqueeze(2), mask, self._bodies.ids)
        env.sim.set_const(mask)


class randomize_center_of_mass:
    """Move the centres of mass of bodies, each along the three axes of its body.

    What follows from them (``mj_setConst``) is recomputed.
    """

    def __init__(self, env: Env, bodies: Entities, offset: tuple[Bounds, Bounds, Bounds]) -> None:
        """Prepare.

        Args:
            env: the environment.
            bodies: bodies to change.
            offset: bounds along x, y and z, m.
        """
        self._bodies = bodies
        self._uniforms = [_Uniform(env, bounds, len(bodies)) for bounds in offset]
        self._position = _nominal(env, "body_ipos", bodies)

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`, boolean ``(num_envs,)``."""
        offset = torch.stack([uniform.draw() for uniform in self._uniforms], dim=2)
        env.sim.write("body_ipos", self._position + offset, mask, self._bodies.ids)
        env.sim.set_const(mask)


class randomize_actuator_gains:
    """Scale stiffness and damping of position actuators, each by factors of its own."""

    def __init__(self, env: Env, joints: Joints, stiffness: Bounds, damping: Bounds) -> None:
        """Prepare.

        Args:
            env: the environment.
            joints: slides and hinges with a position actuator each.
            stiffness: bounds of the factor of kp.
            damping: bounds of the factor of kv.
        """
        self._actuators = find_actuators_of(env.model, joints, env.device)
        self._stiffness = _Uniform(env, stiffness, len(joints))
        self._damping = _Uniform(env, damping, len(joints))
        env.sim.expand("actuator_gainprm")
        self._biases = env.sim.expand("actuator_biasprm")
        self._gain = _model_values(env, "actuator_gainprm")[self._actuators]
        self._bias = _model_values(env, "actuator_biasprm")[self._actuators]

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`, boolean ``(num_envs,)``."""
        # Force: gainprm[0] ctrl + biasprm[0] + biasprm[1] q + biasprm[2] qvel, with
        # biasprm[1] = -kp and biasprm[2] = -kv; biasprm[0] scales along, for an encoder's bias.
        kp, kv = self._stiffness.draw(), self._damping.draw()
        gain = self._gain.repeat(env.num_envs, 1, 1)
        gain[:, :, 0] *= kp
        bias = self._bias.repeat(env.num_envs, 1, 1)
        now = self._biases[:, self._actuators]
        bias[:, :, 1] *= kp
        bias[:, :, 2] *= kv
        bias[:, :, 0] = now[:, :, 0] * bias[:, :, 1] / now[:, :, 1]
        env.sim.write("actuator_gainprm", gain, mask, self._actuators)
        env.sim.write("actuator_biasprm", bias, mask, self._actuators)


class randomize_encoder_bias:
    """Let joint encoders read the truth plus a constant, each its own.

    Both that use an encoder are misled alike: the servo, which holds its target where the encoder
    says it is, and `joint_pos_rel` with ``biased=True``. The bias is kept in the servo itself,
    whose force becomes kp (ctrl - (q + bias)) - kv qvel: ``biasprm[0] = -kp bias``.
    """

    def __init__(self, env: Env, joints: Joints, bias: Bounds) -> None:
        """Prepare.

        Args:
            env: the environment.
            joints: slides and hinges with a position actuator each.
            bias: bounds of the bias, m or rad.
        """
        self._actuators = find_actuators_of(env.model, joints, env.device)
        self._uniform = _Uniform(env, bias, len(joints))
        self._biases = env.sim.expand("actuator_biasprm")

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`, boolean ``(num_envs,)``."""
        values = self._biases[:, self._actuators].clone()
        values[:, :, 0] = values[:, :, 1] * self._uniform.draw()
        env.sim.write("actuator_biasprm", values, mask, self._actuators)


class _Uniform:
    """Uniform draws, `count` for every environment."""

    def __init__(self, env: Env, bounds: Bounds, count: int) -> None:
        low, high = bounds
        if low > high:
            raise ConfigError(f"the lower bound {low} is above the upper bound {high}")
        self._low, self._high = low, high
        self._shape = (env.num_envs, count)
        self._device = env.device

    def draw(self) -> Tensor:
        """Shape: ``(num_envs, count)``."""
        return torch.empty(self._shape, device=self._device).uniform_(self._low, self._high)


def _nominal(env: Env, field: str, entities: Entities) -> Tensor:
    """The model's own values of some entries of a field that is expanded here."""
    env.sim.expand(field)
    return _model_values(env, field)[entities.ids]


def _model_values(env: Env, field: str) -> Tensor:
    """The model's own values of a field, on the device."""
    model: mujoco.MjModel = env.model
    return torch.as_tensor(getattr(model, field), dtype=torch.float32, device=env.device).clone()
