"""The parts of a robot, by its model: base, legs, feet, arms, servos and symmetry.

Names are not used: positions and the tree of bodies show which limbs are legs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import mujoco
import numpy as np

from simtrain.env.control.transmission import actuators_on
from simtrain.robots.read import Source, compiled
from simtrain.robots.tree import Foot, Limb, Tree

_ALIKE = 0.08
"""Maximum distance of a limb from the mirror image of another, as a fraction of base height."""


@dataclass(frozen=True)
class Servo:
    """The actuator of a joint."""

    joint: str
    kind: Literal["position", "motor", "none"]
    """Of the given model; in a prepared one, "motor" is a servo that was added."""
    stiffness: float
    """N m/rad; 0 without position control."""
    torque: float
    """The largest torque, N m; infinite if the model has no limit."""


@dataclass(frozen=True)
class Robot:
    """Names and figures of a robot."""

    base: str
    """The root of the tree of bodies."""
    is_free: bool
    """Whether the base floats in the model."""
    heading: float
    """The forward direction: an angle from the base's x axis about z, in quarter turns, rad."""
    mass: float
    """Of all bodies, kg."""
    legs: tuple[Limb, ...]
    """Legs in the model's order."""
    feet: tuple[Foot, ...]
    """One foot per leg."""
    arms: tuple[Limb, ...]
    """All other limbs: arms, heads, tails, grippers. Without legs, only the longest."""
    tool: np.ndarray
    """The tool of a robot without legs, in the frame of its arm's end, m."""
    trunk: tuple[str, ...]
    """Joints between the base and limbs on both sides: waists."""
    passive: tuple[str, ...]
    """Joints without an actuator that linkages or other joints move."""
    servos: tuple[Servo, ...]
    """One servo per hinge or slide, in the model's order."""
    partners: dict[str, str]
    """The joint on the other side for each joint; itself for one in the middle."""
    pose: dict[str, np.ndarray]
    """Positions of all joints but the base's in which places were measured: of the first keyframe
    in which the robot is upright, or zeros within the joints' ranges."""
    has_keyframe: bool
    """Whether `pose` is from a keyframe."""

    @property
    def joints(self) -> tuple[str, ...]:
        """Names of all hinges and slides, in the model's order."""
        return tuple(servo.joint for servo in self.servos)

    @property
    def stance(self) -> Literal[2, 4]:
        """2 for a robot on two legs, 4 on more: the key of constants that differ between them."""
        return 2 if len(self.legs) == 2 else 4

    @property
    def leg_joints(self) -> tuple[str, ...]:
        """Names of the joints of legs and trunk, in the model's order."""
        other_joints = {joint for limb in self.arms for joint in limb.joints + limb.beside}
        other_joints |= {joint for leg in self.legs for joint in leg.beside} | set(self.passive)
        return tuple(joint for joint in self.joints if joint not in other_joints)

    def sites(self, model: mujoco.MjModel) -> list[Foot]:
        """The feet in the order of their sites in the prepared model."""
        return sorted(self.feet, key=lambda foot: int(model.site(f"{foot.name}_sole").id))


def inspect(
    spec: mujoco.MjSpec, base: str, feet: Sequence[str] = (), end: str | None = None
) -> Robot:
    """Describe the robot whose tree begins at the body `base`.

    The bodies of the `feet`, and the `end` of an arm, are detected if none is given. Left is where
    y is positive in the frame of the base. If the robot does not face along x, no legs are found on
    both sides of it, or `heading` is set. Raises ConfigError if the model is not a robot.
    """
    tree = Tree(compiled(spec, "the model"), base)
    limbs = tree.limbs()
    legs = tree.legs(limbs, feet)
    others = [limb for limb in limbs if limb not in legs] if legs else [tree.arm(end)]
    limbs = [*legs, *others]
    names = _names_by_place([limb.place for limb in legs]) if legs else []
    soles = [tree.foot(name, leg.end) for name, leg in zip(names, legs, strict=True)]
    partners = _partners(legs, tree.scale) | _partners(others, tree.scale)
    in_limbs = {joint for limb in limbs for joint in limb.joints + limb.beside}
    servos = [_servo(tree.model, joint) for joint in tree.joints()]
    return Robot(
        base=base,
        is_free=bool(tree.model.body_dofnum[tree.base] == 6),
        heading=tree.heading(legs, soles),
        tool=np.zeros(3) if legs else tree.tool(others[0]),
        mass=float(tree.model.body_subtreemass[tree.base]),
        legs=tuple(legs),
        feet=tuple(soles),
        arms=tuple(others),
        trunk=tuple(s.joint for s in servos if s.joint not in in_limbs),
        passive=tuple(sorted(tree.passive)),
        servos=tuple(servos),
        partners={s.joint: partners.get(s.joint, s.joint) for s in servos},
        pose=tree.pose(),
        has_keyframe=tree.has_keyframe,
    )


