"""Preparing a model for training: free base, servos, feet with sensors, and a home pose.

Masses and joints do not change. Existing servos keep their gains at the joint, unless they are too
weak for legs; other joints get a servo that is computed from the largest torque of their motor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import mujoco
import numpy as np

from simtrain.errors import ConfigError
from simtrain.robots.inspect import Robot, face_forward, inspect
from simtrain.robots.kinematics import (
    at,
    bent_arm,
    close_loops,
    hang_arms,
    hip_height,
    move_foot,
    pitch_joints,
    posed,
    ranges,
    symmetric,
    touching_bodies,
)
from simtrain.robots.read import Source, compiled, refused
from simtrain.robots.shapes import inertia_sizes
from simtrain.robots.standing import (
    CONTROL_STEP,
    add_servos,
    equilibrium,
    move_motors,
    on_ground,
    settled,
    stable_step,
    stiffen,
    targets,
)
from simtrain.robots.tree import Foot, Limb

_WEIGHT_SHARE = 0.7
"""Torque of a joint whose motor has no limit, as a fraction of weight times hip height."""
_LIGHT, _LIGHTEST = 0.01, 0.002
"""Minimum mass of a leg or the base, as a fraction of the robot's, and of an arm, kg."""
_LYING = 0.4
"""Distance from hip to ground of a robot that lies, as a fraction of the straight leg."""
_BALL = 0.01
"""Radius of a foot without a shape, m."""
_CROUCH = {2: 0.965, 4: 0.7}
"""Distance from hip to foot, as a fraction of the straight leg, by the number of legs."""
_STEP_FREQUENCY = {2: 0.445, 4: 0.535}
"""Step frequency of a foot, as a multiple of sqrt(g / h), for two legs and for more."""
_SWING = {2: 1.7, 4: 1.87}
"""Minimum natural frequency of a leg on its servo, as a multiple of the step frequency."""
_SPARSE = 60
"""Degrees of freedom from which MuJoCo's Jacobian is sparse by default. With it, the Newton solver
of MuJoCo 4.0 can diverge on loops."""
_SHORTEST, _SLENDER, _THICKEST = 0.03, 0.1, 0.035
"""Minimum length of a bone, m; its radius as a fraction of its length, and at most, m."""


@dataclass(frozen=True)
class Prepared:
    """A model that can be trained, and the figures for its task."""

    robot: Robot
    spec: mujoco.MjSpec
    home: np.ndarray
    """Positions of the keyframe ``home``, `(nq,)`."""
    ctrl: np.ndarray
    """Targets of the servos that hold it, `(nu,)`."""
    timestep: float
    """The largest physics step at which the servos are stable, s."""
    hip_height: float
    """Height of the hips above the ground, m."""
    touching: tuple[tuple[str, str], ...]
    """Pairs of bodies that touch each other at home; their collisions are disabled."""
    notes: tuple[str, ...]
    """Sentences about added parts and choices."""

    @cached_property
    def model(self) -> mujoco.MjModel:
        """The robot alone, compiled."""
        return compiled(self.spec)

    @property
    def decimation(self) -> int:
        """Physics steps of a control step."""
        return round(CONTROL_STEP / self.timestep)


