"""Ready-made terms for tasks: ``mdp.joint_pos``, ``mdp.time_out``, ...

Terms are functions, or classes where something is prepared or kept between steps; a task does not
have to know which, and both are named alike.

The modules behind the names are imported when a name is first used, so that listing tasks does not
have to import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_MODULES = {
    "observations": (
        "base_ang_vel",
        "base_lin_vel",
        "foot_air_time",
        "foot_contact",
        "foot_contact_forces",
        "foot_height",
        "generated_commands",
        "height_scan",
        "joint_pos",
        "joint_pos_rel",
        "joint_vel",
        "last_action",
        "projected_gravity",
    ),
    "rewards": (
        "action_rate_l2",
        "air_time_variance",
        "ang_vel_xy_l2",
        "angular_momentum_l2",
        "base_height_l2",
        "feet_air_time",
        "feet_clearance",
        "feet_contact_without_cmd",
        "feet_slide",
        "flat_orientation_l2",
        "is_alive",
        "is_terminated",
        "joint_acc_l2",
        "joint_pos_limits",
        "joint_torques_l2",
        "joint_vel_l2",
        "lin_vel_z_l2",
        "posture",
        "soft_landing",
        "tolerance",
        "track_ang_vel_z_exp",
        "track_lin_vel_xy_exp",
    ),
    "metrics": ("ang_vel_error", "lin_vel_error"),
    "terminations": (
        "bad_orientation",
        "illegal_contact",
        "root_height_below_minimum",
        "terrain_out_of_bounds",
        "time_out",
    ),
    "terrain": (
        "flat",
        "pyramid_slope",
        "pyramid_stairs",
        "random_boxes",
        "random_rough",
        "waves",
    ),
    "curricula": ("command_ranges", "terrain_levels"),
    "randomization": (
        "randomize_actuator_gains",
        "randomize_center_of_mass",
        "randomize_encoder_bias",
        "randomize_friction",
        "randomize_mass",
    ),
    "events": (
        "push_by_setting_velocity",
        "reset_joints_gaussian",
        "reset_joints_uniform",
        "reset_root_state_uniform",
    ),
    "commands": ("UniformVelocityCommand",),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"simtrain.mdp.{name}")
    if name not in _HOME:
        from simtrain.errors import did_you_mean

        raise AttributeError(f"simtrain.mdp has no term {name!r}{did_you_mean(name, _HOME)}")
    term = getattr(importlib.import_module(f"simtrain.mdp.{_HOME[name]}"), name)
    globals()[name] = term  # found without this function from now on: terms call terms
    return term


def __dir__() -> list[str]:
    return sorted((*_MODULES, *_HOME))