def face_forward(
    source: Source, feet: Sequence[str], end: str | None, notes: list[str]
) -> tuple[mujoco.MjSpec, Robot]:
    """The model and its robot, with the frame of the base turned so that the robot faces along x.

    If the frame is not in the robot, such as on the ground or beside it, it is moved there. `notes`
    gets a sentence for each, in place. `feet` and `end` are those of `prepare`.
    """
    base, is_moved = source.base, False

    def look(spec: mujoco.MjSpec) -> tuple[mujoco.MjSpec, Robot]:
        return spec, inspect(spec, base, feet, end)

    spec, robot = look(source.spec)
    turned = 0.0
    if not robot.legs:  # if it looks along y, no leg is on the left
        spec, robot = look(_moved(source.spec, base, angle=np.pi / 2.0))
        turned = np.pi / 2.0
    if not robot.legs:  # if the frame is on the ground, no leg is below it
        spec, robot = look(_moved(source.spec, base, origin=_center(source.spec, base)))
        turned, is_moved = 0.0, True
    if not robot.legs:
        return look(source.spec)
    if robot.heading:
        turned -= robot.heading
        spec, robot = look(_moved(spec, base, angle=-robot.heading))
    if not _is_symmetric(robot):
        aside = np.array([0.0, float(np.mean([leg.center[1] for leg in robot.legs])), 0.0])
        centered = look(_moved(spec, base, origin=aside))
        if _is_symmetric(centered[1]):
            (spec, robot), is_moved = centered, True
    if is_moved:
        notes.append(f"the frame of {base} is moved to the middle of the robot")
    if turned:
        notes.append(f"its base is turned by {np.degrees(turned):.0f} degrees to look along x")
    return spec, robot


def _is_symmetric(robot: Robot) -> bool:
    """Whether each leg has a mirror image."""
    return all(robot.partners[name] != name for leg in robot.legs for name in leg.joints)


def _center(spec: mujoco.MjSpec, base: str) -> np.ndarray:
    """The center of mass in the frame of the body `base`, m."""
    model = compiled(spec)
    data, number = mujoco.MjData(model), model.body(base).id
    mujoco.mj_fwdPosition(model, data)
    frame = data.xmat[number].reshape(3, 3)
    return np.asarray((data.subtree_com[number] - data.xpos[number]) @ frame)


def _moved(
    spec: mujoco.MjSpec, base: str, *, angle: float = 0.0, origin: np.ndarray | None = None
) -> mujoco.MjSpec:
    """A copy whose frame of the body `base` lies at `origin`, with its parts turned about z."""
    spec = spec.copy()
    body, model = spec.body(base), compiled(spec)
    quat = np.array([np.cos(angle / 2.0), 0.0, 0.0, np.sin(angle / 2.0)])
    parts = [*body.frames, *body.bodies, *body.geoms, *body.sites, *body.cameras, *body.lights]
    shift = np.zeros(3)
    if origin is not None:
        mujoco.mju_rotVecQuat(shift, -origin, quat)
    frame = body.add_frame(pos=shift, quat=quat)
    for part in parts:
        if part.frame is None:
            part.set_frame(frame)
    if body.explicitinertial:
        number, turned, place = model.body(base).id, np.zeros(4), np.zeros(3)
        mujoco.mju_mulQuat(turned, quat, model.body_iquat[number])
        mujoco.mju_rotVecQuat(place, model.body_ipos[number], quat)
        body.fullinertia = [np.nan, 0.0, 0.0, 0.0, 0.0, 0.0]
        body.ipos, body.iquat, body.inertia = place + shift, turned, model.body_inertia[number]
    return spec


def first_servo(model: mujoco.MjModel, actuators: Sequence[int]) -> int | None:
    """The first of `actuators` that has position control."""
    is_affine = model.actuator_biastype == int(mujoco.mjtBias.mjBIAS_AFFINE)
    is_integrated = model.actuator_dyntype == int(mujoco.mjtDyn.mjDYN_INTEGRATOR)  # of a speed
    has_position = is_affine & ~is_integrated & (model.actuator_biasprm[:, 1] < 0.0)
    return next((i for i in actuators if has_position[i]), None)


def _servo(model: mujoco.MjModel, joint: str) -> Servo:
    """The actuator of a joint; among several, the first with position control counts alone."""
    number = model.joint(joint).id
    bounds = [np.inf]
    if model.jnt_actfrclimited[number]:
        bounds.append(float(np.abs(model.jnt_actfrcrange[number]).max()))
    own = actuators_on(model, "joint", joint)
    servo = first_servo(model, own)
    kind: Literal["position", "motor", "none"] = "motor" if own else "none"
    stiffness = 0.0
    for i in own if servo is None else [servo]:
        gear, gain = abs(float(model.actuator_gear[i, 0])), float(model.actuator_gainprm[i, 0])
        if model.actuator_forcelimited[i]:
            bounds.append(gear * float(np.abs(model.actuator_forcerange[i]).max()))
        if servo is not None:
            kind, stiffness = "position", gain * gear**2
        elif model.actuator_ctrllimited[i] and not (
            model.actuator_gaintype[i] or model.actuator_biastype[i]
        ):
            bounds.append(gear * gain * float(np.abs(model.actuator_ctrlrange[i]).max()))
    return Servo(joint, kind, stiffness, min(bounds))


def _names_by_place(places: Sequence[np.ndarray]) -> list[str]:
    """Names of the feet by their positions."""
    if len(places) == 2:
        return ["left" if place[1] > 0.0 else "right" for place in places]
    middle = np.mean([place[0] for place in places])
    sides = [("F" if x > middle else "R") + ("L" if y > 0.0 else "R") for x, y, _ in places]
    if len(set(sides)) == len(sides):
        return sides
    return [f"leg{i + 1}" for i in range(len(places))]


def _partners(limbs: Sequence[Limb], scale: float) -> dict[str, str]:
    """Joints of limbs that are mirror images of each other about the plane y = 0.

    By the nearest ends or centers of mass: frames may be anywhere on axes, and fingers differ.
    """
    partners: dict[str, str] = {}
    for limb in limbs:
        places = np.array([limb.place, limb.center]) * [1.0, -1.0, 1.0]
        apart = {
            other.joints: float(np.linalg.norm([other.place, other.center] - places, axis=1).min())
            for other in limbs
            if len(other.joints) == len(limb.joints)
        }
        joints = min(apart, key=lambda joints: apart[joints])
        if apart[joints] < _ALIKE * scale:
            partners |= dict(zip(limb.joints, joints, strict=True))
    return partners
