"""Making a model ready for training: free base, servos, feet with sensors, and a pose to begin in.

Nothing is changed in what the robot weighs and how it moves. Servos that are there stay as they
are; joints without one get one from the largest torque of their motors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import mujoco
import numpy as np
from scipy.optimize import least_squares

from simtrain.errors import ConfigError
from simtrain.robots.inspect import Foot, Limb, Robot, Servo, inspect
from simtrain.robots.read import Source, compiled
from simtrain.robots.standing import (
    CONTROL_STEP,
    hold,
    on_ground,
    positions,
    settled,
    stable_step,
    targets,
)

_WEIGHT_SHARE = 0.7
"""Torque of a joint whose motor is not bounded, as a part of weight times height of the hips."""
_BANDWIDTH = 10.0
"""Of servos whose rotors' inertia is not known, Hz; it is also what gives them one."""
_CROUCH = {2: 0.95, 4: 0.7}
"""Distance from hip to foot as a part of the straight leg, by the number of legs."""
_GRAVITY_MARGIN = 1.5
"""Least stiffness of a joint of trunk or arm, by that with which it would just carry its load."""
_ELASTIC = 0.03
"""Damping of a servo by its stiffness, s."""


@dataclass(frozen=True)
class Prepared:
    """A model that can be trained, and the figures that a task is made of."""

    robot: Robot
    spec: mujoco.MjSpec
    home: np.ndarray
    """Positions of the keyframe ``home``, `(nq,)`."""
    ctrl: np.ndarray
    """Targets of the servos that hold it, `(nu,)`."""
    timestep: float
    """The coarsest at which the servos are stable, s."""
    hip_height: float
    """Of the hips above the ground, m."""
    notes: tuple[str, ...]
    """What was added and chosen, in sentences."""

    @property
    def decimation(self) -> int:
        """Physics steps of a control step."""
        return round(CONTROL_STEP / self.timestep)


def prepare(source: Source, *, base: str | None = None, feet: Sequence[str] = ()) -> Prepared:
    """Make the model ready; `base` and `feet` name bodies where they cannot be found.

    Raises ConfigError where that cannot be done.
    """
    spec, notes = source.spec, list(source.notes)
    robot = inspect(spec, base=base, feet=feet or None)
    if not robot.legs:
        raise ConfigError("no legs were found; name the bodies of the feet with --feet")
    _check_angles(spec, robot)
    for key in list(spec.keys):
        spec.delete(key)
    _free_base(spec, robot, notes)
    _add_feet(spec, robot, notes)
    _add_imu(spec, robot)
    _add_looks(spec)
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.iterations, spec.option.ls_iterations = 10, 20
    model = compiled(spec, "the prepared model")
    home = _symmetric(model, robot, _home(model, robot))
    height = _hip_height(model, robot, home)
    robot = _add_servos(spec, robot, height, notes)
    _leave_contacts_at_home(spec, home, notes)
    model = on_ground(spec)
    timestep = stable_step(model, robot, home)
    model.opt.timestep = spec.option.timestep = timestep
    ctrl = targets(
        model, _symmetric(model, robot, positions(model, hold(model, robot, home), home))
    )
    home = settled(model, robot, home, ctrl)
    spec.add_key(name="home", qpos=home, ctrl=ctrl)
    return Prepared(robot, spec, home, ctrl, timestep, height, tuple(notes))


