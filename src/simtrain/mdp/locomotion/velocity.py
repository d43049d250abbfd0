"""Parts that velocity tasks of legged robots share.

`recipe` combines them with rewards. Names follow from those of feet: a foot ``FR_foot`` is a site,
with a contact sensor ``FR_foot_contact`` (``data="found force"``) and a sensor ``FR_foot_linvel``
of its velocity along the world's axes. Imports no torch.
"""

import functools
from collections.abc import Callable
from typing import Any

from simtrain import mdp
from simtrain.env import cfg as cfgs
from simtrain.env.cfg import CommandTermCfg, EventTermCfg, ObservationTermCfg
from simtrain.env.control.cfg import Names

Range = tuple[float, float]


def rounded(value: float) -> float:
    """Round to two digits, for weights, widths and lengths that people can read."""
    return float(f"{value:.2g}")


def gait_clock(feet: str, *, frequency: float, **params: Any) -> CommandTermCfg:
    """A `mdp.GaitClock` for the swings of `feet`, drawn only at resets.

    Their steps per second differ by up to a tenth from `frequency`. `params` are further parameters
    of `mdp.GaitClock`.
    """
    bounds = (0.9 * frequency, 1.1 * frequency)
    return CommandTermCfg(mdp.GaitClock, (1e6, 1e6), sites=feet, frequency=bounds, **params)


def velocity_observations(
    joints: Names,
    feet: str,
    *,
    joint_vel_noise: float,
    foot_contact: Callable[..., Any],
    history_length: int = 0,
) -> dict[str, dict[str, ObservationTermCfg] | cfgs.ObservationGroupCfg]:
    """Groups ``actor``, values that a robot can measure, and ``critic``, true and further values.

    The actor gets the positions of `joints`, their velocities with noise of up to
    `joint_vel_noise`, rad/s, and its actions, all of the last `history_length` steps. Measurements
    are delayed by up to a control step, constant in an episode. The critic also gets the velocity
    of the base and the feet. `feet` is the pattern of their names, `foot_contact` is
    ``mdp.foot_contact`` or ``mdp.foot_contact_forces``.
    """

    def measured(func: Callable[..., Any], noise: float, **params: Any) -> ObservationTermCfg:
        return ObservationTermCfg(
            func,
            noise=cfgs.UniformNoiseCfg(-noise, noise),
            delay_max_lag=1,
            delay_hold_prob=1.0,
            history_length=history_length,
            **params,
        )

    actor = {
        "base_ang_vel": measured(mdp.base_ang_vel, 0.2),
        "projected_gravity": measured(mdp.projected_gravity, 0.05),
        "command": ObservationTermCfg(mdp.generated_commands, command="velocity"),
        "gait": ObservationTermCfg(mdp.generated_commands, command="gait"),
        "joint_pos": measured(mdp.joint_pos_rel, 0.01, joints=joints, biased=True),
        "joint_vel": measured(mdp.joint_vel, joint_vel_noise, joints=joints),
        "last_action": ObservationTermCfg(mdp.last_action, history_length=history_length),
    }
    # Its terms are the same functions without noise, delay and history.
    critic = {name: ObservationTermCfg(term.func, **term.params) for name, term in actor.items()}
    del critic["joint_pos"].params["biased"]
    critic = {"base_lin_vel": ObservationTermCfg(mdp.base_lin_vel)} | critic
    contacts = f"{feet}_contact"
    critic["foot_contact"] = ObservationTermCfg(foot_contact, sensors=contacts)
    critic["foot_air_time"] = ObservationTermCfg(mdp.foot_air_time, sensors=contacts)
    critic["foot_height"] = ObservationTermCfg(mdp.foot_height, sites=feet)
    return {"actor": actor, "critic": critic}


def velocity_randomization(
    joints: Names,
    foot_geoms: Names,
    trunk: str,
    *,
    mass_scale: Range,
    center_of_mass: tuple[Range, Range, Range],
    encoder_bias: float,
    after_steps: int = 0,
) -> dict[str, EventTermCfg]:
    """Domain randomization of a legged robot.

    It is drawn once before training, or at all resets after `after_steps`, so that a robot can
    first learn to stand.

    Friction and softness of contacts are drawn for the geoms that match `foot_geoms`. The damping
    of the servos of `joints` is drawn from a wide range, to cover friction in real joints. The body
    `trunk` carries an unknown load: `mass_scale` bounds the factor of its mass, `center_of_mass`
    the shift along its axes, m. Encoders have an error of up to `encoder_bias`, rad.
    """
    mode: Any = "reset" if after_steps else "startup"
    draw = functools.partial(EventTermCfg, mode=mode, after_steps=after_steps)
    field = functools.partial(draw, mdp.randomize_field)
    soles = functools.partial(field, operation="abs", shared=True, geoms=foot_geoms)
    bias, center = (-encoder_bias, encoder_bias), dict(zip("xyz", center_of_mass, strict=True))
    return {
        "friction": soles(field="geom_friction", ranges={"sliding": (0.4, 1.2)}),
        "softness": soles(field="geom_solref", ranges={"0": (0.02, 0.04)}),  # time constant, s
        "trunk_mass": field(bodies=trunk, field=("body_mass", "body_inertia"), ranges=mass_scale),
        "trunk_center_of_mass": field(
            field="body_ipos", bodies=trunk, ranges=center, operation="add"
        ),
        "encoder_bias": draw(mdp.randomize_encoder_bias, joints=joints, bias=bias),
        "gains": draw(
            mdp.randomize_actuator_gains, joints=joints, stiffness=(0.9, 1.1), damping=(0.8, 1.4)
        ),
        "motors": draw(
            mdp.randomize_motors,
            joints=joints,
            friction=(0.0, 0.02),
            armature=(0.8, 1.25),
            strength=(0.9, 1.1),
        ),
    }
