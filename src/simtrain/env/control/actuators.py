"""Actuators of a task: what they make of a model's, and their forces at every physics step.

An actuator that MuJoCo does not have takes a target from ``ctrl`` and puts that ``ctrl`` in its
place with which MuJoCo's actuator has the wanted force. MuJoCo goes on to limit it to
``forcerange``, to randomize gains and encoders, and to integrate a servo's damping implicitly.
"""

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from simtrain.env.control.cfg import (
    ActuatorCfg,
    DcMotorActuatorCfg,
    IdealPdActuatorCfg,
    NetworkActuatorCfg,
    PerName,
)
from simtrain.env.control.transmission import ONE_DEGREE, actuators_on, only_actuator_on
from simtrain.env.names import Joints, as_index, find_joints, match_values
from simtrain.errors import ConfigError, flag

Network = Callable[[Tensor], Tensor]


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


class _Servos:
    """MuJoCo's servos of some joints, each of force ``gain ctrl + bias`` in its own units.

    ``biasprm`` has - stiffness x encoder's bias, - stiffness and - damping, each environment's own.
    """

    def __init__(self, cfg: ActuatorCfg, env: Any) -> None:
        model = env.model
        self.joints = find_joints(model, cfg.joints, env.device)
        ids = [
            only_actuator_on(model, "joint", name, type(cfg).__name__) for name in self.joints.names
        ]
        self.index = as_index(ids, env.device)
        self._gear = torch.tensor(model.actuator_gear[ids, 0], dtype=torch.float32).to(env.device)
        self._qpos: Tensor = env.bind("qpos")
        self._qvel: Tensor = env.bind("qvel")
        self._gains: Tensor = env.sim.expand("actuator_gainprm")
        self._biases: Tensor = env.sim.expand("actuator_biasprm")

    def position(self) -> Tensor:
        """Positions. Shape: ``(num_envs, joints)``, as of all that follows."""
        return self._qpos[:, self.joints.qpos] * self._gear

    def velocity(self) -> Tensor:
        """Velocities."""
        return self._qvel[:, self.joints.qvel] * self._gear

    def gain(self) -> Tensor:
        """Force for one unit of ``ctrl``."""
        return self._gains[:, self.index, 0]

    def bias(self, velocity: Tensor) -> Tensor:
        """Force without ``ctrl``."""
        numbers = self._biases[:, self.index]
        return numbers[..., 0] + numbers[..., 1] * self.position() + numbers[..., 2] * velocity

    def measured(self) -> Tensor:
        """Positions as encoders have them."""
        numbers = self._biases[:, self.index]
        return self.position() + numbers[..., 0] / numbers[..., 1]


class _DcMotors:
    """Moves the targets of servos so far that their motors can do what they ask for."""

    def __init__(self, cfg: DcMotorActuatorCfg, env: Any) -> None:
        self._servos = _Servos(cfg, env)
        limits = (
            ("saturation_effort", cfg.saturation_effort),
            ("velocity_limit", cfg.velocity_limit),
        )
        stall, speed = (
            torch.tensor(match_values(of, self._servos.joints.names, 0.0, what)).to(env.device)
            for what, of in limits
        )
        self._stall, self._slope = stall, -stall / speed

    def apply(self, ctrl: Tensor) -> None:
        """Bound targets by what makes the largest and the least force that there can be."""
        servos, velocity = self._servos, self._servos.velocity()
        index, gain = servos.index, servos.gain()
        middle = torch.addcmul(-servos.bias(velocity), velocity, self._slope)
        low, high = (middle - self._stall) / gain, (middle + self._stall) / gain
        ctrl[:, index] = torch.clamp(ctrl[:, index], low, high)


class _Networks:
    """Computes efforts by a network, from the latest position errors and velocities."""

    def __init__(self, name: str, cfg: NetworkActuatorCfg, env: Any) -> None:
        self._servos, self._cfg = _Servos(cfg, env), cfg
        self._network = _load(cfg, env.device)
        self._steps = torch.tensor(cfg.history_steps).to(env.device)
        shape = (max(cfg.history_steps) + 1, 2, len(self._servos.joints))
        self._history = env.buffer(f"actuators.{name}.history", shape)  # the present first
        self._scale = torch.tensor([[cfg.pos_scale], [cfg.vel_scale]]).to(env.device)

    @torch.no_grad()
    def apply(self, ctrl: Tensor) -> None:
        """Replace targets; each joint of each environment is a row of the network's."""
        servos, history, velocity = self._servos, self._history, self._servos.velocity()
        history[:, 1:] = history[:, :-1].clone()
        history[:, 0, 0] = ctrl[:, servos.index] - servos.measured()
        history[:, 0, 1] = velocity
        inputs = history.index_select(1, self._steps) * self._scale
        # From (num_envs, steps, 2, joints) to (num_envs, joints, 2, steps).
        inputs = inputs.permute(0, 3, 2, 1)
        inputs = inputs.flip(2) if self._cfg.input_order == "vel_pos" else inputs
        with _compiling_nothing():
            efforts = self._network(inputs.flatten(2).flatten(0, 1)).view(len(ctrl), -1)
        efforts = efforts * self._cfg.torque_scale - servos.bias(velocity)
        ctrl[:, servos.index] = efforts / servos.gain()


