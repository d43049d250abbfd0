"""What a robot is, by its model alone: base, legs, feet, arms, servos and symmetry.

No name means anything here: places and the tree of bodies tell which limbs are legs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import mujoco
import numpy as np

from simtrain.errors import ConfigError, did_you_mean
from simtrain.robots.read import compiled
from simtrain.robots.shapes import CAPSULE, SPHERE, collides, geoms_of, inertia_box, surface

_BALL = int(mujoco.mjtJoint.mjJNT_BALL)  # the types after it are slides and hinges
_IN_PARENT = int(mujoco.mjtTrn.mjTRN_JOINTINPARENT)  # the types up to it act on joints
_LOW = 0.12
"""How far above the lowest a limb may end and be a leg, as a part of the base's height."""
_ALIKE = 0.08
"""How far a limb may be from the mirror image of another, as a part of the base's height."""


@dataclass(frozen=True)
class Servo:
    """What drives a joint."""

    joint: str
    kind: Literal["position", "motor", "none"]
    stiffness: float
    """N m/rad; 0 for those without position control."""
    torque: float
    """The largest, N m; infinite where the model gives no bound."""


@dataclass(frozen=True)
class Foot:
    """What a leg stands on."""

    name: str
    """By its place: ``FL``, ``FR``, ``RL``, ``RR``, ``left``, ``right``, or ``leg3``."""
    body: str
    geoms: tuple[int, ...]
    """Ids of the geoms that may touch the ground."""
    center: np.ndarray
    """The middle of the sole, or of the ball that it is, in the frame of the body, m."""
    down: np.ndarray
    """The direction of the ground in the frame of the body, when the foot stands flat."""
    radius: float
    """Distance from `center` to the ground: that of a ball, and 0 for a sole."""
    length: float
    """Of the sole, along the robot, m; 0 for a ball."""


@dataclass(frozen=True)
class Limb:
    """A chain of joints that ends in a foot, a hand or nothing."""

    joints: tuple[str, ...]
    """From the base to the end."""
    beside: tuple[str, ...]
    """Joints that branch off: fingers, linkages."""
    end: str
    """The last body."""
    place: np.ndarray
    """Of its end, in the frame of the base, m."""


@dataclass(frozen=True)
class Robot:
    """Names and figures of a robot."""

    base: str
    """The body that floats."""
    floating: bool
    """Whether it does: an arm's base is fixed to the world."""
    mass: float
    """Of all bodies, kg."""
    legs: tuple[Limb, ...]
    """In the model's order."""
    feet: tuple[Foot, ...]
    """One a leg."""
    arms: tuple[Limb, ...]
    """All limbs that are no legs: arms, heads, tails, grippers."""
    trunk: tuple[str, ...]
    """Joints between the base and limbs on both sides: waists."""
    servos: tuple[Servo, ...]
    """One a hinge or slide, in the model's order."""
    partners: dict[str, str]
    """The joint on the other side of each; itself for one in the middle."""
    pose: dict[str, np.ndarray]
    """Positions of all joints but the base's, in which places were measured: of the first keyframe
    in which the robot is upright, or zeros within the joints' ranges."""
    has_keyframe: bool
    """Whether they are of a keyframe."""

    @property
    def joints(self) -> tuple[str, ...]:
        """Names of all hinges and slides, in the model's order."""
        return tuple(servo.joint for servo in self.servos)

    @property
    def leg_joints(self) -> tuple[str, ...]:
        """Names of the joints of legs and trunk, in the model's order."""
        held = {joint for limb in self.arms for joint in limb.joints + limb.beside}
        held |= {joint for leg in self.legs for joint in leg.beside}
        return tuple(joint for joint in self.joints if joint not in held)


