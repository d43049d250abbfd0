"""What a robot's program needs besides the network: order, meaning, scale of inputs and outputs.

Numbers are those of the task, before domain randomization.
"""

import dataclasses
import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np
from torch import Tensor

from simtrain.config.tree import function_name
from simtrain.env.actions import JOINT_TARGETS, JointAction
from simtrain.env.cfg import GaussianNoiseCfg, ObservationTermCfg, TermCfg, UniformNoiseCfg
from simtrain.env.control.cfg import DelayCfg
from simtrain.env.env import Env
from simtrain.env.names import (
    Entities,
    Joints,
    Sensors,
    find_base,
    find_keyframe,
    initial_state,
    resolve_params,
)
from simtrain.env.reading import Reading
from simtrain.errors import ConfigError, flag

_ONE_DEGREE = (mujoco.mjtJoint.mjJNT_HINGE.value, mujoco.mjtJoint.mjJNT_SLIDE.value)


@dataclass(frozen=True)
class ObservationPart:
    """An observation term's place in the policy's input: `size` entries from `start` on.

    An image has a `shape`, channels, rows and columns, and is an input of its own, named as its
    group; None for what lies in the vector.
    The `function`, as module:name, has joints, bodies and so on among its `params` by name, in the
    order of the entries. What a robot `reads` in its place stands in `simtrain.env.reading`. The
    value is clipped, None being open, and then scaled. The latest `history_length` of them are
    stacked,
    oldest first, all alike at an episode's start; 0 is the present alone. In training `noise` was
    added first, and a `bias` for an episode: bounds, or mean and standard deviation. Its `delay`
    was of so many steps, from least to most. A robot has its own of these.
    """

    group: str
    term: str
    start: int
    size: int
    shape: list[int] | None
    function: str
    params: dict[str, Any]
    reads: dict[str, Any]
    noise: dict[str, list[float]]
    bias: dict[str, list[float]]
    delay: list[int]
    clip: list[float | None] | None
    scale: float | list[float]
    history_length: int


@dataclass(frozen=True)
class ActionPart:
    """An action term's place in the policy's output: `size` entries from `start` on.

    In training its `delay` was of so many physics steps, from least to most.
    """

    term: str
    kind: str  # its class: JointPositionActionCfg gives target positions, and so on
    does: str  # see `ActionTerm.describe`
    reference: str | None  # the clock whose `bend`, or the motion that moves its targets
    start: int
    size: int
    delay: list[int]


@dataclass(frozen=True)
class CommandPart:
    """A command that the policy was trained to follow, within the ranges among its `params`.

    A person gives it, unless it `runs` by itself: a clock, [sin, cos] of a phase that advances at a
    `frequency`, Hz, while the norm of the command `runs_with` is above a `threshold` and for a
    `stopping_time`, s, after that, and shows zeros otherwise. It may `bend` joints, each by an
    angle, rad, times sin^2 of pi x; x goes from 0 to 1 after the part `stance` of the period of the
    joint's foot, which is so many periods ahead. Or it is a motion: one of the files `motions`, by
    name, frame by frame, whose `anchor` is a body.
    """

    name: str
    size: int
    function: str
    params: dict[str, Any]
    runs: dict[str, Any]


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
    initial_joint_pos: dict[str, float]
    """Of every hinge and slide, driven or not, in the order of ``joint_pos`` in a robot's state."""
    motors: dict[str, dict[str, Any]]
    """The motors of training, by their names in the task; a robot has its own."""
    held_joint_pos: dict[str, float]
    """Where the servos of joints that no action drives hold them."""
    keyframe: str | None
    """The model's keyframe that episodes start from."""
    base: str | None
    """The body of the floating base, which ``base_pos`` and so on are of; None without one."""
    base_quat: str = "wxyz"
    """The order of the numbers of ``base_quat`` in a robot's state."""


