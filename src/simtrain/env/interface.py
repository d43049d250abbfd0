"""What a robot's program needs besides the network: order, meaning, scale of inputs and outputs.

Numbers are those of the task, before domain randomization.
"""

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
    """An observation term's place in the policy's input: `size` entries from `start` on.

    An image has a `shape`, channels, rows and columns, and is an input of its own, named as its
    group; None for what lies in the vector.
    The `function`, as module:name, has joints, bodies and so on among its `params` by name, in the
    order of the entries. Its value is clipped, None being open, and then scaled. The latest
    `history_length` of them are stacked, oldest first; 0 is the present alone.
    """

    group: str
    term: str
    start: int
    size: int
    shape: list[int] | None
    function: str
    params: dict[str, Any]
    clip: list[float | None] | None
    scale: float | list[float]
    history_length: int


@dataclass(frozen=True)
class ActionPart:
    """An action term's place in the policy's output: `size` entries from `start` on."""

    term: str
    kind: str  # its class: JointPositionActionCfg gives target positions, and so on
    start: int
    size: int


@dataclass(frozen=True)
class CommandPart:
    """A command that the policy was trained to follow, within the ranges among its `params`."""

    name: str
    size: int
    function: str
    params: dict[str, Any]


@dataclass(frozen=True)
class Interface:
    """A policy's inputs and outputs, in the order of their parts, every `control_period` s.

    Lists over joints are in the order of ``joint_names``, that of the actions: a joint's target is
    clip(action_offset + action_scale x action). Its motor has a position gain, N/m or Nm/rad (0 for
    motors without), a velocity gain, Ns/m or Nms/rad, and a gear: the joint's force or torque for
    one unit of the motor's.
    """

    control_period: float
    observation_size: int
    observation_names: list[str]
    observations: list[ObservationPart]
    command_names: list[str]
    commands: list[CommandPart]
    action_size: int
    actions: list[ActionPart]
    joint_names: list[str]
    action_scale: list[float]
    action_offset: list[float]
    action_clip: list[list[float | None]]
    default_joint_pos: list[float]
    """Positions that episodes start from, m or rad; observed positions are relative to them where
    the term says so. Not what a zero action means: that is ``action_offset``."""
    joint_stiffness: list[float]
    joint_damping: list[float]
    actuator_gear: list[float]
    initial_joint_pos: dict[str, float]  # of every hinge and slide, driven or not


def describe_interface(env: Env, obs_groups: Sequence[str]) -> Interface:
    """The interface of a policy that sees the groups `obs_groups` of `env`, one after the other."""
    model, cfg = env.model, env.cfg
    start = initial_state(model, find_keyframe(model, cfg.keyframe))
    terms = Actions(cfg.actions, model, start, "cpu").terms
    actions: list[ActionPart] = []
    for name, term in terms.items():
        first = sum(part.size for part in actions)
        actions.append(ActionPart(name, type(cfg.actions[name]).__name__, first, term.dim))
    driven = [term for term in terms.values() if isinstance(term, JointAction)]
    names = [name for term in driven for name in term.joints.names]
    actuators = [i for term in driven for i in term.actuators]
    joints = [model.joint(i) for i in range(model.njnt) if model.jnt_type[i] in _ONE_DEGREE]
    start_of = {joint.name: float(start.qpos[joint.qposadr[0]]) for joint in joints}
    observations = _observations(env, obs_groups)
    return Interface(
        control_period=env.step_dt,
        observation_size=sum(part.size for part in observations if part.shape is None),
        observation_names=[part.term for part in observations],
        observations=observations,
        command_names=list(cfg.commands),
        commands=[
            CommandPart(name, env.command(name).shape[1], _function_name(c.func), _params(env, c))
            for name, c in cfg.commands.items()
        ],
        action_size=env.num_actions,
        actions=actions,
        joint_names=names,
        action_scale=[x for term in driven for x in _plain(term.scale)],
        action_offset=[x for term in driven for x in _plain(term.offset)],
        action_clip=[
            [_finite(low), _finite(high)]
            for term in driven
            for low, high in zip(_plain(term.low), _plain(term.high), strict=True)
        ],
        default_joint_pos=[start_of[name] for name in names],
        joint_stiffness=[_gain(model, i, 1) for i in actuators],
        joint_damping=[_gain(model, i, 2) for i in actuators],
        actuator_gear=[float(model.actuator_gear[i, 0]) for i in actuators],
        initial_joint_pos=start_of,
    )


def _observations(env: Env, obs_groups: Sequence[str]) -> list[ObservationPart]:
    parts: list[ObservationPart] = []
    before, cfgs = 0, env.cfg.observation_groups()
    for group in obs_groups:
        its = env.observations.groups[group]
        shape = list(its.shape) if len(its.shape) > 1 else None
        for term, place in its.slices.items():
            cfg = cfgs[group][term]
            start = before + place.start if shape is None else 0
            size = place.stop - place.start
            function, params = _function_name(cfg.func), _params(env, cfg)
            clip = None if cfg.clip is None else [_finite(bound) for bound in cfg.clip]
            factor = 1.0 if cfg.scale is None else cfg.scale
            scale = list(factor) if isinstance(factor, tuple) else factor
            history = cfg.history_length
            where = group, term, start, size, shape
            parts.append(ObservationPart(*where, function, params, clip, scale, history))
        before += its.size if shape is None else 0
    return parts


def _params(env: Env, cfg: TermCfg) -> dict[str, Any]:
    """A term's parameters as plain values, with names where its patterns match."""
    resolved = resolve_params(cfg.params, env.model, "cpu").items()
    return {k: _for_json(v.names if isinstance(v, Entities) else v) for k, v in resolved}


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
    return value if isinstance(value, bool | int | str | None) else str(value)


def _gain(model: mujoco.MjModel, actuator: int, which: int) -> float:
    """A servo's gain on its joint: of position (1) or velocity (2).

    MuJoCo's affine bias is a force -kp length - kv velocity, and gear stands between these and the
    joint on both ways. See https://mujoco.readthedocs.io/en/stable/modeling.html#actuators.
    """
    kind, gear = model.actuator_biastype[actuator], float(model.actuator_gear[actuator, 0])
    if kind == mujoco.mjtBias.mjBIAS_DCMOTOR.value:
        return float(model.actuator_gainprm[actuator, {1: 4, 2: 6}[which]]) * gear**2
    if kind != mujoco.mjtBias.mjBIAS_AFFINE.value:
        return 0.0
    return -float(model.actuator_biasprm[actuator, which]) * gear**2


def _plain(values: Tensor) -> list[float]:
    """Float32 numbers as the shortest decimals that mean them: 0.3, not 0.30000001192092896."""
    return [float(str(value)) for value in values.numpy().astype(np.float32)]


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None
