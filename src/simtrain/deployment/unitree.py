"""``deploy.yaml``: a policy for the C++ controllers of unitree_rl_lab.

Its fields are those that ``ManagerBasedRLEnv`` and its managers read, see ``deploy/include`` of
https://github.com/unitreerobotics/unitree_rl_lab.
"""

from typing import Any

import mujoco
import yaml

from simtrain.deployment.interface import CommandPart, Interface, ObservationPart

_AXES = ("lin_vel_x", "lin_vel_y", "ang_vel_z")


def cannot_be_told(interface: Interface, remembers: bool) -> str | None:
    """Why the controllers do not support the policy, so that there is no file; None if they do.

    `remembers`: whether the network has hidden states.
    """
    if [part.kind for part in interface.actions] != ["JointPositionActionCfg"]:
        return "actions other than one term of target positions"
    if (reference := interface.actions[0].reference) is not None:
        return f"joint targets relative to a moving reference ({reference})"
    if remembers:
        return "recurrent networks"
    if any(part.shape is not None for part in interface.observations):
        return "images"
    return None


def deploy_yaml(model: mujoco.MjModel, interface: Interface) -> str:
    """The file's content; the controllers must support the policy, see `cannot_be_told`.

    ``joint_ids_map`` contains the index of each joint's motor among the model's actuators, in the
    order of ``joint_names``; gains have the order of the motors.
    """
    stiffness, damping = (
        [dict(zip(interface.actuators, values, strict=True)).get(i, 0.0) for i in range(model.nu)]
        for values in (interface.joint_stiffness, interface.joint_damping)
    )
    targets = {
        "clip": interface.action_clip,
        "joint_names": interface.joint_names,
        "scale": interface.action_scale,
        "offset": interface.action_offset,
        "joint_ids": None,
    }
    velocities = [c for c in interface.commands if _is_velocity(c)][:1]
    ranges = {axis: velocity.params[axis] for velocity in velocities for axis in _AXES}
    content = {
        "joint_ids_map": interface.actuators,
        "step_dt": interface.control_period,
        "stiffness": stiffness,
        "damping": damping,
        "default_joint_pos": interface.default_joint_pos,
        "commands": {"base_velocity": {"ranges": ranges}} if ranges else {},
        "actions": {"JointPositionAction": targets},
        "observations": _observations(interface),
    }
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=100)


def unknown_observations(interface: Interface) -> list[str]:
    """Observations that the controllers do not compute; ``deploy.yaml`` uses their own names."""
    return [part.term for part in interface.observations if _known_as(part, interface) is None]


def _observations(interface: Interface) -> dict[str, Any]:
    """Observations by the controllers' names, or else by their own; each name once."""
    observations: dict[str, Any] = {}
    for part in interface.observations:
        names = (_known_as(part, interface), part.term, f"{part.group}.{part.term}")
        name = next(name for name in names if name is not None and name not in observations)
        steps = max(part.history_length, 1)
        is_list = isinstance(part.scale, list)
        observations[name] = {
            "params": {"command_name": "base_velocity"} if name == "velocity_commands" else {},
            "clip": part.clip,
            "scale": part.scale if is_list else [part.scale] * (part.size // steps),
            "history_length": steps,
        }
    return observations


def _known_as(part: ObservationPart, interface: Interface) -> str | None:
    """The controllers' name of an observation that they compute in the same way; None if none."""
    module, _, function = part.function.partition(":")
    velocities = [command.name for command in interface.commands if _is_velocity(command)]
    known: dict[str, tuple[str | None, dict[str, Any]]] = {
        **{name: (name, {}) for name in ("base_ang_vel", "projected_gravity", "last_action")},
        "joint_pos_rel": ("joint_pos_rel", {"joints": interface.joint_names}),
        "joint_vel": ("joint_vel_rel", {"joints": interface.joint_names}),
        "generated_commands": ("velocity_commands", {"command": next(iter(velocities), None)}),
    }
    name, params = known.get(function, (None, {}))
    is_same = all(part.params.get(key) == value for key, value in params.items())
    return name if module == "simtrain.mdp" and is_same else None


def _is_velocity(command: CommandPart) -> bool:
    return command.size == 3 and all(axis in command.params for axis in _AXES)