@refused("the model cannot be prepared")
def prepare(source: Source, *, feet: Sequence[str] = (), end: str | None = None) -> Prepared:
    """Prepare the model; `feet` and `end` name bodies if they are not detected.

    Raises ConfigError if this is not possible.
    """
    notes = list(source.notes)
    spec, robot = face_forward(source, feet, end, notes)
    if move_motors(spec, robot, notes):
        robot = inspect(spec, robot.base, feet, end)
    if spec.keys and not robot.has_keyframe:
        notes.append("its keyframes are not used: none is upright with joints within their ranges")
    for key in list(spec.keys):
        spec.delete(key)
    _check_angles(spec, robot)
    _check_masses(spec, robot)
    balls = [joint.name for joint in spec.joints if joint.type == mujoco.mjtJoint.mjJNT_BALL]
    if balls and not spec.equalities:
        raise ConfigError(f"no servo drives a ball joint; make hinges of {', '.join(balls)}")
    if robot.legs:
        _free_base(spec, robot, notes)
        _add_feet(spec, robot, notes)
        _add_imu(spec, robot)
    else:
        _add_tool(spec, robot)
    _add_looks(spec, robot)
    model = compiled(spec)
    if robot.legs:
        home = _home(model, robot)
        if not (robot.has_keyframe or model.neq):
            home = hang_arms(on_ground(spec), robot, home)
        home = symmetric(model, robot, home, model.jnt_qposadr)
        height = hip_height(model, robot, home)
        bound, rate = _WEIGHT_SHARE * robot.mass * 9.81 * height, swing_rate(robot, height)
    else:
        home, height, rate = bent_arm(model, robot), 0.0, 0.0
        bound = robot.mass * 9.81 * max(float(at(model, home).xanchor[:, 2].max()), 0.1)
    robot = add_servos(spec, robot, bound, notes, home, rate)
    _choose_solver(spec)
    touching = _leave_contacts(spec, home)
    home, ctrl = _at_rest(spec, robot, home)
    if robot.stance == 2:
        robot = stiffen(spec, robot, home, ctrl)
        home, ctrl = _at_rest(spec, robot, home)
    timestep = float(spec.option.timestep)
    spec.add_key(name="home", qpos=home, ctrl=ctrl)
    return Prepared(robot, spec, home, ctrl, timestep, height, touching, tuple(notes))


def step_rate(robot: Robot, hip_height: float) -> float:
    """Steps of each foot a second."""
    return float(_STEP_FREQUENCY[robot.stance] * np.sqrt(9.81 / hip_height))


def swing_rate(robot: Robot, hip_height: float) -> float:
    """The natural frequency with which a leg on its servo follows the steps, rad/s."""
    return 2.0 * np.pi * _SWING[robot.stance] * step_rate(robot, hip_height)


def _choose_solver(spec: mujoco.MjSpec) -> None:
    option = spec.option
    if spec.equalities and compiled(spec).nv >= _SPARSE:
        option.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    option.solver, option.cone = mujoco.mjtSolver.mjSOL_NEWTON, mujoco.mjtCone.mjCONE_PYRAMIDAL
    # The solver does not converge in so few iterations with a larger ratio.
    option.impratio, option.iterations, option.ls_iterations = 1.0, 10, 20
    option.noslip_iterations = 0


def _leave_contacts(spec: mujoco.MjSpec, home: np.ndarray) -> tuple[tuple[str, str], ...]:
    """Exclude pairs of bodies that touch each other at home, in place; the pairs.

    Excluding does not act on the explicit pairs of geoms in `<contact>`, so these are removed.
    """
    model = compiled(spec)
    bodies = sorted(touching_bodies(at(model, home)))
    pairs = tuple((model.body(one).name, model.body(two).name) for one, two in bodies)
    for one, two in pairs:
        spec.add_exclude(bodyname1=one, bodyname2=two)
    for explicit in list(spec.pairs):
        geoms = model.geom(explicit.geomname1), model.geom(explicit.geomname2)
        if tuple(sorted(int(geom.bodyid[0]) for geom in geoms)) in bodies:
            spec.delete(explicit)
    return pairs


