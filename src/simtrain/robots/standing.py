"""Statics and simulation of a prepared robot, for its servos and its physics step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import mujoco
import numpy as np
from scipy.optimize import brentq

from simtrain.env.control.transmission import actuators_on, joint_actuators
from simtrain.errors import ConfigError
from simtrain.robots.inspect import Robot, first_servo
from simtrain.robots.kinematics import (
    at,
    close_loops,
    down_to,
    inertias,
    posed,
    symmetric,
    transmitted,
)
from simtrain.robots.read import compiled
from simtrain.robots.tree import Tree

CONTROL_STEP = 0.02
"""Time between two actions, s."""
FLOOR: dict[str, Any] = dict.fromkeys(("group", "priority", "margin", "gap"), 0)
FLOOR |= {"size": [0.0, 0.0, 0.05], "contype": 1, "conaffinity": 1, "condim": 3}
FLOOR |= {"friction": [1, 0.005, 0.0001], "solref": [0.02, 1], "solimp": [0.9, 0.95, 0.001, 0.5, 2]}
"""Attributes of the floor: MuJoCo's own defaults, not those of the model's main class."""
_STEPS = (0.01, 0.005, 0.004, 0.0025, 0.002, 0.001)
"""Physics steps to choose from, s; each divides a control step."""
_SAME_MOTION = 0.1
"""Maximum deviation of joints from their motion with the smallest physics step, rad."""
_FALLS, _FALL_S, _RANDOM_TARGETS, _FALLS_FASTER = 20, 1.2, 0.5, 2.0
"""Robots that fall, for how long, s; standard deviation of their targets, rad; maximum speed,
divided by that with the smallest physics step."""
_REST_S, _CORRECTIONS = 0.5, 10
"""Time to come to rest after a change of the targets, s, and the number of changes."""
_BANDWIDTH = 10.0
"""Bandwidth of servos whose rotor inertia is not known, Hz; it determines the inertia."""
_GRAVITY_MARGIN = 3.0
"""Minimum stiffness of a joint of trunk or arm, as a multiple of that which just carries its load;
two in a row need twice as much."""
_ELASTIC = 0.03
"""Minimum damping of a servo divided by its stiffness, s."""
_DAMPING_RATIO = 0.7
"""Minimum damping ratio of a servo and what it moves."""
_SAG = 0.1
"""Angle by which a joint gives way at home if one of two legs carries the robot, rad."""
_WEAK = {2: 0.25, 4: 0.9}
"""Minimum stiffness of the model's own servos, as a fraction of that with which legs follow the
steps. If one is weaker, those of all legs are replaced; two legs walk on soft ones, too."""
_GEARED = 0.05
"""Minimum turn of a joint by that of a motor that drives it."""
_FIRM = 3.0
"""Largest stiffness for which a missing rotor inertia is computed, by the largest torque, 1/rad."""
_FREE, _SLIDE = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_SLIDE)


def on_ground(spec: mujoco.MjSpec) -> mujoco.MjModel:
    """The model of `spec` on a plane, if it floats; what is not stable ends with NaN."""
    spec = spec.copy()
    if spec.bodies[1].joints and spec.bodies[1].joints[0].type == mujoco.mjtJoint.mjJNT_FREE:
        spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, **FLOOR)
    model = compiled(spec)
    model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_AUTORESET)
    return model


class Guided:
    """A simulation from `home`; a floating base only moves vertically, or hangs `lift` above.

    The model contains one robot, so its base has the first joint.
    """

    def __init__(self, model: mujoco.MjModel, home: np.ndarray, *, lift: float = 0.0) -> None:
        self.model, self.data = model, mujoco.MjData(model)
        hinges = model.jnt_type >= _SLIDE
        self.joints, self.dofs = model.jnt_qposadr[hinges], model.jnt_dofadr[hinges]
        self._floats, self._rises = model.jnt_type[0] == _FREE, not lift
        self.data.qpos[:] = home
        if self._floats:
            self.data.qpos[2] += lift

    def run(self, seconds: float, ctrl: np.ndarray) -> Iterator[None]:
        """Simulate, and yield after each step."""
        data, pose = self.data, self.data.qpos[:7].copy()
        data.ctrl[:] = ctrl
        for _ in range(round(seconds / self.model.opt.timestep)):
            mujoco.mj_step(self.model, data)
            if self._floats:
                height, speed = data.qpos[2], data.qvel[2]
                data.qpos[:7], data.qvel[:6] = pose, 0.0
                if self._rises:
                    data.qpos[2], data.qvel[2] = height, speed
            yield


def equilibrium(model: mujoco.MjModel, home: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`home` at the height where the ground carries the weight, and the torques that hold it.

    By inverse dynamics at rest, independent of the strength of servos: `(nq,)`, `(nv,)`.
    """
    data = mujoco.MjData(model)
    data.qpos[:] = home

    def excess(height: float) -> float:
        data.qpos[2] = height
        mujoco.mj_inverse(model, data)
        return float(data.qfrc_inverse[2])

    if model.jnt_type[0] == _FREE:
        low, high = 0.9 * home[2], 1.1 * home[2]
        is_between = excess(low) < 0.0 < excess(high)
        data.qpos[2] = brentq(excess, low, high, xtol=1e-6) if is_between else home[2]
    mujoco.mj_inverse(model, data)
    return data.qpos.copy(), data.qfrc_inverse.copy()


