"""Actuators of a task: they change those of its model, and compute forces at each physics step.

An actuator that MuJoCo does not have takes a target from ``ctrl`` and replaces it by the ``ctrl``
with which MuJoCo's actuator has the wanted force. MuJoCo goes on to limit it to ``forcerange``,
to randomize gains and encoders, and to integrate a servo's damping implicitly.
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
)
from simtrain.env.control.transmission import actuators_on, find_driving
from simtrain.env.names import ONE_DEGREE, as_index, find_joints, match_values
from simtrain.errors import ConfigError, config_errors_of, flag

Network = Callable[[Tensor], Tensor]
_PARAMETERS = ("stiffness", "damping", "effort_limit", "saturation_effort", "velocity_limit")
_compiling_nothing = partial(torch.jit.optimized_execution, False)  # type: ignore[attr-defined]


def set_actuators(cfgs: Mapping[str, ActuatorCfg], spec: mujoco.MjSpec) -> None:
    """Set the actuators of a model to `cfgs`, in place; ConfigError if that is impossible."""
    model, taken = spec.compile(), dict[str, str]()
    for name, cfg in cfgs.items():
        with config_errors_of(flag("env", "actuators", name)):
            if isinstance(cfg, NetworkActuatorCfg):
                _load(cfg, "cpu")
            joints = find_joints(model, cfg.joints, "cpu").names
            values = [getattr(cfg, what, None) for what in _PARAMETERS]
            given = {w: v for w, v in zip(_PARAMETERS, values, strict=True) if v is not None}
            numbers = {w: match_values(v, joints, np.nan, w) for w, v in given.items()}
            for i, joint in enumerate(joints):
                if joint in taken:
                    other = flag("env", "actuators", taken[joint])
                    raise ConfigError(f"{joint!r} has an actuator by {other} already")
                taken[joint] = name
                of_joint = {what: of[i] for what, of in numbers.items() if not np.isnan(of[i])}
                _configure(_place(spec, model, joint), cfg, of_joint, joint)


def check_networks(cfgs: Mapping[str, ActuatorCfg], device: torch.device | str) -> None:
    """Raise ConfigError for a network that cannot run on the device of the simulation."""
    if torch.device(device).type == "cpu":
        return
    for name, cfg in cfgs.items():
        if isinstance(cfg, NetworkActuatorCfg) and cfg.network.suffix == ".onnx":
            where = flag("env", "actuators", name, "network")
            text = "is ONNX, which runs on the CPU; to simulate on a GPU"
            raise ConfigError(f"{where}: {cfg.network} {text}, give it as TorchScript (.pt)")


def simulated_actuators(cfgs: Mapping[str, ActuatorCfg], env: Any) -> list["_DcMotors | _Networks"]:
    """The simulations of a task's actuators that MuJoCo does not have."""
    models: list[_DcMotors | _Networks] = []
    for name, cfg in cfgs.items():
        if isinstance(cfg, DcMotorActuatorCfg) and not cfg.builtin:
            models.append(_DcMotors(cfg, env))
        elif isinstance(cfg, NetworkActuatorCfg):
            models.append(_Networks(name, cfg, env))
    return models