def _at_rest(spec: mujoco.MjSpec, robot: Robot, home: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Choose the physics step, in place; positions at rest near `home`, and targets."""
    model = on_ground(spec)
    model.opt.timestep = spec.option.timestep = stable_step(model, home)
    home, torques = equilibrium(model, home)
    ctrl = targets(model, home, symmetric(model, robot, torques, model.jnt_dofadr))
    if any(leg.beside for leg in robot.legs):
        home, ctrl = settled(model, robot, home, ctrl)
    return home, ctrl


def _check_angles(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Raise ConfigError for ranges in degrees that were read as radians, or the reverse."""
    joints = [spec.joint(name) for limb in robot.legs or robot.arms for name in limb.joints]
    ranges = [np.ptp(j.range) for j in joints if j.type == mujoco.mjtJoint.mjJNT_HINGE]
    widest = float(max(ranges, default=0.0))
    widest = np.radians(widest) if spec.compiler.degree else widest
    if 0.0 < widest < 0.2 or 60.0 < widest < 1000.0:
        text = f"the widest range of a joint is {widest:.3g} rad; is its unit right?"
        raise ConfigError(f'{text} It stands in <compiler angle="radian"/>, or "degree"')


def _check_masses(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Raise ConfigError if a base, a leg, or an arm alone, has nearly no mass."""
    model, light = compiled(spec), max(_LIGHT * robot.mass * bool(robot.legs), _LIGHTEST)
    masses = {}
    for limb in robot.legs or robot.arms:
        if bodies := list(dict.fromkeys(spec.joint(name).parent.name for name in limb.joints)):
            masses[", ".join(bodies)] = float(model.body(bodies[0]).subtreemass[0])
    if robot.legs:
        fixed = model.body_weldid == model.body_weldid[model.body(robot.base).id]
        masses[robot.base] = float(model.body_mass[fixed].sum())
    for names, mass in masses.items():
        if mass < light:
            text = f"the mass of {names} is {mass:.2g} of the robot's {robot.mass:.3g} kg"
            raise ConfigError(f"{text}; write an <inertial> in each, or a mass at its geoms")


def _free_base(spec: mujoco.MjSpec, robot: Robot, notes: list[str]) -> None:
    if robot.is_free:
        return
    if joints := spec.body(robot.base).joints:
        text = f"its base {robot.base} must float or be fixed; it has the joint {joints[0].name}"
        raise ConfigError(f"{text}: remove its joints from the model, and a free one is added")
    spec.body(robot.base).add_freejoint(name="floating_base")
    notes.append(f"{robot.base} floats now")


def _add_feet(spec: mujoco.MjSpec, robot: Robot, notes: list[str]) -> None:
    """Name the geoms of the feet, enable their contacts, and add sites and sensors."""
    geoms, model = list(spec.geoms), compiled(spec)
    for geom in geoms:
        geom.priority = 0  # that of the soles marks them, and lets their friction decide
    for foot in robot.feet:
        name, body = f"{foot.name}_sole", spec.body(foot.body)
        soles = [geoms[i] for i in foot.geoms]
        if not soles:
            soles, shape = [body.add_geom(mass=0.0, group=3)], f"a ball of {1e3 * _BALL:.0f} mm"
            if foot.length:
                number, shape = model.body(foot.body).id, "the box of its inertia"
                soles[0].type = mujoco.mjtGeom.mjGEOM_BOX
                soles[0].pos, soles[0].quat = model.body_ipos[number], model.body_iquat[number]
                soles[0].size = np.sqrt(3.0 * inertia_sizes(model, number))
            else:
                soles[0].type, soles[0].pos = mujoco.mjtGeom.mjGEOM_SPHERE, foot.center
                soles[0].size[0] = _BALL
            notes.append(f"{foot.body} has no shape: {shape} is its foot")
        # Others of the same sole, as a box for the other foot alone, would be redundant contacts.
        grounded = [geom for geom in soles if geom.contype & 1 or geom.conaffinity & 1]
        for place, geom in enumerate(grounded or soles):
            geom.name = geom.name or f"{name}_{place}"
            if not grounded:
                geom.conaffinity |= 1
            geom.condim, geom.priority = max(geom.condim, 3), 1
        _forget(spec, name)
        site = body.add_site(name=name, pos=foot.center, group=4)
        mujoco.mju_quatZ2Vec(site.quat, -foot.down)
        sensor = spec.add_sensor(name=f"{name}_contact", type=mujoco.mjtSensor.mjSENS_CONTACT)
        sensor.objtype, sensor.objname = mujoco.mjtObj.mjOBJ_BODY, "world"
        sensor.reftype, sensor.refname = mujoco.mjtObj.mjOBJ_XBODY, foot.body
        found, force, net = 1, 2, 3
        sensor.intprm[:3] = [found | force, net, 1]
        sensor = spec.add_sensor(name=f"{name}_linvel", type=mujoco.mjtSensor.mjSENS_FRAMELINVEL)
        sensor.objtype, sensor.objname = mujoco.mjtObj.mjOBJ_SITE, name


def _forget(spec: mujoco.MjSpec, name: str) -> None:
    """Remove a site and its sensors, in place, from a model that was prepared before."""
    sensors = spec.sensor(f"{name}_contact"), spec.sensor(f"{name}_linvel")
    for old in (spec.site(name), *sensors):
        if old is not None:
            spec.delete(old)


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


def _add_tool(spec: mujoco.MjSpec, robot: Robot) -> None:
    """A site ``tool`` at the end of the arm of a robot with a fixed base."""
    if robot.is_free:
        raise ConfigError("no legs were found; name the bodies of the feet with --feet")
    (arm,) = robot.arms
    if len(arm.joints) < 2:
        raise ConfigError("neither legs nor an arm of two joints were found in the model")
    for joint in [spec.joint(name) for name in arm.joints]:
        if joint.type == mujoco.mjtJoint.mjJNT_SLIDE and not np.ptp(joint.range):
            text = f"{joint.name} slides without end: the base of {robot.base} is neither fixed nor"
            raise ConfigError(f"{text} free; remove the joints of its base, or give them ranges")
    _forget(spec, "tool")
    spec.body(arm.end).add_site(name="tool", pos=robot.tool, group=4)


def _add_looks(spec: mujoco.MjSpec, robot: Robot) -> None:
    """Make all bodies visible, in place; new geoms have no mass and touch nothing.

    In a model without meshes, a body gets a bone between two joints that no shape connects. A body
    without a shape and with other than one bone is drawn as the ellipsoid of its inertia.
    """
    model = compiled(spec)
    bones = [] if spec.meshes else list(_bones(model, robot))
    with_bone = [body for body, *_ in bones]
    for number, body in enumerate(spec.bodies[1:], start=1):
        geoms = list(body.geoms)
        for geom in geoms if all(geom.group > 2 for geom in geoms) else ():
            geom.group = 2
        is_heavy = model.body_mass[number] > 0.002 * model.body_mass.sum()
        if not geoms and is_heavy and with_bone.count(number) != 1:
            look = body.add_geom(type=mujoco.mjtGeom.mjGEOM_ELLIPSOID, mass=0.0, group=2)
            look.pos, look.quat = model.body_ipos[number], model.body_iquat[number]
            look.size = np.sqrt(np.maximum(5.0 * inertia_sizes(model, number), 1e-6))
            look.contype = look.conaffinity = 0
    for number, start, end in bones:
        look = spec.bodies[number].add_geom(type=mujoco.mjtGeom.mjGEOM_CAPSULE, mass=0.0, group=2)
        look.fromto = [*start, *end]
        look.size[0] = min(_SLENDER * float(np.linalg.norm(end - start)), _THICKEST)
        look.contype = look.conaffinity = 0


def _bones(model: mujoco.MjModel, robot: Robot) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Bodies, and the ends of a bone in their frames: joints, feet and the tool of an arm."""
    data, weld = at(model, model.qpos0), model.body_weldid
    ends = [(foot.body, foot.center) for foot in robot.feet] or [(robot.arms[0].end, robot.tool)]
    points = [(data.body(name), place) for name, place in ends]
    places = [(weld[body.id], body.xpos + body.xmat.reshape(3, 3) @ p) for body, p in points]
    moved = [model.joint(name).bodyid[0] for name in robot.joints]
    joints = {body: data.xanchor[model.body_jntadr[body]] for body in moved}
    places += [(weld[model.body_parentid[body]], anchor) for body, anchor in joints.items()]
    for body, end in places:
        start, frame = joints.get(body, data.xpos[body]), data.xmat[body].reshape(3, 3)
        geoms = np.flatnonzero(weld[model.geom_bodyid] == body)
        turned = data.geom_xmat[geoms].reshape(-1, 3, 3)
        center, half = np.split(model.geom_aabb[geoms], 2, axis=1)
        middle = np.einsum("nji,nj->ni", turned, (start + end) / 2.0 - data.geom_xpos[geoms])
        is_open = not (np.abs(middle - center) < half + 0.01).all(axis=1).any()
        if body and is_open and np.linalg.norm(end - start) > _SHORTEST:
            yield int(body), (start - data.xpos[body]) @ frame, (end - data.xpos[body]) @ frame


def _home(model: mujoco.MjModel, robot: Robot) -> np.ndarray:
    """Positions in which the robot stands on bent knees, with flat soles below its hips."""
    data = posed(model, robot)
    data.qpos[:7] = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    mujoco.mj_kinematics(model, data)
    close_loops(data, robot)
    for _ in range(3):  # legs have mass
        mujoco.mj_comPos(model, data)
        center = float(data.subtree_com[0, 0])
        for leg, foot in zip(robot.legs, robot.feet, strict=True):
            _bend(data, robot, leg, foot, center)
    soles = [data.site(f"{foot.name}_sole").xpos[2] - foot.radius for foot in robot.feet]
    data.qpos[2] = -min(soles)
    return np.array(data.qpos)


def _bend(data: mujoco.MjData, robot: Robot, leg: Limb, foot: Foot, center: float) -> None:
    """Solve the joints of a leg for a foot below its hip, or at x = `center` on two legs, in place.

    If the leg is bent in a keyframe, the height of the hip is that of the keyframe, unless the
    robot lies in it. A leg that cannot bend about the lateral axis keeps its pose, except joints at
    the limit of a range without 0.
    """
    model, pitch = data.model, pitch_joints(data, leg)
    if len(pitch) < 2:
        joints, low, high = ranges(model, leg.joints)
        inner = np.clip(data.qpos[joints], 0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high)
        is_at_limit = ((low > 0.0) | (high < 0.0)) & (not robot.has_keyframe)
        data.qpos[joints] = np.where(is_at_limit, inner, data.qpos[joints])
        mujoco.mj_kinematics(model, data)
        return
    sole = data.site(f"{foot.name}_sole").xpos.copy()
    anchors = [data.joint(name).xanchor.copy() for name in pitch]
    hip, last = anchors[0], anchors[-1]
    links = [float(np.linalg.norm(b - a)) for a, b in pairwise(anchors)]
    links.append(float(last[2] - sole[2] if foot.length else np.linalg.norm(last - sole)))
    length, height, is_biped = sum(links), float(hip[2] - sole[2]), robot.stance == 2
    places = [model.joint(name).qposadr[0] for name in leg.joints]
    guesses = [data.qpos[places].copy()]
    if not (robot.has_keyframe and _LYING * length < height < 0.985 * length):
        part = _CROUCH[robot.stance]
        height, knee = part * length, 2.0 * np.arccos(part)
        guesses = [guesses[0].copy() for _ in range(2)]
        signs = [np.sign(data.joint(name).xaxis[1]) for name in pitch[:2]]
        for guess, bent in zip(guesses, (knee, -knee), strict=True):
            turns = signs * np.array([-bent / 2.0, bent])
            guess[[leg.joints.index(name) for name in pitch[:2]]] = turns
    elif not is_biped:
        return
    target = np.array([center if is_biped else hip[0], sole[1], hip[2] - height])
    tries = []
    for guess in guesses:
        at_length = {"guess": guess, "scale": length, "stay": 0.002}
        cost = move_foot(data, robot, foot, leg.joints, target, **at_length)
        forward = data.joint(pitch[1]).xanchor[0] > hip[0]
        tries.append((round(cost, 5), forward != is_biped, tuple(data.qpos[places])))
    data.qpos[places] = min(tries)[2]
    mujoco.mj_kinematics(model, data)
    close_loops(data, robot)
