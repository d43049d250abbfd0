"""Conditions under which plain MuJoCo plays an exported policy, and the files that it needs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from simtrain.env.control.transmission import actuators_on
from simtrain.errors import ConfigError, did_you_mean
from simtrain.files import damage_as_config_error, read_file
from simtrain.robots.inspect import first_servo
from simtrain.robots.read import compiled, load, read
from simtrain.robots.standing import FLOOR
from simtrain.run.checkpoint import check_kinds

AS_TRAINED = "the task's physics"
"""The first condition, which decides the exit code if no other is named."""
Condition = dict[str, Any]
_FREE, _JOINT = mujoco.mjtJoint.mjJNT_FREE, mujoco.mjtTrn.mjTRN_JOINT
_SCALARS = (mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_HINGE)
_OF_SERVO = ("gear", "gaintype", "gainprm", "biastype", "biasprm", "ctrllimited", "ctrlrange")
_SOLVERS = {"PGS": 0, "CG": 1, "Newton": 2}
_LARGEST = 10_000_000  # bytes of policy.json, and numbers of an observation
_KINDS: dict[str, Any] = dict.fromkeys(("observations", "commands"), list[dict[str, Any]])
_KINDS |= {"robot": dict[str, Any], "control_period": float, "actuators": list[int]}
_KINDS |= {"held_joint_pos": dict[str, float], "base": str | None, "keyframe": str | None}
_KINDS |= {"base_quat": str}
_ROBOT_KINDS: dict[str, Any] = dict.fromkeys(("names", "joints", "contacts", "places"), list[str])
_ROBOT_KINDS |= {"file": str, "given": dict[str, dict[str, Any]]}
_PART_KINDS: dict[str, Any] = dict.fromkeys(("group", "term", "function"), str)
_PART_KINDS |= {"size": int, "history_length": int, "noise": dict[str, list[float]]}


def find_conditions(folder: Path, other_model: Path | None = None) -> dict[str, Condition]:
    """The conditions that apply to the policy exported to `folder`, see `conditions_of`.

    Raises ConfigError for a policy or a model that plain MuJoCo cannot play.
    """
    about = read_interface(folder)
    model, noise = load_model(folder, about), any(part["noise"] for part in about["observations"])
    sensors = about["robot"]["contacts"]
    return conditions_of(model, about["control_period"], other_model, noise=noise, sensors=sensors)


def conditions_of(
    model: mujoco.MjModel,
    control_period: float,
    other_model: Path | None = None,
    *,
    noise: bool,
    sensors: Sequence[str] = (),
) -> dict[str, Condition]:
    """The conditions for a policy, by name.

    The task's physics; other solvers, time steps and masses; a control step late; with `noise`,
    that of training. With `other_model`, the file of another model of the robot, see
    `read_other_model`: that one too, on time and late. `control_period` is in s.
    """
    solvers = {name: i for name, i in _SOLVERS.items() if i != model.opt.solver}
    conditions: dict[str, Condition] = {AS_TRAINED: {}}
    for name, i in solvers.items():
        # They need more iterations than Newton's few.
        of = {"solver": i, "iterations": max(100, model.opt.iterations), "ls_iterations": 50}
        conditions[f"solver {name}"] = {"options": of}
    conditions["half the time step"] = {"timestep": 0.5}
    if round(control_period / model.opt.timestep) % 2 == 0:
        conditions["twice the time step"] = {"timestep": 2.0}
    conditions["one step late"] = {"delay": 1}
    if noise:
        conditions["noise of training"] = {"noise": True}
    conditions |= {"10 % heavier": {"mass": 1.1}, "10 % lighter": {"mass": 0.9}}
    if other_model is not None:
        other = read_other_model(other_model, model, sensors)
        name = f"in {other_model.name}"
        conditions |= {name: other, f"{name}, one step late": other | {"delay": 1}}
    return conditions


def read_interface(folder: Path) -> dict[str, Any]:
    """The content of ``policy.json``.

    ConfigError if it is damaged, names a graph that cannot be read, or needs what MuJoCo does not
    have.
    """
    file = folder / "policy.json"
    with damage_as_config_error(f"{file} does not describe a policy"):
        about: dict[str, Any] = json.loads(read_file(file, "the description", _LARGEST))
        check_kinds(file, about, {"files": dict[str, str]})
    if "onnx" not in about["files"]:
        raise ConfigError("--verify runs the policy as ONNX; leave onnx among --formats")
    if "robot" not in about:
        text = f"{folder} was exported by an earlier version, without robot.onnx"
        raise ConfigError(f"{text}; export the policy again, or verify it with that version")
    check_kinds(file, about, _KINDS)
    check_kinds(file, about["robot"], _ROBOT_KINDS)
    for part in about["observations"]:
        check_kinds(file, part, _PART_KINDS)
    with damage_as_config_error(f"{file} does not describe a policy"):
        if not 0.0 < about["control_period"] < 1e3:
            raise ValueError(f"its control_period is {about['control_period']}")
        if max(part["size"] for part in about["observations"]) > _LARGEST:
            raise ValueError("an observation is too large")
        if Path(about["robot"]["file"]).name != about["robot"]["file"]:
            raise ValueError(f"its graph {about['robot']['file']} lies elsewhere")
    read_file(folder / about["robot"]["file"], "the graph")
    for name, facts in about["robot"]["given"].items():
        if "points" not in facts:
            text = f"--verify cannot read {name} from MuJoCo: the robot's program gives it"
            raise ConfigError(text)
    return about


def load_model(folder: Path, about: dict[str, Any]) -> mujoco.MjModel:
    """The exported ``model.xml``; ConfigError if it is invalid or its time step does not fit."""
    model = load(folder / "model.xml")
    step, period = model.opt.timestep, about["control_period"]
    if not (step > 0.0 and period / step > 0.5 and math.isfinite(period / step)):
        text = f"{folder / 'model.xml'} has a time step of {step:g} s"
        raise ConfigError(f"{text}, of which control steps of {period:g} s cannot be made")
    return model


def read_other_model(path: Path, own: mujoco.MjModel, sensors: Sequence[str]) -> Condition:
    """Read MJCF or URDF; joints are matched with those of `own` by name, servos are those of `own`.

    The condition has the model as ``other``, its ``base``, the body with the free joint, and the
    ``columns`` of its ``qpos`` and ``qvel`` in the order of those of `own`. `sensors` are other
    inputs of the policy. Masses, inertias, geometries, friction, armature, solver and time step are
    those of the file; so are torque limits, if it has them, and damping that is not a servo's, see
    `_take_servos`. Raises ConfigError for a file that cannot be read or that has no such joint or
    sensor.
    """
    spec, names = read(path).spec, [own.joint(i).name for i in range(own.njnt)]
    moving = [n for i, n in enumerate(names) if mujoco.mjtJoint(own.jnt_type[i]) in _SCALARS]
    there = [joint.name for joint in spec.joints if joint.type in _SCALARS]
    if missing := [name for name in moving if name not in there]:
        meant = did_you_mean(missing[0], there)
        text = f"{path} has no joint {missing[0]!r}{meant}; the policy's model has"
        raise ConfigError(f"{text} {', '.join(moving)}, and joints go by their names")
    is_floating = _FREE.value in own.jnt_type
    base = spec.joint(moving[0]).parent
    while base.parent.name != "world":
        base = base.parent
    if is_floating and not any(joint.type == _FREE for joint in base.joints):
        base.add_freejoint()
    if lost := sorted({*sensors} - {sensor.name for sensor in spec.sensors}):
        raise ConfigError(f"{path} has no sensor {', '.join(lost)}, which the policy reads")
    for key in list(spec.keys):
        spec.delete(key)
    unknown = sorted({*there} - {*moving})
    _take_servos(spec, compiled(spec.copy(), str(path)), own, moving, unknown)
    if any(own.geom_type[own.geom_bodyid == 0] <= mujoco.mjtGeom.mjGEOM_HFIELD.value):
        plane = mujoco.mjtGeom.mjGEOM_PLANE
        spec.worldbody.add_geom(name="simtrain_floor", type=plane, **FLOOR)
    model = compiled(spec, str(path))
    qpos: list[int] = []
    qvel: list[int] = []
    for number, name in enumerate(names):
        is_free = own.jnt_type[number] == _FREE.value
        joint = model.joint(model.body(base.name).jntadr[0] if is_free else name)
        q, v = int(joint.qposadr[0]), int(joint.dofadr[0])
        qpos += range(q, q + len(joint.qpos0))
        qvel += range(v, v + len(joint.damping))
    columns = {"qpos": qpos, "qvel": qvel}
    return {"other": model, "base": base.name if is_floating else None, "columns": columns}


def _take_servos(
    spec: mujoco.MjSpec,
    there: mujoco.MjModel,
    own: mujoco.MjModel,
    joints: Sequence[str],
    unknown: Sequence[str],
) -> None:
    """Replace the actuators of a spec, compiled `there`, by those of `own`, in their order.

    The derivative gain of a position servo is often the damping of its joint. Then this damping is
    part of the servo, there and in `own`. `joints` are the hinges and slides of `own`. Those that
    it does not have, `unknown`, such as fingers, are held if they have an actuator there, or if
    the file has no actuators, as URDF.
    """
    limits = {}
    for name in unknown:
        if there.nu == 0 or actuators_on(there, "joint", name):
            spec.add_equality(type=mujoco.mjtEq.mjEQ_JOINT, name1=name)
    for name in joints:
        joint, damping = spec.joint(name), own.dof_damping[own.joint(name).dofadr[0]]
        if _damps_by_joint(there, name):
            joint.damping = [damping, 0.0, 0.0]
        elif _damps_by_joint(own, name):
            joint.damping[0] += damping
    for actuator in list(spec.actuators):
        if (limit := _force_range(actuator)) is not None:
            limits[actuator.target] = limit
        spec.delete(actuator)
    for number in range(own.nu):
        actuator = own.actuator(number)
        name = own.joint(int(actuator.trnid[0])).name
        limit = limits.get(name)
        if limit is None and actuator.forcelimited:
            limit = actuator.forcerange * abs(actuator.gear[0])
        spec.add_actuator(
            name=f"simtrain_{actuator.name or name}",
            trntype=_JOINT,
            target=name,
            **{field: getattr(own, f"actuator_{field}")[number].tolist() for field in _OF_SERVO},
            damping=[own.actuator_damping[number], *own.actuator_dampingpoly[number]],
            forcelimited=int(limit is not None),
            forcerange=[0.0, 0.0] if limit is None else limit / abs(actuator.gear[0]),
        )


def _damps_by_joint(model: mujoco.MjModel, joint: str) -> bool:
    """Whether a joint has a position servo, and no actuator with a derivative gain of its own."""
    actuators = actuators_on(model, "joint", joint)
    gains = np.abs(model.actuator_biasprm[:, 2]) + np.abs(model.actuator_damping)
    return first_servo(model, actuators) is not None and not gains[actuators].any()


def _force_range(actuator: mujoco.MjsActuator) -> np.ndarray | None:
    """The smallest and largest force of an actuator on its joint; None if it is not limited."""
    auto = mujoco.mjtLimited.mjLIMITED_AUTO
    gear, is_motor = abs(actuator.gear[0]), actuator.biastype == mujoco.mjtBias.mjBIAS_NONE
    for limited, bounds, scale in (
        (actuator.forcelimited, actuator.forcerange, gear),
        (actuator.ctrllimited, actuator.ctrlrange, gear * actuator.gainprm[0] * is_motor),
    ):
        if scale > 0.0 and bounds[0] < bounds[1] and limited in (auto, True):
            return np.array(bounds, float) * float(scale)
    return None