class _Servos:
    """MuJoCo's servos of some joints, each of force ``gain ctrl + bias`` in its own units."""

    def __init__(self, cfg: ActuatorCfg, env: Any) -> None:
        self.joints = find_joints(env.model, cfg.joints, env.device)
        ids = find_driving(env.model, "joint", self.joints.names, type(cfg).__name__)
        self.index = as_index(ids, env.device)
        gear = torch.tensor(env.model.actuator_gear[ids, 0], dtype=torch.float32)
        self._gear = gear.to(env.device)
        self._qpos: Tensor = env.bind("qpos")
        self._qvel: Tensor = env.bind("qvel")
        self._gains: Tensor = env.sim.expand("actuator_gainprm")
        self._biases: Tensor = env.sim.expand("actuator_biasprm")

    def read(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Position, velocity, ``biasprm``, gain and bias, ``(num_envs, joints, ...)``.

        Each environment's own ``biasprm`` begins with - stiffness x encoder's bias, - stiffness and
        - damping.
        """
        position = self._qpos[:, self.joints.qpos] * self._gear
        velocity = self._qvel[:, self.joints.qvel] * self._gear
        numbers = self._biases[:, self.index]
        bias = numbers[..., 0] + numbers[..., 1] * position + numbers[..., 2] * velocity
        return position, velocity, numbers, self._gains[:, self.index, 0], bias


class _DcMotors(_Servos):
    """Limits the targets of servos so that their motors can exert the forces."""

    def __init__(self, cfg: DcMotorActuatorCfg, env: Any) -> None:
        super().__init__(cfg, env)
        names = self.joints.names
        stall = match_values(cfg.saturation_effort, names, 0.0, "saturation_effort")
        speed = match_values(cfg.velocity_limit, names, 0.0, "velocity_limit")
        self._stall = torch.tensor(stall).to(env.device)
        self._slope = -self._stall / torch.tensor(speed).to(env.device)

    def apply(self, ctrl: Tensor) -> None:
        """Bound targets by those of the least and the largest force at the present velocity."""
        _, velocity, _, gain, bias = self.read()
        middle = torch.addcmul(-bias, velocity, self._slope)
        low, high = (middle - self._stall) / gain, (middle + self._stall) / gain
        ctrl[:, self.index] = torch.clamp(ctrl[:, self.index], low, high)


class _Networks(_Servos):
    """Computes efforts by a network, from the latest position errors and velocities."""

    def __init__(self, name: str, cfg: NetworkActuatorCfg, env: Any) -> None:
        super().__init__(cfg, env)
        self._cfg, self._network = cfg, _load(cfg, env.device)
        self._steps = torch.tensor(cfg.history_steps).to(env.device)
        shape = (max(cfg.history_steps) + 1, 2, len(self.joints))
        self._history = env.buffer(f"actuators.{name}.history", shape)  # the present first
        self._scale = torch.tensor([[cfg.pos_scale], [cfg.vel_scale]]).to(env.device)

    @torch.no_grad()
    def apply(self, ctrl: Tensor) -> None:
        """Replace targets; each joint of each environment is a row of the network's."""
        history = self._history
        position, velocity, numbers, gain, bias = self.read()
        measured = position + numbers[..., 0] / numbers[..., 1]
        history[:, 1:] = history[:, :-1].clone()
        history[:, 0, 0] = ctrl[:, self.index] - measured
        history[:, 0, 1] = velocity
        inputs = history.index_select(1, self._steps) * self._scale
        # From (num_envs, steps, 2, joints) to (num_envs, joints, 2, steps).
        inputs = inputs.permute(0, 3, 2, 1)
        inputs = inputs.flip(2) if self._cfg.input_order == "vel_pos" else inputs
        with _compiling_nothing():
            efforts = self._network(inputs.flatten(2).flatten(0, 1)).view(len(ctrl), -1)
        efforts = efforts * self._cfg.torque_scale - bias
        ctrl[:, self.index] = efforts / gain


def _place(spec: mujoco.MjSpec, model: mujoco.MjModel, joint: str) -> Any:
    """The one actuator of a joint in `spec`, made if there is none; `model` is `spec` compiled."""
    if model.joint(joint).type[0] not in ONE_DEGREE:
        raise ConfigError(f"{joint!r} is neither a slide nor a hinge")
    if not actuators_on(model, "joint", joint):
        for key in spec.keys:
            key.ctrl = [*key.ctrl, 0.0] if len(key.ctrl) else []
        return spec.add_actuator(name=joint, target=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT)
    (own,) = find_driving(model, "joint", [joint], "the task's actuator")
    actuator = spec.actuators[own]
    # As the compiler has worked it out: targets stay within it, also if another kind would not.
    actuator.inheritrange, actuator.ctrlrange = 0.0, model.actuator_ctrlrange[own]
    actuator.biasprm, actuator.gainprm = model.actuator_biasprm[own], model.actuator_gainprm[own]
    return actuator


def _configure(actuator: Any, cfg: ActuatorCfg, numbers: dict[str, float], joint: str) -> None:
    """Set an actuator of the spec to `cfg`, in place; `numbers` are the given ones of a joint."""
    if (effort := numbers.get("effort_limit")) is not None:
        actuator.forcelimited, actuator.forcerange = True, [-effort, effort]
    if isinstance(cfg, NetworkActuatorCfg):
        # A servo, with targets and an encoder; its gains do not matter.
        actuator.set_to_position(kp=1.0, kv=0.0)
        actuator.ctrllimited = False
    if not isinstance(cfg, IdealPdActuatorCfg):
        return
    if actuator.biastype == mujoco.mjtBias.mjBIAS_AFFINE and actuator.biasprm[1] < 0.0:
        own = {"stiffness": -actuator.biasprm[1], "damping": -actuator.biasprm[2]}
        numbers = own | numbers
    for what in ("stiffness", "damping"):
        if what not in numbers:
            text = f"has no servo in the model to take its {what} from: give it"
            raise ConfigError(f"{joint!r} {text}")
    stiffness, damping = numbers["stiffness"], numbers["damping"]
    if isinstance(cfg, DcMotorActuatorCfg):
        if stiffness == 0.0:
            raise ConfigError(f"the stiffness of {joint!r} is 0; a DC motor's servo needs one")
        for what in ("saturation_effort", "velocity_limit"):
            if what not in numbers:
                raise ConfigError(f"no {what} is given for {joint!r}")
        stall, speed = numbers["saturation_effort"], numbers["velocity_limit"]
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
    path, size = cfg.network, 2 * len(cfg.history_steps)
    if not path.is_file():
        raise ConfigError(f"there is no network file {path}")
    is_onnx = path.suffix == ".onnx"
    try:
        network = _from_onnx(path) if is_onnx else _from_torchscript(path, device)
    except Exception as error:  # whatever is wrong with someone's file
        script = "TorchScript: save a scripted module by torch.jit.save, not its state_dict"
        what = f"ONNX: {str(error).splitlines()[0]}" if is_onnx else script
        raise ConfigError(f"the network {path} cannot be read as {what}") from error
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


def _from_onnx(path: Path) -> Network:
    """Run by ONNX Runtime on the CPU."""
    import onnxruntime  # it takes long, and few tasks need it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda inputs: torch.from_numpy(session.run(None, {name: inputs.numpy()})[0])
