"""What differs between the tasks of robots on two legs and on more; imports no torch.

Figures are of the Go1 and the G1, at a scale that holds for any robot: h is the height of the hips
above the ground, m, and g the gravity, m/s^2.
"""

from __future__ import annotations

from dataclasses import dataclass

from simtrain.mdp.locomotion.velocity import Range


@dataclass(frozen=True)
class Figures:
    """What differs between robots on two legs and on more."""

    lin_vel_weight: float
    lin_vel_std: float  # by sqrt(g h)
    ang_vel_weight: float
    ang_vel_std: float  # by sqrt(g / h)
    feet_contact: float
    feet_height_weight: float
    feet_height_std: float  # by h
    feet_slide: float  # by 1 / sqrt(g h)
    flat_orientation: float
    lin_vel_z: float  # by 1 / (g h)
    ang_vel_xy: float  # by h / g
    action_rate: float
    rest: float
    standing: float  # share of environments whose command is 0
    history_length: int
    limit_angle: float  # of terminations, rad
    joint_position: float  # of resets, rad
    rise: float  # of resets, by h
    push: float  # by sqrt(g h)
    joint_vel_noise: float  # rad/s
    mass_scale: Range
    center_of_mass: float  # by h
    encoder_bias: float  # rad
    calm_steps: int  # control steps at first without pushes and randomization
    slope: float  # of rough ground, at most
    steps: Range  # of rough ground, height by h
    weights: dict[str, float]  # of kinds of rough ground, where it is not 1


MANY_LEGS = Figures(
    lin_vel_weight=2.0,
    lin_vel_std=0.21,
    ang_vel_weight=1.0,
    ang_vel_std=0.085,
    feet_contact=0.5,
    feet_height_weight=1.0,
    feet_height_std=0.355,
    feet_slide=-0.167,
    flat_orientation=-2.0,
    lin_vel_z=-2.8,
    ang_vel_xy=-1.73,
    action_rate=-0.02,
    rest=-0.1,
    standing=0.1,
    history_length=3,
    limit_angle=1.0,
    joint_position=0.1,
    rise=0.074,
    push=0.3,
    joint_vel_noise=1.5,
    mass_scale=(0.85, 1.25),
    center_of_mass=0.106,
    encoder_bias=0.02,
    calm_steps=2400,
    slope=0.4,
    steps=(0.07, 0.53),
    weights={"stairs_down": 2.0, "stairs_up": 2.0},
)
TWO_LEGS = Figures(
    lin_vel_weight=3.0,
    lin_vel_std=0.155,
    ang_vel_weight=2.0,
    ang_vel_std=0.13,
    feet_contact=1.0,
    feet_height_weight=2.0,
    feet_height_std=0.075,
    feet_slide=-0.51,
    flat_orientation=-5.0,
    lin_vel_z=-3.3,
    ang_vel_xy=-0.73,
    action_rate=-0.01,
    rest=-0.02,
    standing=0.2,
    history_length=5,
    limit_angle=0.9,
    joint_position=0.05,
    rise=0.02,
    push=0.117,
    joint_vel_noise=0.5,
    mass_scale=(0.9, 1.1),
    center_of_mass=0.03,
    encoder_bias=0.015,
    calm_steps=7200,
    slope=0.25,
    steps=(0.03, 0.15),
    weights={"flat": 2.0},
)