def settled(
    model: mujoco.MjModel, robot: Robot, home: np.ndarray, ctrl: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where linkages and springs come to rest while driven joints stay at `home`, and targets.

    By simulation, which corrects `ctrl` until the driven joints are at home: `(nq,)`, `(nu,)`. Feet
    that stick to the ground hold the legs apart; both sides get the mean.
    """
    guided, ctrl = Guided(model, home), ctrl.copy()
    actuators, joints = joint_actuators(model)
    places = model.jnt_qposadr[joints]
    for _ in range(_CORRECTIONS):
        for _ in guided.run(_REST_S, ctrl):
            pass
        ctrl[actuators] += home[places] - guided.data.qpos[places]
    if not np.isfinite(guided.data.qpos).all():
        raise ConfigError("its linkages are not stable at rest; remove those of light parts")
    of_joints = np.zeros(model.njnt)
    of_joints[joints] = ctrl[actuators]
    ctrl[actuators] = symmetric(model, robot, of_joints, np.arange(model.njnt))[joints]
    data = at(model, symmetric(model, robot, guided.data.qpos, model.jnt_qposadr))
    close_loops(data, robot)
    return data.qpos.copy(), ctrl


def targets(
    model: mujoco.MjModel, qpos: np.ndarray, torques: np.ndarray | None = None
) -> np.ndarray:
    """Targets of position servos with which they exert `torques` at `qpos`, `(nu,)`.

    Other actuators, such as those of tendons, exert no force there.
    """
    length, gain = at(model, qpos).actuator_length, model.actuator_gainprm[:, 0]
    own = model.actuator_biasprm[:, 0] + model.actuator_biasprm[:, 1] * length
    acts = (model.actuator_biastype == int(mujoco.mjtBias.mjBIAS_AFFINE)) & (gain != 0.0)
    ctrl: np.ndarray = np.where(acts, -own / np.where(acts, gain, 1.0), 0.0)
    if torques is not None:
        actuators, joints = joint_actuators(model)
        stiffness = model.actuator_gainprm[actuators, 0] * model.actuator_gear[actuators, 0]
        ctrl[actuators] += torques[model.jnt_dofadr[joints]] / stiffness
    return ctrl


def move_motors(spec: mujoco.MjSpec, robot: Robot, notes: list[str]) -> bool:
    """Let motors beside the legs act on the joints that they drive by gears or rods, in place.

    A policy then moves the joints themselves. Each gets the torque that the motors can exert on it;
    the rotors stay where they are. Whether there are any; `notes` gets a sentence.
    """
    model = compiled(spec)
    tree = Tree(model, robot.base)
    above = {body for leg in robot.legs for body in tree.path(model.body(leg.end).id)}
    driven = set(joint_actuators(model)[1].tolist())
    hinges = np.flatnonzero(model.jnt_type >= _SLIDE)
    in_legs = np.isin(model.jnt_bodyid[hinges], list(above))
    joints = [int(j) for j in hinges[in_legs] if j not in driven]
    motors = [int(j) for j in hinges[~in_legs] if j in driven]
    if not (joints and motors and spec.equalities):
        return False
    turns = transmitted(model, posed(model, robot).qpos, joints, motors)
    is_moved = np.abs(turns).max(axis=1) > _GEARED
    torques = {servo.joint: servo.torque for servo in robot.servos}
    of_motors = np.array([torques[model.joint(motor).name] for motor in motors])
    back = np.abs(np.linalg.pinv(turns[is_moved], rcond=1e-3))
    moved = [model.joint(joints[row]).name for row in np.flatnonzero(is_moved)]
    actuators = list(spec.actuators)
    for name, share in zip(moved, back.T, strict=True):
        torque = float(share[share > 0.0] @ of_motors[share > 0.0])
        motor = _new_actuator(spec, name)
        if np.isfinite(torque):
            motor.forcelimited, motor.forcerange = 1, [-torque, torque]
    for column in np.flatnonzero((np.abs(turns) > _GEARED).any(axis=0)):
        name = model.joint(motors[column]).name
        for number in actuators_on(model, "joint", name):
            _remove(spec, actuators[number], spec.joint(name))
    if moved:
        notes.append(f"motors beside the legs act on what they drive: {', '.join(moved)}")
    return bool(moved)


def add_servos(
    spec: mujoco.MjSpec,
    robot: Robot,
    bound: float,
    notes: list[str],
    home: np.ndarray,
    rate: float,
) -> Robot:
    """Position servos for joints without one, in place; `bound` is for unlimited torques, N m.

    Joints of legs get a natural frequency of at least `rate` at `home`, rad/s.
    """
    model = compiled(spec)
    loads, moved = _loads(model), _even_inertias(model, robot, home)
    least = _WEAK[robot.stance] * rate**2
    in_legs = {name for leg in robot.legs for name in leg.joints}
    own_legs = [s for s in robot.servos if s.joint in in_legs and s.kind == "position"]
    is_weak = any(servo.stiffness < least * moved[servo.joint] for servo in own_legs)
    servos, added, rotors, beside, actuators = [], [], 0, 0, list(spec.actuators)
    for servo in robot.servos:
        joint = spec.joint(servo.joint)
        torque = servo.torque if servo.torque < 4.0 * bound else bound
        own = {i: actuators[i] for i in actuators_on(model, "joint", servo.joint)}
        if servo.kind == "position" and not (is_weak and servo.joint in in_legs):
            number = first_servo(model, list(own))
            assert number is not None
            kept = own.pop(number)
            if kept.gear[0] not in (0.0, 1.0):
                _remove_gear(kept)
            for number, actuator in own.items():
                # A velocity servo beside it is damping.
                damping = max(-float(model.actuator_biasprm[number, 2]), 0.0)
                joint.damping[0] += damping * actuator.gear[0] ** 2
                _remove(spec, actuator, joint)
            beside += len(own)
            if not joint.armature and not kept.armature:
                firm, rotors = min(servo.stiffness, _FIRM * torque), rotors + 1
                joint.armature = firm / (2.0 * np.pi * _BANDWIDTH) ** 2
            servos.append(replace(servo, torque=torque))
            continue
        for actuator in own.values():
            _remove(spec, actuator, joint)
        in_loop = spec.equalities and any(servo.joint in leg.beside for leg in robot.legs)
        if (in_loop or servo.joint in robot.passive) and servo.kind == "none":
            servos.append(replace(servo, torque=0.0))
            continue
        if not torque > 0.0:
            raise ConfigError(f"the motor of {servo.joint} has no torque: write its gear or range")
        inertia = moved[servo.joint]
        swing = inertia * rate**2 if servo.joint in robot.leg_joints else 0.0
        load = 0.0 if servo.joint in in_legs else _GRAVITY_MARGIN * loads[servo.joint]
        stiffness = float(max(torque, load, swing))
        armature = stiffness / (2.0 * np.pi * _BANDWIDTH) ** 2
        if joint.armature < 0.1 * armature:
            joint.armature = armature
        actuator = _new_actuator(spec, servo.joint)
        _set_gains(actuator, stiffness, inertia, joint)
        actuator.forcelimited, actuator.forcerange = 1, [-torque, torque]
        servos.append(replace(servo, kind="motor", stiffness=stiffness, torque=torque))
        added.append(servo.joint)
    for actuator in spec.actuators:
        if actuator.trntype == mujoco.mjtTrn.mjTRN_JOINT:
            actuator.ctrllimited, actuator.inheritrange = 0, 0.0
    if is_weak:
        notes.append("a servo of the legs is too weak to follow their steps: all are replaced")
    if beside:
        notes.append(f"{beside} actuators beside a position servo of their joint are removed")
    if rotors:
        text = f"{rotors} joints with servos had no rotor inertia"
        notes.append(f"{text}: they have that of {_BANDWIDTH:.0f} Hz")
    if added:
        text = f"{len(added)} joints got servos: the largest torque bends one by at most 1 rad"
        notes.append(f"{text}, and a rotor of unknown inertia has that of {_BANDWIDTH:.0f} Hz")
    return replace(robot, servos=tuple(servos))


def stiffen(spec: mujoco.MjSpec, robot: Robot, home: np.ndarray, ctrl: np.ndarray) -> Robot:
    """Make added servos down to the knees so stiff that one of two legs can carry, in place."""
    model = compiled(spec)
    data, moved = at(model, home), _even_inertias(model, robot, home)
    servos, sag = {servo.joint: servo for servo in robot.servos}, {}
    for name in {name for leg in robot.legs for name in down_to(data, leg, 2)}:
        if servos[name].kind != "position" and servos[name].torque > 0.0:
            place = model.jnt_qposadr[model.joint(name).id]
            sag[name] = 2.0 * abs(float(ctrl[model.actuator(name).id] - home[place]))
    for name in sag:
        most = max(sag[name], sag.get(robot.partners[name], 0.0))
        stiffness = servos[name].stiffness * max(1.0, most / _SAG)
        servos[name] = replace(servos[name], stiffness=stiffness)
        _set_gains(spec.actuator(name), stiffness, moved[name], spec.joint(name))
    return replace(robot, servos=tuple(servos.values()))


def _even_inertias(model: mujoco.MjModel, robot: Robot, home: np.ndarray) -> dict[str, float]:
    """`inertias`, the larger one of both sides, so that both sides get the same servo."""
    moved = inertias(model, home)
    return {name: max(moved[name], moved[other]) for name, other in robot.partners.items()}


def _new_actuator(spec: mujoco.MjSpec, joint: str) -> mujoco.MjsActuator:
    """An actuator of a joint, added in place, without the defaults of the model's main class."""
    actuator = spec.add_actuator(name=joint, target=joint)
    actuator.trntype = mujoco.mjtTrn.mjTRN_JOINT
    actuator.gear = [1.0, *np.zeros(5)]
    actuator.armature, actuator.damping = 0.0, np.zeros_like(actuator.damping)
    actuator.delay, actuator.nsample = 0.0, 0
    actuator.actlimited = actuator.ctrllimited = actuator.forcelimited = 0
    return actuator


def _set_gains(
    actuator: mujoco.MjsActuator, stiffness: float, inertia: float, joint: mujoco.MjsJoint
) -> None:
    """Make a position servo of an actuator, damped with what it moves, in place."""
    damping = max(_ELASTIC * stiffness, 2.0 * _DAMPING_RATIO * np.sqrt(stiffness * inertia))
    actuator.set_to_position(kp=stiffness, kv=max(damping - float(joint.damping[0]), 0.0))


def _remove(spec: mujoco.MjSpec, actuator: mujoco.MjsActuator, joint: mujoco.MjsJoint) -> None:
    """Delete an actuator and its sensors, in place; the inertia of its rotor stays in the joint."""
    for sensor in list(spec.sensors):
        if sensor.objtype == mujoco.mjtObj.mjOBJ_ACTUATOR and sensor.objname == actuator.name:
            spec.delete(sensor)
    joint.armature += actuator.armature * actuator.gear[0] ** 2
    spec.delete(actuator)


def _remove_gear(actuator: mujoco.MjsActuator) -> None:
    """Give a servo the gear 1, in place, so that its target is a position of the joint."""
    gear = float(actuator.gear[0])
    actuator.gear[0] = 1.0
    actuator.gainprm[0] *= gear**2
    is_ratio = actuator.biasprm[2] > 0.0  # of damping, without a unit
    actuator.biasprm[:3] *= np.array([gear, gear**2, 1.0 if is_ratio else gear**2])
    actuator.armature *= gear**2
    actuator.damping *= gear**2
    actuator.forcerange = np.sort(actuator.forcerange * gear)
    actuator.ctrlrange = np.sort(actuator.ctrlrange / gear)
    actuator.actrange = np.sort(actuator.actrange / gear)


def _loads(model: mujoco.MjModel) -> dict[str, float]:
    """The stiffness with which each joint just carries its load, N m/rad."""
    data, bodies = at(model, model.qpos0), model.jnt_bodyid
    arms = np.linalg.norm(data.subtree_com[bodies] - data.xanchor, axis=1)
    loads = 9.81 * model.body_subtreemass[bodies] * arms
    return {model.joint(number).name: float(load) for number, load in enumerate(loads)}


def stable_step(model: mujoco.MjModel, home: np.ndarray) -> float:
    """The largest physics step with which the robot moves in the same way as with the smallest.

    Its joints move in the same way, and it is not thrown up when it falls.
    """
    fine, fastest = _motion(model, home, _STEPS[-1]), _falling_speed(model, home, _STEPS[-1])
    for timestep in _STEPS:
        apart = np.abs(_motion(model, home, timestep) - fine).max()  # or not finite
        if apart < _SAME_MOTION and _falling_speed(model, home, timestep) < _FALLS_FASTER * fastest:
            return timestep
    text = "the simulation is not stable at 1 ms; lower the stiffness of servos (kp), or remove"
    raise ConfigError(f"{text} linkages of light parts")


def _falling_speed(model: mujoco.MjModel, home: np.ndarray, timestep: float) -> float:
    """The largest speed of the base, in any direction, of robots with random targets that fall."""
    model.opt.timestep = timestep
    data, random, ctrl = mujoco.MjData(model), np.random.default_rng(0), targets(model, home)
    largest, number = 0.0, round(_FALL_S / CONTROL_STEP)
    for _ in range(_FALLS):
        mujoco.mj_resetData(model, data)
        data.qpos[:] = home
        for _ in range(number):
            data.ctrl[:] = ctrl + random.normal(0.0, _RANDOM_TARGETS, model.nu)
            mujoco.mj_step(model, data, round(CONTROL_STEP / timestep))
            if not np.isfinite(data.qvel).all():
                return np.inf
            largest = max(largest, float(np.abs(data.qvel[:6]).max()))
    return largest


def _motion(model: mujoco.MjModel, home: np.ndarray, timestep: float) -> np.ndarray:
    """Positions of the joints while the robot stands, and while it kicks in the air, rad."""
    model.opt.timestep = timestep
    every, seen = round(CONTROL_STEP / timestep), []
    for lift in (0.0, 1.0):
        guided = Guided(model, home, lift=lift)
        guided.data.qvel[guided.dofs] = lift
        for i, _ in enumerate(guided.run(0.5, targets(model, home)), start=1):
            if i % every == 0:
                seen.append(guided.data.qpos[guided.joints].copy())
    return np.array(seen)