def _check_angles(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Raise ConfigError for ranges in degrees that were read as radians, or the reverse."""
    legs = [spec.joint(name) for leg in robot.legs for name in leg.joints]
    widest = max(float(np.ptp(joint.range)) for joint in legs)
    widest = np.radians(widest) if spec.compiler.degree else widest
    if 0.0 < widest < 0.2 or widest > 60.0:
        text = f"the widest range of a leg's joint is {widest:.3g} rad; is its unit right?"
        raise ConfigError(f'{text} It stands in <compiler angle="radian"/>, or "degree"')


def _free_base(spec: mujoco.MjSpec, robot: Robot, notes: list[str]) -> None:
    body = spec.body(robot.base)
    if not any(joint.type == mujoco.mjtJoint.mjJNT_FREE for joint in body.joints):
        if body.joints:
            raise ConfigError(
                f"the base {robot.base!r} must float or be fixed; it has other joints"
            )
        body.add_freejoint(name="floating_base")
        notes.append(f"{robot.base} floats now")


def _add_feet(spec: mujoco.MjSpec, robot: Robot, notes: list[str]) -> None:
    """Name the geoms of the feet, let them touch the ground, and add sites and sensors."""
    geoms = list(spec.geoms)
    for foot in robot.feet:
        name, body = f"{foot.name}_sole", spec.body(foot.body)
        soles = [geoms[i] for i in foot.geoms]
        if not soles:
            radius = foot.radius or 0.01
            soles = [body.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, pos=foot.center)]
            soles[0].size, soles[0].mass, soles[0].group = [radius, 0.0, 0.0], 0.0, 3
            notes.append(f"{foot.body} has no shape: a ball of {1e3 * radius:.0f} mm is its foot")
        for place, geom in enumerate(soles):
            geom.name = geom.name or f"{name}_{place}"
            if not (geom.contype & 1 or geom.conaffinity & 1):
                geom.conaffinity |= 1
            geom.condim, geom.priority = max(geom.condim, 3), 1
        site = body.add_site(name=name, pos=foot.center, group=4)
        mujoco.mju_quatZ2Vec(site.quat, -foot.down)
        sensor = spec.add_sensor(name=f"{name}_contact", type=mujoco.mjtSensor.mjSENS_CONTACT)
        sensor.objtype, sensor.objname = mujoco.mjtObj.mjOBJ_BODY, "world"
        sensor.reftype, sensor.refname = mujoco.mjtObj.mjOBJ_XBODY, foot.body
        found, force, net = 1, 2, 3
        sensor.intprm[:3] = [found | force, net, 1]
        sensor = spec.add_sensor(name=f"{name}_linvel", type=mujoco.mjtSensor.mjSENS_FRAMELINVEL)
        sensor.objtype, sensor.objname = mujoco.mjtObj.mjOBJ_SITE, name


def _add_imu(spec: mujoco.MjSpec, robot: Robot) -> None:
    """A site in the frame of the base, and sensors of the robot's self-collision."""
    if spec.site("imu") is None:
        spec.body(robot.base).add_site(name="imu", group=4)
    name = "self_collision"
    if spec.sensor(name) is None:
        sensor = spec.add_sensor(name=name, type=mujoco.mjtSensor.mjSENS_CONTACT)
        sensor.objtype = sensor.reftype = mujoco.mjtObj.mjOBJ_XBODY
        sensor.objname = sensor.refname = robot.base
        sensor.intprm[:3] = [1, 0, 1]


def _add_looks(spec: mujoco.MjSpec) -> None:
    """Let all bodies be seen: by what collides, or else by the ellipsoid of their inertia."""
    model = compiled(spec, "the prepared model")
    for number, body in enumerate(spec.bodies[1:], start=1):
        geoms = list(body.geoms)
        for geom in geoms if all(geom.group > 2 for geom in geoms) else ():
            geom.group = 2
        if not geoms and model.body_mass[number] > 0.002 * model.body_mass.sum():
            look = body.add_geom(type=mujoco.mjtGeom.mjGEOM_ELLIPSOID)
            look.pos, look.quat = model.body_ipos[number], model.body_iquat[number]
            x, y, z = model.body_inertia[number] * 2.5 / model.body_mass[number]
            squares = np.array([y + z - x, x + z - y, x + y - z])
            look.size = np.sqrt(np.maximum(squares, 1e-6))
            look.contype = look.conaffinity = 0
            look.mass, look.group = 0.0, 2


def _home(model: mujoco.MjModel, robot: Robot) -> np.ndarray:
    """Positions in which the robot stands on bent knees, its soles flat and below its hips."""
    data = mujoco.MjData(model)
    for name, value in robot.pose.items():
        data.joint(name).qpos[:] = value
    mujoco.mj_kinematics(model, data)
    for leg, foot in zip(robot.legs, robot.feet, strict=True):
        _bend(model, data, robot, leg, foot)
    mujoco.mj_kinematics(model, data)
    low = min(_sole(model, data, foot)[2] for foot in robot.feet)
    base = model.jnt_qposadr[model.body(robot.base).jntadr[0]]
    data.qpos[base : base + 2] = 0.0
    data.qpos[base + 2] -= low
    qpos: np.ndarray = data.qpos.copy()
    return qpos


def _sole(model: mujoco.MjModel, data: mujoco.MjData, foot: Foot) -> np.ndarray:
    """The place where a foot touches the ground, in the world."""
    place: np.ndarray = data.site(f"{foot.name}_sole").xpos - [0.0, 0.0, foot.radius]
    return place


def _bend(model: mujoco.MjModel, data: mujoco.MjData, robot: Robot, leg: Limb, foot: Foot) -> None:
    """Solve the joints of a leg for its foot below its hip, in place."""
    joints = [model.joint(name) for name in leg.joints]
    places = np.array([joint.qposadr[0] for joint in joints])
    rotation = data.body(robot.base).xmat.reshape(3, 3)
    pitch = [j for j in joints if abs(data.xaxis[j.id] @ rotation[:, 1]) > 0.7]
    site = data.site(f"{foot.name}_sole")
    if len(pitch) < 2:
        return
    anchors = [data.xanchor[j.id].copy() for j in pitch] + [site.xpos.copy()]
    ankle = len(anchors) - (2 if foot.length and len(pitch) > 2 else 1)
    links = [np.linalg.norm(b - a) for a, b in pairwise(anchors)]
    straight, drop = sum(links[:ankle]), sum(links[ankle:])
    part = _CROUCH.get(len(robot.legs), _CROUCH[4])
    now = np.linalg.norm(anchors[ankle] - anchors[0])
    if robot.has_keyframe and now < 0.985 * straight:
        return  # the pose of its keyframe
    bounds = np.array([j.range if model.jnt_limited[j.id] else (-np.pi, np.pi) for j in joints])
    target = site.xpos.copy()
    target -= rotation[:, 0] * ((target - anchors[0]) @ rotation[:, 0])
    if foot.length:  # the middle of the sole is ahead of the ankle
        target += rotation[:, 0] * min(
            0.25 * foot.length, (site.xpos - anchors[ankle]) @ rotation[:, 0]
        )
    target -= rotation[:, 2] * ((target - anchors[0]) @ rotation[:, 2] + part * straight + drop)
    begin = data.qpos[places].copy()

    def residuals(q: np.ndarray, guess: np.ndarray) -> np.ndarray:
        data.qpos[places] = q
        mujoco.mj_kinematics(model, data)
        away = (site.xpos - target) / straight
        tilt = site.xmat.reshape(3, 3)[:, 2] @ rotation[:, :2] * bool(foot.length)
        return np.concatenate((10.0 * away, 10.0 * tilt, 0.02 * (q - guess)))

    knee = leg.joints.index(pitch[1].name)
    tries = []
    for sign in (-1.0, 1.0):
        bent = 2.0 * np.arccos(min(part, 1.0)) * sign
        low, high = bounds[knee]
        if not low - 0.1 < bent < high + 0.1:
            continue
        guess = begin.copy()
        guess[knee], guess[leg.joints.index(pitch[0].name)] = bent, -bent / 2.0
        guess = np.clip(guess, bounds[:, 0] + 1e-3, bounds[:, 1] - 1e-3)
        found = least_squares(residuals, guess, bounds=tuple(bounds.T), args=(guess,))
        residuals(found.x, guess)
        ahead = (data.xanchor[pitch[1].id] - anchors[0]) @ rotation[:, 0]
        wanted = ahead if len(robot.legs) == 2 else -ahead
        tries.append((round(float(found.cost), 3), wanted < 0.0, found.x))
    best = min(tries, key=lambda t: t[:2], default=None)
    data.qpos[places] = begin if best is None else best[2]
    mujoco.mj_kinematics(model, data)


def _symmetric(model: mujoco.MjModel, robot: Robot, qpos: np.ndarray) -> np.ndarray:
    """`qpos` with joints where they and their mirror images are on the mean, `(nq,)`."""
    signs = mirror_signs(model, robot)
    even = qpos.copy()
    for name, other in robot.partners.items():
        if name != other:
            here, there = (model.joint(n).qposadr[0] for n in (name, other))
            even[here] = (qpos[here] + signs[name] * qpos[there]) / 2.0
    return even


def mirror_signs(model: mujoco.MjModel, robot: Robot) -> dict[str, float]:
    """1 where a joint and its partner turn alike in a mirror, else -1."""
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    rotation = data.body(robot.base).xmat.reshape(3, 3)
    mirror = rotation @ np.diag([-1.0, 1.0, -1.0]) @ rotation.T  # of a pseudo-vector
    axes = {name: data.xaxis[model.joint(name).id] for name in robot.joints}
    return {
        name: float(np.sign((mirror @ axes[name]) @ axes[other]) or 1.0)
        for name, other in robot.partners.items()
    }


def _hip_height(model: mujoco.MjModel, robot: Robot, home: np.ndarray) -> float:
    """Mean height of the legs' first pitch joints, or of their first joints, m."""
    data = mujoco.MjData(model)
    data.qpos[:] = home
    mujoco.mj_kinematics(model, data)
    lateral = data.body(robot.base).xmat.reshape(3, 3)[:, 1]
    heights = []
    for leg in robot.legs:
        ids = [model.joint(name).id for name in leg.joints]
        pitch = [i for i in ids if abs(data.xaxis[i] @ lateral) > 0.7]
        heights.append(data.xanchor[(pitch or ids)[0]][2])
    return float(np.mean(heights))


def _add_servos(spec: mujoco.MjSpec, robot: Robot, height: float, notes: list[str]) -> Robot:
    """Position servos for joints without; and bounds for torques that have none."""
    bound = _WEIGHT_SHARE * robot.mass * 9.81 * height
    needed = _gravity(spec, robot)
    servos, added = [], []
    for servo in robot.servos:
        joint = spec.joint(servo.joint)
        torque = servo.torque if servo.torque < 4.0 * bound else bound
        if servo.kind == "position":
            servos.append(replace(servo, torque=torque))
            continue
        for actuator in [a for a in spec.actuators if a.target == servo.joint]:
            spec.delete(actuator)
        is_loose = any(servo.joint in leg.beside for leg in robot.legs)
        if is_loose and servo.kind == "none":
            servos.append(replace(servo, torque=0.0))
            continue
        stiffness = max(torque, _GRAVITY_MARGIN * needed.get(servo.joint, 0.0))
        armature = stiffness / (2.0 * np.pi * _BANDWIDTH) ** 2
        if joint.armature < 0.1 * armature:
            joint.armature = armature
        damping = max(_ELASTIC * stiffness - float(joint.damping[0]), 0.0)
        actuator = spec.add_actuator(name=servo.joint, target=servo.joint)
        actuator.trntype = mujoco.mjtTrn.mjTRN_JOINT
        actuator.set_to_position(kp=stiffness, kv=damping)
        actuator.forcelimited, actuator.forcerange = 1, [-torque, torque]
        servos.append(Servo(servo.joint, "position", stiffness, torque))
        added.append(servo.joint)
    for actuator in spec.actuators:
        actuator.ctrllimited, actuator.inheritrange = 0, 0.0
    if added:
        text = f"{len(added)} joints got position servos: the largest torque bends one by 1 rad"
        notes.append(f"{text}, and a rotor of unknown inertia has that of {_BANDWIDTH:.0f} Hz")
    return replace(robot, servos=tuple(servos))


def _gravity(spec: mujoco.MjSpec, robot: Robot) -> dict[str, float]:
    """With which stiffness joints would just carry what stands on them, N m/rad; legs apart."""
    model = compiled(spec, "the prepared model")
    data = mujoco.MjData(model)
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    legs = {name for leg in robot.legs for name in leg.joints}
    needed = {}
    for name in set(robot.joints) - legs:
        joint = model.joint(name).id
        body = model.jnt_bodyid[joint]
        arm = float(np.linalg.norm(data.subtree_com[body] - data.xanchor[joint]))
        needed[name] = 9.81 * float(model.body_subtreemass[body]) * arm
    return needed


def _leave_contacts_at_home(spec: mujoco.MjSpec, home: np.ndarray, notes: list[str]) -> None:
    """Exclude pairs of the robot's bodies that touch each other as it stands."""
    model = compiled(spec, "the prepared model")
    data = mujoco.MjData(model)
    data.qpos[:] = home
    mujoco.mj_forward(model, data)
    pairs = {
        tuple(sorted(int(model.geom_bodyid[g]) for g in contact.geom)) for contact in data.contact
    }
    for one, other in sorted(pairs):
        if one > 0:
            a, b = model.body(one).name, model.body(other).name
            spec.add_exclude(bodyname1=a, bodyname2=b)
            notes.append(f"{a} and {b} touch each other as it stands; their contact is left out")
