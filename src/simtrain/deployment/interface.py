"""Data for a robot's program besides the network: order, meaning, scale of inputs and outputs.

Numbers are those of the task, before domain randomization.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from simtrain.config.tree import as_plain, function_name
from simtrain.env.cfg import GaussianNoiseCfg, TermCfg, UniformNoiseCfg
from simtrain.env.control.actions import JointAction
from simtrain.env.control.cfg import DelayCfg
from simtrain.env.env import Env
from simtrain.env.names import ONE_DEGREE, Entities, initial_state, resolve_params
from simtrain.errors import ConfigError


@dataclass(frozen=True)
class ObservationPart:
    """An observation term in the policy's input: `size` entries from `start` on.

    An image is a separate input, named like its group, with the `shape` channels, rows and columns;
    for other terms, `shape` is None. In the `params` of the `function` (module:name), joints,
    bodies and so on have names, in the order of the entries. The value is clipped and then scaled.
    The latest `history_length` values are stacked, oldest first, all equal at the start of an
    episode; 0 is the present value alone. A robot has its own noise, bias and delay. In training
    they were: `noise` at each step and `bias` in an episode, as bounds or as mean and standard
    deviation, and `delay`, the smallest and largest number of steps.
    """

    group: str
    term: str
    start: int
    size: int
    shape: list[int] | None
    function: str
    params: dict[str, Any]
    noise: dict[str, list[float]]
    bias: dict[str, list[float]]
    delay: list[int]
    clip: list[float] | None
    scale: float | list[float]
    history_length: int


@dataclass(frozen=True)
class ActionPart:
    """An action term in the policy's output: `size` entries from `start` on.

    Its `delay` in training is the smallest and largest number of physics steps.
    """

    term: str
    kind: str  # its class: JointPositionActionCfg gives target positions, and so on
    reference: str | None  # the clock or motion that moves its targets
    start: int
    size: int
    delay: list[int]


@dataclass(frozen=True)
class CommandPart:
    """A command that the policy was trained to follow, within the ranges in its `params`.

    An operator gives it, and `runs` is None; or it `runs` by itself in the robot's graph. Then
    `runs` contains the ``places`` that it knows, and ``starts``: the possible starts of an episode,
    by name, each with the values of its memory and the robot's ``qpos``.
    """

    name: str
    size: int
    function: str
    params: dict[str, Any]
    runs: dict[str, Any] | None


@dataclass(frozen=True)
class Interface:
    """A policy's inputs and outputs, in the order of their parts, every `control_period` s.

    `actuators` are the numbers of the model's actuators that actions drive, in the order of
    targets. Lists over joints have the order of ``joint_names``, that of the actions: a joint's
    target is clip(action_offset + action_scale x action), plus the contribution of a `reference`.
    Its motor has a position gain, N/m or Nm/rad (0 for motors without), a velocity gain, Ns/m or
    Nms/rad, and a gear: the joint's force or torque for one unit of the motor's.
    """

    control_period: float
    observation_size: int
    observation_names: list[str]
    observations: list[ObservationPart]
    command_names: list[str]
    commands: list[CommandPart]
    action_size: int
    actions: list[ActionPart]
    actuators: list[int]
    joint_names: list[str]
    action_scale: list[float]
    action_offset: list[float]
    action_clip: list[list[float]]
    default_joint_pos: list[float]
    """Positions at the start of episodes, m or rad; terms may observe positions relative to them.
    The target of a zero action is ``action_offset``."""
    joint_stiffness: list[float]
    joint_damping: list[float]
    actuator_gear: list[float]
    initial_joint_pos: dict[str, float]
    """Position of every hinge and slide, in the order of ``joint_pos`` in a robot's state."""
    motors: dict[str, dict[str, Any]]
    """The motors of training, by their names in the task; a robot has its own."""
    held_joint_pos: dict[str, float]
    """Positions at which servos hold the joints that no action drives."""
    keyframe: str | None
    """The model's keyframe in which episodes start."""
    base: str | None
    """The floating base, for ``base_pos`` and so on; None without one."""
    base_quat: str = "wxyz"
    """The order of the numbers of ``base_quat`` in a robot's state."""