def inspect(
    spec: mujoco.MjSpec, *, base: str | None = None, feet: Sequence[str] | None = None
) -> Robot:
    """Describe the robot of `spec`; `base` and `feet` name bodies where they are not found.

    Raises ConfigError for a model of several robots, or of none.
    """
    model = compiled(spec, "the model")
    tree = _Tree(model, base)
    limbs = tree.limbs()
    standing = tree.legs(limbs, feet)
    legs = [limbs[i] for i in standing]
    places = [limb.place for limb in legs]
    names = _names_by_place(places) if legs else []
    others = [limb for i, limb in enumerate(limbs) if i not in standing]
    partners = _partners(legs, tree.scale) | _partners(others, tree.scale)
    in_limbs = {joint for limb in limbs for joint in limb.joints + limb.beside}
    servos = [_servo(model, joint) for joint in tree.joints()]
    floating = bool(legs) or tree.is_free
    return Robot(
        base=model.body(tree.base).name,
        floating=floating,
        mass=float(model.body_subtreemass[tree.base]),
        legs=tuple(legs),
        feet=tuple(tree.foot(name, leg.end) for name, leg in zip(names, legs, strict=True)),
        arms=tuple(others),
        trunk=tuple(s.joint for s in servos if s.joint not in in_limbs),
        servos=tuple(servos),
        partners={s.joint: partners.get(s.joint, s.joint) for s in servos},
        pose=tree.pose(),
        has_keyframe=tree.has_keyframe,
    )