_compiling_nothing = partial(torch.jit.optimized_execution, False)  # type: ignore[attr-defined]
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
    if model.joint(joint).type[0] not in ONE_DEGREE:
        raise ConfigError(f"{joint!r} is neither a slide nor a hinge")
    if not actuators_on(model, "joint", joint):
        for key in spec.keys:
            key.ctrl = [*key.ctrl, 0.0] if len(key.ctrl) else []
        return spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    own = only_actuator_on(model, "joint", joint, "the task's actuator")
    actuator = spec.actuators[own]
    # As the compiler has worked it out: targets stay within it, also if another kind would not.
    actuator.inheritrange, actuator.ctrlrange = 0.0, model.actuator_ctrlrange[own]
    actuator.biasprm, actuator.gainprm = model.actuator_biasprm[own], model.actuator_gainprm[own]
    return actuator


def _configure(
    actuator: Any, cfg: ActuatorCfg, numbers: dict[str, float | None], joint: str
) -> None:
    """Make an actuator of the spec what `cfg` says, in place."""
    if (effort := numbers["effort_limit"]) is not None:
        actuator.forcelimited, actuator.forcerange = True, [-effort, effort]
    if isinstance(cfg, NetworkActuatorCfg):
        _load(cfg, "cpu")
        # A servo, with targets and an encoder; its gains do not matter.
        actuator.set_to_position(kp=1.0, kv=0.0)
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
        if stiffness == 0.0:
            raise ConfigError(f"the stiffness of {joint!r} is 0; a DC motor's servo needs one")
        stall, speed = numbers["saturation_effort"], numbers["velocity_limit"]
        if stall is None or speed is None:
            lacking = "saturation_effort" if stall is None else "velocity_limit"
            raise ConfigError(f"no {lacking} is given for {joint!r}")
        if cfg.builtin:
            # With a motor constant of 1, speeds are voltages, and speed / resistance stall torque.
            actuator.set_to_dcmotor(
                motorconst=[1.0, 1.0],
                resistance=speed / stall,
                controller=[stiffness, 0.0, damping, 0.0, 0.0, speed],
                ctrlspec=int(mujoco.mjtCtrlInput.mjINPUT_POS),
            )
            return
        actuator.ctrllimited = False  # bounds of its targets; its controls may be beyond
    actuator.set_to_position(kp=stiffness, kv=damping)


def _load(cfg: NetworkActuatorCfg, device: torch.device | str) -> Network:
    """The network of an actuator, from its file; ConfigError if it is none of that kind."""
    path, size = Path(cfg.network), 2 * len(cfg.history_steps)
    if not path.is_file():
        there = "is no file" if path.exists() else "does not exist"
        raise ConfigError(f"the network {path} {there}")
    try:
        read = _from_onnx if path.suffix == ".onnx" else _from_torchscript
        network = read(path, device)
    except ConfigError:
        raise
    except Exception as error:  # whatever is wrong with someone's file
        text = f"the network {path} cannot be read as {read.__name__.removeprefix('_from_')}"
        needs = "save a scripted module by torch.jit.save, not its state_dict"
        text += f": {needs if read is _from_torchscript else str(error).splitlines()[0]}"
        raise ConfigError(text) from error
    try:
        shape = tuple(network(torch.zeros(2, size, device=device)).shape)
    except Exception:  # noqa: BLE001 - torch and ONNX Runtime raise various ones
        shape = ()
    if shape != (2, 1):
        steps = f"{len(cfg.history_steps)} position errors and as many velocities"
        raise ConfigError(f"the network {path} does not make one number of {size} inputs, {steps}")
    return network


def _from_torchscript(path: Path, device: torch.device | str) -> Network:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"`torch\.jit", category=FutureWarning)
        network: Network = torch.jit.load(str(path), map_location=device).eval()
    return network


def _from_onnx(path: Path, device: torch.device | str) -> Network:
    """Run by ONNX Runtime on the CPU, wherever the simulation is."""
    import onnxruntime  # it takes long, and few tasks need it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def network(inputs: Tensor) -> Tensor:
        (efforts,) = session.run(None, {name: inputs.cpu().numpy()})
        return torch.from_numpy(efforts).to(device)

    return network
