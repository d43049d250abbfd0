"""Actuators of a task: what they make of a model's, and their forces at every physics step.

An actuator that MuJoCo does not have takes a target from ``ctrl`` and puts that ``ctrl`` in its
place with which MuJoCo's actuator has the wanted force. MuJoCo goes on to limit it to
``forcerange``, to randomize gains and encoders, and to integrate a servo's damping implicitly.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor, nn

from simtrain.env.control.cfg import (
    ActuatorCfg,
    DcMotorActuatorCfg,
    IdealPdActuatorCfg,
    NetworkActuatorCfg,
    PerName,
)
from simtrain.env.names import Joints, as_index, find_joints, match_values
from simtrain.errors import ConfigError, flag

_TRANSMISSIONS = (mujoco.mjtTrn.mjTRN_JOINT.value, mujoco.mjtTrn.mjTRN_JOINTINPARENT.value)
_ONE_NUMBER = (mujoco.mjtJoint.mjJNT_HINGE.value, mujoco.mjtJoint.mjJNT_SLIDE.value)
_LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Relu": nn.ReLU,
    "Elu": nn.ELU,
    "Tanh": nn.Tanh,
    "Sigmoid": nn.Sigmoid,
    "Softsign": nn.Softsign,
    "Softplus": nn.Softplus,
    "Identity": nn.Identity,
}


def set_actuators(cfgs: Mapping[str, ActuatorCfg], spec: mujoco.MjSpec) -> None:
    """Let the actuators of a model be as `cfgs` say, in place; ConfigError if that cannot be."""
    model, taken = spec.compile(), dict[str, str]()
    for name, cfg in cfgs.items():
        try:
            joints = find_joints(model, cfg.joints, "cpu")
            numbers = {what: _numbers(cfg, what, joints) for what in _PARAMETERS}
            for i, joint in enumerate(joints.names):
                if joint in taken:
                    other = flag("env", "actuators", taken[joint])
                    raise ConfigError(f"{joint!r} has an actuator by {other} already")
                taken[joint] = name
                actuator = _place(spec, model, joint)
                _configure(actuator, cfg, {what: of[i] for what, of in numbers.items()}, joint)
        except ConfigError as error:
            raise ConfigError(f"{flag('env', 'actuators', name)}: {error}") from error


class Actuators:
    """Those of a task's actuators that MuJoCo does not have, at work."""

    def __init__(self, cfgs: Mapping[str, ActuatorCfg], env: Any) -> None:
        self._models: list[_DcMotors | _Networks] = []
        for name, cfg in cfgs.items():
            if isinstance(cfg, DcMotorActuatorCfg) and not cfg.builtin:
                self._models.append(_DcMotors(cfg, env))
            elif isinstance(cfg, NetworkActuatorCfg):
                self._models.append(_Networks(name, cfg, env))

    def __len__(self) -> int:
        return len(self._models)

    def apply(self, ctrl: Tensor) -> None:
        """Put controls in the place of targets in `ctrl`, ``(num_envs, nu)``, in place."""
        for model in self._models:
            model.apply(ctrl)


class _Driven:
    """The joints that actuators drive, and what is measured there, in the actuators' units."""

    def __init__(self, cfg: ActuatorCfg, env: Any) -> None:
        model = env.model
        self.joints = find_joints(model, cfg.joints, env.device)
        ids = [_actuator_of(model, name) for name in self.joints.names]
        self.index = as_index([i for i in ids if i is not None], env.device)
        self._gear = torch.tensor(model.actuator_gear[ids, 0], dtype=torch.float32).to(env.device)
        self._qpos, self._qvel = env.bind("qpos"), env.bind("qvel")

    def length(self) -> Tensor:
        """Positions. Shape: ``(num_envs, joints)``."""
        return self._qpos[:, self.joints.qpos] * self._gear

    def velocity(self) -> Tensor:
        """Velocities. Shape: ``(num_envs, joints)``."""
        return self._qvel[:, self.joints.qvel] * self._gear