class _Tree:
    """The bodies below the base, and where they are."""

    def __init__(self, model: mujoco.MjModel, base: str | None) -> None:
        self.model = model
        self.data = mujoco.MjData(model)
        self.base = _find_base(model, base)
        self.is_free = model.body_dofnum[self.base] == 6
        self.has_keyframe = self._take_keyframe()
        mujoco.mj_kinematics(model, self.data)
        mujoco.mj_comPos(model, self.data)
        self.origin = self.data.xpos[self.base].copy()
        self.rotation = self.data.xmat[self.base].reshape(3, 3).copy()
        inside = [b for b in range(model.nbody) if self.base in self._ancestors(b)]
        self.bodies = inside
        self.low = {b: self._lowest(b) for b in inside}
        self.scale = float(max(-min(self.low.values()), 1e-3))
        """How high the base is above the lowest point, m."""

    def joints(self) -> list[str]:
        """Names of hinges and slides."""
        model = self.model
        found = [j for b in self.bodies for j in self._hinges(b)]
        if unnamed := [j for j in found if not model.joint(j).name]:
            body = model.body(model.jnt_bodyid[unnamed[0]]).name
            raise ConfigError(f"the joint of the body {body!r} has no name; give it one")
        return [model.joint(j).name for j in sorted(found)]

    def limbs(self) -> list[Limb]:
        """The chains of joints that hang on the trunk, each with its lowest end."""
        model, moved = self.model, [b for b in self.bodies[1:] if self._hinges(b)]
        inner = {a for b in moved for a in self._ancestors(b)[1:]}
        leaves = [b for b in moved if b not in inner]
        trunk = {self.base}
        for body in self.bodies:
            sides = [self._place(leaf)[1] for leaf in leaves if body in self._ancestors(leaf)]
            wide = 0.02 * self.scale
            if any(y > wide for y in sides) and any(y < -wide for y in sides):
                trunk.add(body)
        groups: dict[int, list[int]] = {}
        for leaf in leaves:
            chain = [b for b in self._ancestors(leaf) if b not in trunk]
            groups.setdefault(chain[-1], []).append(leaf)
        limbs = []
        for ends in groups.values():
            end = min(ends, key=lambda leaf: self.low[leaf])
            chain = [b for b in reversed(self._ancestors(end)) if b not in trunk]
            names = self._names(chain)
            below = [b for b in moved if chain[0] in self._ancestors(b)]
            beside = [name for name in self._names(below) if name not in names]
            place = self._place(end)
            limbs.append(Limb(tuple(names), tuple(beside), model.body(end).name, place))
        return limbs

    def legs(self, limbs: list[Limb], feet: Sequence[str] | None) -> list[int]:
        """Which limbs are legs: those that end lowest, an even number of them."""
        ends = [limb.end for limb in limbs]
        if feet is not None:
            return [self._limb_of(foot, ends) for foot in feet]
        low = [i for i, e in enumerate(ends) if self._height(e) < _LOW * self.scale]
        legs = [i for i in low if len(limbs[i].joints) >= 2]
        sides = [limbs[i].place[1] for i in legs]
        if len(legs) < 2 or not min(sides) < 0.0 < max(sides):
            return []
        for leg in legs:
            self._refuse_wheel(limbs[leg])
        if len(legs) % 2:
            names = ", ".join(limbs[i].end for i in legs)
            raise ConfigError(f"{names} are the lowest bodies; say which are feet with --feet")
        return legs

    def foot(self, name: str, end: str) -> Foot:
        """What the leg that ends in the body `end` stands on."""
        model, body = self.model, self.model.body(end).id
        geoms = [g for b in self._welded(body) for g in geoms_of(model, b)]
        solid = [g for g in geoms if collides(model, g)] or geoms
        frame, place = self.data.xmat[body].reshape(3, 3), self.data.xpos[body]
        up, forward = self.rotation[:, 2], self.rotation[:, 0]
        points = [(g, p) for g in solid for p in surface(model, self.data, g, -up)]
        if not points:
            points = [(-1, p) for p in inertia_box(model, self.data, body)]
        heights = np.array([p @ up for _, p in points])
        lowest, low = points[int(heights.argmin())]
        near = [points[i] for i in np.flatnonzero(heights < heights.min() + 0.02 * self.scale)]
        sole = np.array([p for _, p in near])
        length, radius = float(np.ptp(sole @ forward)), 0.0
        middle = (sole.min(axis=0) + sole.max(axis=0)) / 2.0
        center = middle + up * (heights.min() - middle @ up)
        if length < 0.1 * self.scale:
            is_ball = lowest >= 0 and model.geom_type[lowest] in (SPHERE, CAPSULE)
            radius = float(model.geom_size[lowest][0]) if is_ball else 0.0
            center, length = low + up * radius if is_ball else center, 0.0
        return Foot(
            name=name,
            body=end,
            geoms=tuple(sorted({g for g, _ in near if g >= 0})),
            center=(center - place) @ frame,
            down=-up @ frame,
            radius=radius,
            length=length,
        )

    def pose(self) -> dict[str, np.ndarray]:
        """Positions of all joints but those of bodies that float, by name."""
        model = self.model
        inside = [j for j in range(model.njnt) if model.jnt_bodyid[j] in self.bodies]
        held = [j for j in inside if model.jnt_type[j] != 0]
        return {model.joint(j).name: self.data.joint(j).qpos.copy() for j in held}

    def _take_keyframe(self) -> bool:
        """Take the first keyframe in which the robot is upright, or zeros within the ranges."""
        model, data = self.model, self.data
        for key in range(model.nkey):
            mujoco.mj_resetDataKeyframe(model, data, key)
            mujoco.mj_kinematics(model, data)
            if data.xmat[self.base].reshape(3, 3)[2, 2] > 0.95:
                return True
        mujoco.mj_resetData(model, data)
        for j in np.flatnonzero(model.jnt_limited.astype(bool) & (model.jnt_type > _BALL)):
            at = model.jnt_qposadr[j]
            data.qpos[at] = np.clip(data.qpos[at], *model.jnt_range[j])
        return False

    def _ancestors(self, body: int) -> list[int]:
        """`body`, its parent and so on, without the world."""
        chain = []
        while body:
            chain.append(body)
            body = int(self.model.body_parentid[body])
        return chain

    def _names(self, bodies: Iterable[int]) -> list[str]:
        return [self.model.joint(j).name for b in bodies for j in self._hinges(b)]

    def _hinges(self, body: int) -> list[int]:
        first, count = self.model.body_jntadr[body], self.model.body_jntnum[body]
        return [j for j in range(first, first + count) if self.model.jnt_type[j] > _BALL]

    def _refuse_wheel(self, leg: Limb) -> None:
        model, data = self.model, self.data
        joint, (low, *_) = model.joint(leg.joints[-1]).id, self.foot("", leg.end).geoms or (-1,)
        ends = model.jnt_limited[joint] and np.ptp(model.jnt_range[joint]) < 4.0 * np.pi
        if ends or low < 0:
            return
        arm, axis = data.geom_xpos[low] - data.xanchor[joint], data.xaxis[joint]
        if np.linalg.norm(arm - arm @ axis * axis) < 0.02 * self.scale:
            text = f"{leg.end} turns without end about its own middle, as a wheel does"
            raise ConfigError(f"{text}; only robots on legs can be prepared to walk")

    def _welded(self, body: int) -> list[int]:
        """`body` and all that is fixed to it."""
        root = self.model.body_weldid[body]
        return [b for b in self.bodies if self.model.body_weldid[b] == root and b >= body]

    def _lowest(self, body: int) -> float:
        """Height of the lowest point of `body` and what is fixed to it, above the base, m."""
        up, model = self.rotation[:, 2], self.model
        points = [self.data.xpos[body]]
        for b in range(model.nbody):
            if model.body_weldid[b] == model.body_weldid[body]:
                points.append(self.data.xpos[b])
                points += [p for g in geoms_of(model, b) for p in surface(model, self.data, g, -up)]
        return float(min((p - self.origin) @ up for p in points))

    def _height(self, end: str) -> float:
        return self.low[self.model.body(end).id] + self.scale

    def _place(self, body: int) -> np.ndarray:
        place: np.ndarray = (self.data.xpos[body] - self.origin) @ self.rotation
        return place

    def _limb_of(self, foot: str, ends: list[str]) -> int:
        try:
            body = self.model.body(foot).id
        except KeyError:
            bodies = [self.model.body(b).name for b in self.bodies]
            meant = did_you_mean(foot, bodies)
            text = f"--feet names {foot!r}{meant}; the bodies are {', '.join(bodies)}"
            raise ConfigError(text) from None
        chain = [self.model.body(b).name for b in self._ancestors(body)]
        for place, end in enumerate(ends):
            if end in chain or foot in [
                self.model.body(b).name for b in self._ancestors(self.model.body(end).id)
            ]:
                return place
        raise ConfigError(f"--feet names {foot!r}, which is at the end of no limb")


