"""A machine with everything that actions are for: an arm, a wheel, a tendon and a thruster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from simtrain import (
    DcMotorActuatorCfg,
    DifferentialIKActionCfg,
    NetworkActuatorCfg,
    ObservationTermCfg,
    RelativeJointPositionActionCfg,
    RewardTermCfg,
    SiteEffortActionCfg,
    TaskCfg,
    TendonLengthActionCfg,
    mdp,
)
from simtrain.env.cfg import SimCfg
from simtrain.env.env import Env
from simtrain.sim import EngineCfg

MODEL = """
<mujoco>
  <option gravity="0 0 0"><flag contact="disable"/></option>
  <default><geom type="capsule" size=".02" mass="1"/></default>
  <worldbody>
    <body name="shoulder" pos="0 0 1">
      <joint name="yaw" axis="0 0 1" armature=".1"/> <geom fromto="0 0 0 .4 0 0"/>
      <body name="elbow" pos=".4 0 0">
        <joint name="pitch" axis="0 1 0" range="-100 100" armature=".1"/>
        <geom fromto="0 0 0 .4 0 0"/>
        <body name="hand" pos=".4 0 0">
          <joint name="reach" type="slide" axis="1 0 0" armature=".1"/>
          <geom fromto="0 0 0 .2 0 0"/> <site name="tip" pos=".2 0 0"/>
        </body>
      </body>
    </body>
    <body name="wheel" pos="0 2 1">
      <joint name="wheel" axis="0 1 0" armature=".1"/> <geom type="sphere" size=".1"/>
    </body>
    <body name="cart" pos="0 -2 1">
      <joint name="cart" type="slide" axis="1 0 0"/> <geom type="sphere" size=".1"/>
    </body>
    <body name="drone" pos="0 4 1">
      <joint name="lift" type="slide" axis="0 0 1"/> <geom type="sphere" size=".1"/>
      <site name="rotor"/>
    </body>
  </worldbody>
  <tendon><fixed name="cable"><joint joint="cart" coef="2"/></fixed></tendon>
  <actuator>
    <position name="yaw" joint="yaw" kp="40" kv="4" forcerange="-30 30"/>
    <position name="pitch" joint="pitch" kp="40" kv="4" inheritrange="1"/>
    <position name="reach" joint="reach" kp="400" kv="40"/>
    <motor name="wheel" joint="wheel"/>
    <position name="cable" tendon="cable" kp="10" kv="2"/>
    <motor name="thrust" site="rotor" gear="0 0 1 0 0 0"/>
  </actuator>
  <keyframe><key name="ready" qpos=".2 .7 .1 0 .5 0"/></keyframe>
</mujoco>
"""
ARM = ("yaw", "pitch", "reach")
LATE = {"delay_min_lag": 1, "delay_max_lag": 5}


def machine() -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(MODEL)


def late_machine() -> mujoco.MjSpec:
    """The same, with an actuator whose delay MuJoCo has."""
    spec = machine()
    spec.actuator("cable").delay, spec.actuator("cable").nsample = 0.01, 3
    return spec


def machine_task(**changes: Any) -> TaskCfg:
    task = {
        "model": machine,
        "keyframe": "ready",
        "timestep": 0.005,
        "decimation": 4,
        "episode_length_s": 10.0,
        "observations": {"actor": {"joints": ObservationTermCfg(mdp.joint_pos, joints=".*")}},
        "rewards": {"none": RewardTermCfg(mdp.is_alive, weight=1.0)},
        "sim": SimCfg(integrator="Euler"),
    }
    return TaskCfg(**{**task, **changes})  # type: ignore[arg-type]


def machine_env(num_envs: int = 1, **changes: Any) -> Env:
    return Env(machine_task(**changes), num_envs, EngineCfg(threads=1))


def linear_network(path: Path, weights: list[float], bias: float = 0.0) -> Path:
    """A file of a layer, ``(n, len(weights))`` to ``(n, 1)``: TorchScript, or ONNX by its name."""
    if path.suffix == ".pt":
        layer = torch.nn.Linear(len(weights), 1)
        with torch.no_grad():
            layer.weight.copy_(torch.tensor([weights]))
            layer.bias.fill_(bias)
        torch.jit.script(layer).save(str(path))
        return path
    numbers = {"w": np.array([weights], np.float32), "b": np.array([bias], np.float32)}
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"], transB=1)],
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", len(weights)])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
        [numpy_helper.from_array(value, name) for name, value in numbers.items()],
    )
    versions = {"opset_imports": [helper.make_opsetid("", 17)], "ir_version": 9}
    onnx.save(helper.make_model(graph, **versions), str(path))
    return path


def everything(folder: Path, *, drawn: bool = True, **changes: Any) -> TaskCfg:
    """A task that has it all; its lags are the same in every environment unless `drawn`."""
    network = linear_network(folder / "network.pt", [6.0, -1.0, -2.0, 0.0], 0.1)
    late = LATE if drawn else {"delay_min_lag": 3, "delay_max_lag": 3}
    weak = DcMotorActuatorCfg(
        ("yaw", "pitch"), saturation_effort=6.0, velocity_limit=1.5, effort_limit=5.0
    )
    strong = DcMotorActuatorCfg("reach", saturation_effort=90, velocity_limit=2, builtin=True)
    learned = NetworkActuatorCfg("wheel", network=network, history_steps=(0, 3))
    task = {
        "model": late_machine,
        "actuators": {"weak": weak, "strong": strong, "learned": learned},
        "actions": {
            "reach": DifferentialIKActionCfg(
                "tip", ("yaw", "pitch", "reach"), frame="hand", **late
            ),
            "roll": RelativeJointPositionActionCfg("wheel", scale=0.4, rate_limit=9.0),
            "pull": TendonLengthActionCfg("cable", acceleration_limit=30.0),
            "fly": SiteEffortActionCfg("rotor", **late),
        },
        "observations": {
            "actor": {
                "joints": ObservationTermCfg(mdp.joint_pos, joints=".*", **late),
                "velocities": ObservationTermCfg(mdp.joint_vel, joints=".*"),
            }
        },
    }
    return machine_task(**{**task, **changes})