class _DcMotors:
    """Moves the targets of servos so far that their motors can do what they ask for."""

    def __init__(self, cfg: DcMotorActuatorCfg, env: Any) -> None:
        self._driven = _Driven(cfg, env)
        stall, speed = (
            torch.tensor(match_values(of, self._driven.joints.names, 0.0, what)).to(env.device)
            for what, of in (
                ("saturation_effort", cfg.saturation_effort),
                ("velocity_limit", cfg.velocity_limit),
            )
        )
        self._stall, self._slope = stall, -stall / speed
        self._gains = env.sim.expand("actuator_gainprm")
        self._biases = env.sim.expand("actuator_biasprm")

    def apply(self, ctrl: Tensor) -> None:
        """A servo's force is gain ctrl + bias: `ctrl` is bounded where that is too much."""
        driven, index = self._driven, self._driven.index
        velocity, biases = driven.velocity(), self._biases[:, index]
        # Half-way between the two ends of what the motor can do, less the bias.
        middle = velocity * (self._slope - biases[..., 2]) - biases[..., 0]
        middle -= biases[..., 1] * driven.length()
        gain = self._gains[:, index, 0]
        low, high = (middle - self._stall) / gain, (middle + self._stall) / gain
        ctrl[:, index] = torch.clamp(ctrl[:, index], low, high)


class _Networks:
    """Computes efforts by a network, from the latest position errors and velocities."""

    def __init__(self, name: str, cfg: NetworkActuatorCfg, env: Any) -> None:
        self._driven, self._cfg = _Driven(cfg, env), cfg
        with torch.inference_mode(False):
            self._network = _load(cfg.network).to(env.device)
        self._steps = torch.tensor(cfg.history_steps).to(env.device)
        shape = (max(cfg.history_steps) + 1, 2, len(self._driven.joints))
        self._history = env.buffer(f"actuators.{name}.history", shape)  # the present first
        self._scale = torch.tensor([[cfg.pos_scale], [cfg.vel_scale]]).to(env.device)

    @torch.no_grad()
    def apply(self, ctrl: Tensor) -> None:
        """Replace targets by efforts; each joint of each environment is a row of the network's."""
        driven, index, history = self._driven, self._driven.index, self._history
        history[:, 1:] = history[:, :-1].clone()
        history[:, 0, 0] = ctrl[:, index] - driven.length()
        history[:, 0, 1] = driven.velocity()
        inputs = history.index_select(1, self._steps) * self._scale
        # From (num_envs, steps, 2, joints) to (num_envs, joints, 2, steps).
        inputs = inputs.permute(0, 3, 2, 1)
        inputs = inputs.flip(2) if self._cfg.input_order == "vel_pos" else inputs
        with torch.jit.optimized_execution(False):  # it would compile kernels in later steps
            efforts = self._network(inputs.flatten(2).flatten(0, 1))
        ctrl[:, index] = efforts.view(len(ctrl), -1) * self._cfg.torque_scale


_PARAMETERS = ("stiffness", "damping", "effort_limit", "saturation_effort", "velocity_limit")


def _numbers(cfg: ActuatorCfg, what: str, joints: Joints) -> list[float | None]:
    """A number for each joint, None where none is given."""
    given: PerName | None = getattr(cfg, what, None)
    if given is None:
        return [None] * len(joints)
    found = match_values(given, joints.names, np.nan, what)
    return [None if np.isnan(value) else value for value in found]


def _place(spec: mujoco.MjSpec, model: mujoco.MjModel, joint: str) -> Any:
    """The one actuator of a joint in `spec`, made if there is none; `model` is `spec` compiled."""
    if model.joint(joint).type[0] not in _ONE_NUMBER:
        raise ConfigError(f"{joint!r} is neither a slide nor a hinge")
    own = _actuator_of(model, joint)
    if own is None:
        for key in spec.keys:
            key.ctrl = [*key.ctrl, 0.0] if len(key.ctrl) else []
        made = spec.add_actuator(
            name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT, gainprm=np.zeros(10)
        )
        return made
    actuator = spec.actuators[own]
    # As the compiler has worked it out: targets stay within it, also if another kind would not.
    actuator.inheritrange, actuator.ctrlrange = 0.0, model.actuator_ctrlrange[own]
    actuator.biasprm, actuator.gainprm = model.actuator_biasprm[own], model.actuator_gainprm[own]
    return actuator