def _find_base(model: mujoco.MjModel, name: str | None) -> int:
    """The body that floats, or that would: the root of the tree with hinges."""
    if name is not None:
        names = [model.body(b).name for b in range(1, model.nbody)]
        if name not in names:
            meant = did_you_mean(name, names)
            raise ConfigError(f"--base is {name!r}{meant}; the bodies are {', '.join(names)}")
        return int(model.body(name).id)
    hinges = np.flatnonzero(model.jnt_type > _BALL)
    roots = sorted({int(model.body_rootid[model.jnt_bodyid[j]]) for j in hinges})
    if not roots:
        raise ConfigError("the model has no joint that could be driven")
    if len(roots) > 1:
        robots = ", ".join(model.body(b).name for b in roots)
        raise ConfigError(f"the model has several robots, {robots}; say which with --base")
    return roots[0]


def _servo(model: mujoco.MjModel, joint: str) -> Servo:
    """What drives a joint, of several actuators the one with position control."""
    number = model.joint(joint).id
    bounds = [np.inf]
    if model.jnt_actfrclimited[number]:
        bounds.append(float(np.abs(model.jnt_actfrcrange[number]).max()))
    kind: Literal["position", "motor", "none"] = "none"
    stiffness = 0.0
    for i in range(model.nu):
        if model.actuator_trntype[i] > _IN_PARENT or model.actuator_trnid[i, 0] != number:
            continue
        gear = abs(float(model.actuator_gear[i, 0]))
        gain, bias = float(model.actuator_gainprm[i, 0]), model.actuator_biasprm[i]
        if model.actuator_forcelimited[i]:
            bounds.append(gear * float(np.abs(model.actuator_forcerange[i]).max()))
        if model.actuator_biastype[i] == int(mujoco.mjtBias.mjBIAS_AFFINE) and bias[1] < 0.0:
            kind, stiffness = "position", gain * gear
        elif kind == "none":
            kind = "motor"
            if model.actuator_ctrllimited[i] and model.actuator_gaintype[i] == 0:
                bounds.append(gear * gain * float(np.abs(model.actuator_ctrlrange[i]).max()))
    return Servo(joint, kind, stiffness, min(bounds))


def _names_by_place(places: Sequence[np.ndarray]) -> list[str]:
    """What feet are called, from where they are."""
    if len(places) == 2:
        return ["left" if place[1] > 0.0 else "right" for place in places]
    middle = np.mean([place[0] for place in places])
    sides = [("F" if x > middle else "R") + ("L" if y > 0.0 else "R") for x, y, _ in places]
    if len(set(sides)) == len(sides):
        return sides
    return [f"leg{i + 1}" for i in range(len(places))]


def _partners(limbs: Sequence[Limb], scale: float) -> dict[str, str]:
    """Joints of limbs that are each other's mirror images about the plane y = 0."""
    partners: dict[str, str] = {}
    for limb in limbs:
        image = limb.place * [1.0, -1.0, 1.0]
        for other in limbs:
            near = np.linalg.norm(other.place - image) < _ALIKE * scale
            if near and len(other.joints) == len(limb.joints):
                partners |= dict(zip(limb.joints, other.joints, strict=True))
                break
    return partners