def describe_interface(env: Env, obs_groups: Sequence[str]) -> Interface:
    """The interface of a policy that sees the groups `obs_groups` of `env`, one after the other.

    ConfigError for a term that has not told what a robot's program does in its place.
    """
    model, cfg = env.model, env.cfg
    start = initial_state(model, find_keyframe(model, cfg.keyframe))
    terms, held = env.action_terms, env.held_joints
    actions: list[ActionPart] = []
    for name, term in terms.items():
        first, kind, does = sum(p.size for p in actions), type(cfg.actions[name]), term.describe()
        clock = getattr(cfg.actions[name], "reference", None)
        told = {} if clock is None else env.commands.terms[clock].describe()
        if clock is not None and not (told.get("bend") or told.get("motions")):
            does = None
        if does is None or (does in JOINT_TARGETS.values() and not isinstance(term, JointAction)):
            text = f"what {kind.__name__} does cannot be told to a robot's program"
            raise ConfigError(f"{flag('env', 'actions', name)}: {text}; `ActionTerm.describe` may")
        place = first, term.dim, _delay(cfg.actions[name])
        actions.append(ActionPart(name, kind.__name__, does, clock, *place))
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
            CommandPart(
                name,
                env.command(name).shape[1],
                function_name(c.func),
                _params(env, c),
                env.commands.terms[name].describe(),
            )
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
        motors={
            name: {"kind": type(motor).__name__, **_for_json(dataclasses.asdict(motor))}
            for name, motor in cfg.actuators.items()
        },
        held_joint_pos=held,
        keyframe=cfg.keyframe,
        base=_base(model),
    )


def _base(model: mujoco.MjModel) -> str | None:
    try:
        name: str = model.body(find_base(model).body).name
    except ConfigError:
        return None
    return name


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
            function, params = function_name(cfg.func), _params(env, cfg)
            clip = None if cfg.clip is None else [_finite(bound) for bound in cfg.clip]
            factor = 1.0 if cfg.scale is None else cfg.scale
            scale = list(factor) if isinstance(factor, tuple) else factor
            history = cfg.history_length
            told = function, params, _reads(env, group, term, cfg)
            untrue = _noise(cfg.noise), _noise(cfg.bias), _delay(cfg)
            where = group, term, start, size, shape
            parts.append(ObservationPart(*where, *told, *untrue, clip, scale, history))
        before += its.size if shape is None else 0
    return parts


def _reads(env: Env, group: str, term: str, cfg: ObservationTermCfg) -> dict[str, Any]:
    """What a robot reads in the place of an observation term; ConfigError if nobody has said it."""
    where = flag("env", "observations", group, term)
    reading: Reading | None = getattr(getattr(cfg.func, "func", cfg.func), "reading", None)
    if reading is None:
        text = f"{where}: how a robot reads {function_name(cfg.func)} is not known"
        way = 'write @read_as(...) above it, or @read_as("given") if the robot\'s program gives it'
        raise ConfigError(f"{text}; {way}")
    parameters = inspect.signature(cfg.func).parameters.items()
    params = {n: p.default for n, p in parameters if p.default is not p.empty}
    params |= resolve_params(cfg.params, env.model, env.device)
    told: dict[str, Any] = {"source": reading.source}
    for value in params.values():
        if isinstance(value, Joints):
            told["joints"] = list(value.names)
        elif isinstance(value, Sensors):
            told["sensors"] = list(value.names)
    kinds = {name: env.model.joint(name).type[0] for name in told.get("joints", ())}
    for name, kind in kinds.items():
        if kind not in _ONE_DEGREE:
            raise ConfigError(f"{where}: the joint {name!r} has no single position to read")
    if "command" in params:
        told["command"] = params["command"]
        command = env.commands.terms[params["command"]]
        if not command.is_driven and not command.describe():
            text = f"the command {params['command']!r}, which runs by itself, does not tell how"
            raise ConfigError(f"{where}: {text} (`CommandTerm.describe`)")
    told |= {"entries": list(reading.entries)} if reading.entries else {}
    told |= {"functions": list(reading.functions)} if reading.functions else {}
    more = reading.more(env, params) if reading.more is not None else {}
    return told | {k: _plain(v) if isinstance(v, Tensor) else v for k, v in more.items()}


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
    """A term's parameters as plain values, with names where its patterns match."""
    resolved = resolve_params(cfg.params, env.model, "cpu").items()
    return {k: _for_json(v.names if isinstance(v, Entities) else v) for k, v in resolved}


def _for_json(value: Any) -> Any:
    """A value as JSON can hold it: None for infinities, a text for what it does not know."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _for_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_for_json(item) for item in value]
    if callable(value):
        return function_name(value)
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
    return [float(str(value)) for value in values.cpu().numpy().astype(np.float32)]


def _finite(bound: float) -> float | None:
    return bound if math.isfinite(bound) else None
