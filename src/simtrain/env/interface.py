"""The inputs and outputs of a policy: order, meaning and scale of observations and actions.

A robot's program needs to know them besides the network. Numbers are those of the task, before
domain randomization.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from simtrain.env.actions import Actions, JointAction
from simtrain.env.cfg import TermCfg
from simtrain.env.env import Env
from simtrain.env.model import find_keyframe, initial_state
from simtrain.env.names import Entities, resolve_params

_ONE_DEGREE = (mujoco.mjtJoint.mjJNT_HINGE.value, mujoco.mjtJoint.mjJNT_SLIDE.value)


@dataclass(frozen=True)
class ObservationPart:
    """An observation term's place in the policy's input."""

    group: str
    term: str
    start: int
    """Its first entry in the policy's input."""
    size: int
    """Its entries, history included."""
    function: str
    """What it measures, as module:name."""
    params: dict[str, Any]
    """The function's parameters; joints, bodies and so on by name, in the order of the entries."""
    clip: list[float | None] | None
    """Bounds of the value; None is open."""
    scale: float | list[float]
    """Factor of the value, after the clip."""
    history_length: int
    """How many control steps are stacked, oldest first; 0 is the present alone."""


@dataclass(frozen=True)
class ActionPart:
    """An action term's place in the policy's output."""

    term: str
    kind: str
    """Its class: JointPositionActionCfg gives target positions, and so on."""
    start: int
    """Its first entry in the policy's output."""
    size: int


@dataclass(frozen=True)
class CommandPart:
    """A command that the policy was trained to follow."""

    name: str
    size: int
    function: str
    params: dict[str, Any]
    """Among them the ranges that it was trained with."""


@dataclass(frozen=True)
class Interface:
    """A policy's inputs and outputs. Lists over joints are in the order of ``joint_names``."""

    control_period: float
    """Seconds between two actions."""
    observation_size: int
    observation_names: list[str]
    """Terms in the order of the policy's input."""
    observations: list[ObservationPart]
    command_names: list[str]
    commands: list[CommandPart]
    action_size: int
    actions: list[ActionPart]
    joint_names: list[str]
    """Joints in the order of the actions."""
    action_scale: list[float]
    """A joint's target is clip(action_offset + action_scale x action)."""
    action_offset: list[float]
    action_clip: list[list[float | None]]
    default_joint_pos: list[float]
    """Positions that episodes start from, m or rad; observed positions are relative to them where
    the term says so. Not what a zero action means: that is ``action_offset``."""
    joint_stiffness: list[float]
    """Position gain of the joint's motor, N/m or Nm/rad; 0 for motors without."""
    joint_damping: list[float]
    """Velocity gain of the joint's motor, Ns/m or Nms/rad."""
    actuator_gear: list[float]
    """Force or torque of the joint for one unit of the motor's."""
    initial_joint_pos: dict[str, float]
    """Every hinge and slide of the model, driven or not, and where episodes start."""


def describe_interface(env: Env, obs_groups: Sequence[str]) -> Interface:
    """The interface of a policy that sees the groups `obs_groups` of `env`, one after the other."""
    model = env.model
    observations = _observations(env, obs_groups)
    parts: list[ActionPart] = []
    joints: list[JointAction] = []
    start = initial_state(model, find_keyframe(model, env.cfg.keyframe))
    for name, term in Actions(env.cfg.actions, model, start, "cpu").terms.items():
        first = sum(part.size for part in parts)
        parts.append(ActionPart(name, type(env.cfg.actions[name]).__name__, first, term.dim))
        if isinstance(term, JointAction):
            joints.append(term)
    names = [name for term in joints for name in term.joints.names]
    actuators = [i for term in joints for i in term.actuators]
    start_of = {
        model.joint(i).name: float(start.qpos[model.jnt_qposadr[i]])
        for i in range(model.njnt)
        if model.jnt_type[i] in _ONE_DEGREE
    }
    return Interface(
        control_period=env.step_dt,
        observation_size=sum(part.size for part in observations),
        observation_names=[part.term for part in observations],
        observations=observations,
        command_names=list(env.cfg.commands),
        commands=[
            CommandPart(
                name, env.command(name).shape[1], _function_name(cfg.func), _params(env, cfg)
            )
            for name, cfg in env.cfg.commands.items()
        ],
        action_size=env.num_actions,
        actions=parts,
        joint_names=names,
        action_scale=[x for term in joints for x in _plain(term.scale)],
        action_offset=[x for term in joints for x in _plain(term.offset)],
        action_clip=[
            [_finite(low), _finite(high)]
            for term in joints
            for low, high in zip(_plain(term.low), _plain(term.high), strict=True)
        ],
        default_joint_pos=[start_of[name] for name in names],
        joint_stiffness=[_gain(model, i, 1) for i in actuators],
        joint_damping=[_gain(model, i, 2) for i in actuators],
        actuator_gear=[float(model.actuator_gear[i, 0]) for i in actuators],
        initial_joint_pos=start_of,
    )


def _observations(env: Env, obs_groups: Sequence[str]) -> list[ObservationPart]:
    parts = []
    before = 0
    for name in obs_groups:
        group = env.observations.groups[name]
        for term, place in group.slices.items():
            cfg = env.cfg.observations[name][term]
            clip = None if cfg.clip is None else [_finite(bound) for bound in cfg.clip]
            scale = list(cfg.scale) if isinstance(cfg.scale, tuple) else cfg.scale
            parts.append(
                ObservationPart(
                    group=name,
                    term=term,
                    start=before + place.start,
                    size=place.stop - place.start,
                    function=_function_name(cfg.func),
                    params=_params(env, cfg),
                    clip=clip,
                    scale=1.0 if scale is None else scale,
                    history_length=cfg.history_length,
                )
            )
        before += group.size
    return parts


def _params(env: Env, cfg: TermCfg) -> dict[str, Any]:
    """A term's parameters as plain values, with names where its patterns match."""
    resolved = resolve_params(cfg.params, env.model, "cpu")
    return {
        name: list(value.names) if isinstance(value, Entities) else _for_json(value)
        for name, value in resolved.items()
    }


def _function_name(function: Any) -> str:
    function = getattr(function, "func", function)  # of a functools.partial
    return f"{function.__module__}:{function.__qualname__}"


def _for_json(value: Any) -> Any:
    """A value as JSON can hold it: None for infinities, a text for what it does not know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _for_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_for_json(item) for item in value]
    if callable(value):
        return _function_name(value)
    if isinstance(value, float):
        return _finite(value)
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _gain(model: mujoco.MjModel, actuator: int, which: int) -> float:
    """A servo's gain on its joint: of position (1) or velocity (2).

    MuJoCo's affine bias is a force -kp length - kv velocity, and gear stands between these and the
    joint on both ways. See https://mujoco.readthedocs.io/en/stable/modeling.html#actuators.
    """
    if model.actuator_biastype[actuator] != mujoco.mjtBias.mjBIAS_AFFINE.value:
        return 0.0
    gear = float(model.actuator_gear[actuator, 0])
    return -float(model.actuator_biasprm[actuator, which]) * gear**2


def _plain(values: Tensor) -> list[float]:
    """Float32 numbers as the shortest decimals that mean them: 0.3, not 0.30000001192092896."""
    return [float(str(value)) for value in values.numpy().astype(np.float32)]


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None