def _actuator_of(model: mujoco.MjModel, joint: str) -> int | None:
    """The actuator that drives `joint`; ConfigError if there are several."""
    on_joints = np.isin(model.actuator_trntype, _TRANSMISSIONS)
    ids = np.flatnonzero(on_joints & (model.actuator_trnid[:, 0] == model.joint(joint).id))
    if len(ids) > 1:
        names = ", ".join(model.actuator(int(i)).name for i in ids)
        raise ConfigError(f"{joint!r} has several actuators in the model: {names}")
    return int(ids[0]) if len(ids) else None


def _configure(
    actuator: Any, cfg: ActuatorCfg, numbers: dict[str, float | None], joint: str
) -> None:
    """Make an actuator of the spec what `cfg` says, in place."""
    if (effort := numbers["effort_limit"]) is not None:
        actuator.forcelimited, actuator.forcerange = True, [-effort, effort]
    if isinstance(cfg, NetworkActuatorCfg):
        _load(cfg.network)
        actuator.set_to_motor()
        actuator.ctrllimited = False
    if not isinstance(cfg, IdealPdActuatorCfg):
        return
    is_servo = actuator.biastype == mujoco.mjtBias.mjBIAS_AFFINE and actuator.biasprm[1] < 0.0
    own = (-actuator.biasprm[1], -actuator.biasprm[2]) if is_servo else (None, None)
    given = numbers["stiffness"], numbers["damping"]
    stiffness, damping = (a if a is not None else b for a, b in zip(given, own, strict=True))
    if stiffness is None or damping is None:
        lacking = "stiffness" if stiffness is None else "damping"
        raise ConfigError(
            f"{joint!r} has no servo in the model to take its {lacking} from: give it"
        )
    if isinstance(cfg, DcMotorActuatorCfg):
        stall, speed = numbers["saturation_effort"], numbers["velocity_limit"]
        if stall is None or speed is None:
            lacking = "saturation_effort" if stall is None else "velocity_limit"
            raise ConfigError(f"no {lacking} is given for {joint!r}")
        if cfg.builtin:
            # Voltage up to `speed`, by a motor constant of 1: the stall torque is speed / resistance.
            actuator.set_to_dcmotor(
                motorconst=[1.0, 1.0],
                resistance=speed / stall,
                controller=[stiffness, 0.0, damping, 0.0, 0.0, speed],
                ctrlspec=int(mujoco.mjtCtrlInput.mjINPUT_POS),
            )
            return
        actuator.ctrllimited = False  # bounds of its targets; its controls may be beyond
    actuator.set_to_position(kp=stiffness, kv=damping)


def _load(path: Path) -> nn.Module:
    """A network from a file; ConfigError if it is none."""
    if not path.is_file():
        raise ConfigError(f"the network {path} does not exist")
    try:
        if path.suffix == ".onnx":
            return _from_onnx(path)
        network = torch.jit.load(str(path), map_location="cpu")
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever is wrong with someone's file
        raise ConfigError(f"the network {path} cannot be read: {error}") from error
    return network.eval()


def _from_onnx(path: Path) -> nn.Module:
    """Layers one after the other: Gemm, or MatMul and Add, and activations without parameters."""
    import onnx  # it takes long, and few tasks need it

    graph = onnx.load(str(path)).graph
    weights = {w.name: torch.tensor(onnx.numpy_helper.to_array(w)) for w in graph.initializer}
    layers: list[nn.Module] = []
    value = graph.input[0].name
    for node in graph.node:
        if value not in node.input:
            raise ConfigError(f"the network {path} is no chain of layers: {node.op_type} is beside")
        numbers = [weights[name] for name in node.input if name in weights]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0:
            raise ConfigError(f"the network {path} has a {node.op_type} with alpha or beta")
        if node.op_type in ("Gemm", "MatMul"):
            weight = numbers[0] if attributes.get("transB") else numbers[0].T
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.weight.data, layer.bias.data = weight, torch.zeros(weight.shape[0])
            if len(numbers) > 1:
                layer.bias.data = numbers[1]
            layers.append(layer)
        elif node.op_type == "Add" and layers and isinstance(layers[-1], nn.Linear):
            layers[-1].bias.data = numbers[0]
        elif node.op_type in _LAYERS:
            layers.append(_LAYERS[node.op_type]())
        else:
            known = f"Gemm, MatMul, Add, {', '.join(_LAYERS)}"
            raise ConfigError(f"the network {path} has a layer {node.op_type}; known are {known}")
        value = node.output[0]
    return nn.Sequential(*layers)