def describe_interface(env: Env, obs_groups: Sequence[str]) -> Interface:
    """The interface of a policy that observes the groups `obs_groups` of `env`, in this order."""
    model, cfg = env.model, env.cfg
    start = initial_state(model, cfg.keyframe)
    actions: list[ActionPart] = []
    for name, term in env.action_terms.items():
        action, first = cfg.actions[name], sum(part.size for part in actions)
        clock = getattr(action, "reference", None)
        actions.append(
            ActionPart(name, type(action).__name__, clock, first, term.dim, _delay(action))
        )
    driven = [term for term in env.action_terms.values() if isinstance(term, JointAction)]
    names = [name for term in driven for name in term.joints.names]
    actuators = [i for term in driven for i in term.actuators]
    joints = [model.joint(i) for i in range(model.njnt) if model.jnt_type[i] in ONE_DEGREE]
    start_of = {joint.name: float(start.qpos[joint.qposadr[0]]) for joint in joints}
    observations = _observations(env, obs_groups)
    return Interface(
        control_period=env.step_dt,
        observation_size=sum(part.size for part in observations if part.shape is None),
        observation_names=[part.term for part in observations],
        observations=observations,
        command_names=list(cfg.commands),
        commands=[
            CommandPart(
                name=name,
                size=env.command(name).shape[1],
                function=function_name(cfg.commands[name].func),
                params=_params(env, cfg.commands[name]),
                runs=None if term.is_driven else {"places": [], "starts": {}} | term.describe(),
            )
            for name, term in env.commands.terms.items()
        ],
        action_size=env.num_actions,
        actions=actions,
        actuators=[i for term in env.action_terms.values() for i in term.actuators],
        joint_names=names,
        action_scale=[x for term in driven for x in _plain(term.scale)],
        action_offset=[x for term in driven for x in _plain(term.offset)],
        action_clip=[
            [low, high]
            for term in driven
            for low, high in zip(_plain(term.low), _plain(term.high), strict=True)
        ],
        default_joint_pos=[start_of[name] for name in names],
        joint_stiffness=[_gain(model, i, 1) for i in actuators],
        joint_damping=[_gain(model, i, 2) for i in actuators],
        actuator_gear=[float(model.actuator_gear[i, 0]) for i in actuators],
        initial_joint_pos=start_of,
        motors={
            name: {"kind": type(motor).__name__, **as_plain(motor)}
            for name, motor in cfg.actuators.items()
        },
        held_joint_pos=env.held_joints,
        keyframe=cfg.keyframe,
        base=model.body(env.base.body).name if has_base(env) else None,
    )


def has_base(env: Env) -> bool:
    """Whether the model has a floating base."""
    try:
        return env.base is not None
    except ConfigError:
        return False


def _observations(env: Env, obs_groups: Sequence[str]) -> list[ObservationPart]:
    parts: list[ObservationPart] = []
    before, cfgs = 0, env.cfg.observation_groups()
    for name in obs_groups:
        group = env.observations.groups[name]
        is_image = len(group.shape) > 1
        for term, place in group.slices.items():
            cfg = cfgs[name][term]
            part = ObservationPart(
                group=name,
                term=term,
                start=0 if is_image else before + place.start,
                size=place.stop - place.start,
                shape=list(group.shape) if is_image else None,
                function=function_name(cfg.func),
                params=_params(env, cfg),
                noise=_noise(cfg.noise),
                bias=_noise(cfg.bias),
                delay=_delay(cfg),
                clip=None if cfg.clip is None else list(cfg.clip),
                scale=as_plain(1.0 if cfg.scale is None else cfg.scale),
                history_length=cfg.history_length,
            )
            parts.append(part)
        before += 0 if is_image else group.size
    return parts


def _delay(cfg: DelayCfg) -> list[int]:
    return [cfg.delay_min_lag, cfg.delay_max_lag]


def _noise(noise: UniformNoiseCfg | GaussianNoiseCfg | None) -> dict[str, list[float]]:
    match noise:
        case UniformNoiseCfg(low, high):
            return {"uniform": [low, high]}
        case GaussianNoiseCfg(std, mean):
            return {"normal": [mean, std]}
    return {}


def _params(env: Env, cfg: TermCfg) -> dict[str, Any]:
    """A term's parameters as plain values, with the names that its patterns match."""
    resolved = resolve_params(cfg.params, env.model, "cpu").items()
    return {k: as_plain(v.names if isinstance(v, Entities) else v) for k, v in resolved}


def _gain(model: mujoco.MjModel, actuator: int, which: int) -> float:
    """A servo's gain on its joint: of position (1) or velocity (2).

    MuJoCo's affine bias is a force -kp length - kv velocity; the gear applies to both length and
    force. See https://mujoco.readthedocs.io/en/stable/modeling.html#actuators.
    """
    kind, gear = model.actuator_biastype[actuator], float(model.actuator_gear[actuator, 0])
    if kind == mujoco.mjtBias.mjBIAS_DCMOTOR.value:
        return float(model.actuator_gainprm[actuator, {1: 4, 2: 6}[which]]) * gear**2
    if kind != mujoco.mjtBias.mjBIAS_AFFINE.value:
        return 0.0
    return -float(model.actuator_biasprm[actuator, which]) * gear**2


def _plain(values: Tensor) -> list[float]:
    """Float32 numbers as the shortest equal decimals: 0.3, not 0.30000001192092896."""
    return [float(str(value)) for value in values.cpu().numpy().astype(np.float32)]
