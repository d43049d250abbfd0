"""The tree of a robot's bodies: its limbs, its feet, and their positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import mujoco
import numpy as np

from simtrain.env.control.transmission import joint_actuators
from simtrain.errors import ConfigError, did_you_mean
from simtrain.robots.shapes import collides, inertia_box, level_normal, radius, surface

_SLIDE = int(mujoco.mjtJoint.mjJNT_SLIDE)  # hinges come after it
LATERAL = 0.75
"""Minimum lateral part of the axis of a hip, a knee or an ankle."""
_WILD = 1e3
"""A position in a keyframe that no robot has, m or rad."""
_ASIDE, _FINGER = 0.25, 0.7
"""Minimum distance of a jaw's center of mass from its axis, as a fraction of the distance of its
tip; how far what it closes on reaches at least, relative to it."""
_LOW = 0.12
"""Maximum height of a leg's end above the lowest one, as a fraction of the base's height."""


@dataclass(frozen=True)
class Foot:
    """The part of a leg that touches the ground."""

    name: str
    """By its position: ``FL``, ``FR``, ``RL``, ``RR``, ``left``, ``right``, or ``leg3``."""
    body: str
    geoms: tuple[int, ...]
    """Ids of the geoms that can touch the ground."""
    center: np.ndarray
    """The middle of the sole or of the ball, in the frame of the body, m."""
    down: np.ndarray
    """The direction of the ground in the frame of the body, when the foot stands flat."""
    radius: float
    """Distance from `center` to the ground: the radius of a ball, 0 for a sole."""
    length: float
    """Length of the sole, along the robot, m; 0 for a ball."""


@dataclass(frozen=True)
class Limb:
    """A chain of joints that ends in a foot, in a hand or in nothing."""

    joints: tuple[str, ...]
    """From the base to the end."""
    beside: tuple[str, ...]
    """Joints of branches, such as fingers, and joints that linkages drive."""
    end: str
    """The last body."""
    place: np.ndarray
    """Position of its end, in the frame of the base, m."""
    center: np.ndarray
    """Its center of mass, in the frame of the base, m."""


class Tree:
    """The bodies below the base, and their positions in its frame."""

    def __init__(self, model: mujoco.MjModel, base: str) -> None:
        self.model, self.data = model, mujoco.MjData(model)
        self.base = model.body(base).id
        self.has_keyframe = self._take_keyframe()
        mujoco.mj_kinematics(model, self.data)
        mujoco.mj_comPos(model, self.data)
        self.origin = self.data.xpos[self.base].copy()
        self.rotation = self.data.xmat[self.base].reshape(3, 3).copy()
        self.up = self.rotation[:, 2]
        self.bodies = [b for b in range(model.nbody) if self.base in self.path(b)]

    @cached_property
    def low(self) -> dict[int, float]:
        """Height of the lowest point of each body and its fixed children, above the base, m."""
        own = {b: min(self._in_base(p)[2] for p in self._points(b)) for b in self.bodies}
        weld = self.model.body_weldid
        return {b: min(own[c] for c in self.bodies if weld[c] == weld[b]) for b in self.bodies}

    @cached_property
    def scale(self) -> float:
        """Height of the base above the lowest point, m."""
        return max(-min(self.low.values()), 1e-3)

    @cached_property
    def passive(self) -> set[str]:
        """Joints without an actuator that loops or other joints move.

        With motors and loops, these are all joints without an actuator.
        """
        model, kinds = self.model, mujoco.mjtEq
        loops = [int(kind) for kind in (kinds.mjEQ_CONNECT, kinds.mjEQ_WELD, kinds.mjEQ_TENDON)]
        driven = {model.joint(number).name for number in joint_actuators(model)[1]}
        if driven and np.isin(model.eq_type, loops).any():
            return set(self.joints()) - driven
        coupled = (model.eq_type == int(kinds.mjEQ_JOINT)) & (model.eq_obj2id >= 0)
        ends = zip(model.eq_obj1id[coupled], model.eq_obj2id[coupled], strict=True)
        pairs = [(model.joint(one).name, model.joint(other).name) for one, other in ends]
        return {other if one in driven else one for one, other in pairs} - driven

    def joints(self) -> tuple[str, ...]:
        """Names of hinges and slides, in the model's order."""
        return self._names(self.bodies)

    def limbs(self) -> list[Limb]:
        """The chains of joints that are attached to the trunk, each with its lowest end."""
        moved = [b for b in self.bodies[1:] if self._hinges(b)]
        inner = {a for b in moved for a in self.path(b)[:-1]}
        leaves = [b for b in moved if b not in inner]
        trunk, wide = {self.base}, 0.02 * self.scale
        for body in self.bodies:
            sides = [self._place(leaf)[1] for leaf in leaves if body in self.path(leaf)]
            if sides and min(sides) < -wide and wide < max(sides):
                trunk.add(body)
        roots = {leaf: next(b for b in self.path(leaf) if b not in trunk) for leaf in leaves}
        limbs = []
        for root in dict.fromkeys(roots.values()):
            end = min((leaf for leaf in leaves if roots[leaf] == root), key=self.low.__getitem__)
            names = self._names(b for b in self.path(end) if b not in trunk)
            names = tuple(name for name in names if name not in self.passive) or names
            below = self._names(b for b in moved if root in self.path(b))
            limbs.append(self._limb(names, below, root, end))
        return limbs

    def legs(self, limbs: list[Limb], feet: Sequence[str]) -> list[Limb]:
        """The limbs that are legs: those that end lowest, an even number, on both sides."""
        if feet:
            legs = [self._limb_of(foot, limbs) for foot in feet]
            twice = next((f for f, leg in zip(feet, legs, strict=True) if legs.count(leg) > 1), "")
            if twice:
                raise ConfigError(f"--feet names the leg that ends at {twice} more than once")
            return legs
        bottom = (_LOW - 1.0) * self.scale
        low = [limb for limb in limbs if self.low[self.model.body(limb.end).id] < bottom]
        legs = [limb for limb in low if len(limb.joints) >= 2 and not self._hangs(limb)]
        self._refuse_wheels(legs or low)
        sides = [limb.place[1] for limb in legs]
        if not sides or not min(sides) < 0.0 < max(sides):
            return []
        if len(legs) % 2:
            names = ", ".join(leg.end for leg in legs)
            raise ConfigError(f"{names} are the lowest bodies; say which are feet with --feet")
        return legs

    def _hangs(self, limb: Limb) -> bool:
        """Whether a limb is attached high above joints of the trunk, as an arm is."""
        joint = self.model.joint(limb.joints[0]).id
        shoulder = self._in_base(self.data.xanchor[joint])[2]
        center = self._in_base(self.data.subtree_com[self.base])[2]
        above = self.path(int(self.model.jnt_bodyid[joint]))[:-1]
        is_on_base = not any(self._hinges(body) for body in above if body != self.base)
        return not is_on_base and shoulder - center > 0.2 * (shoulder - limb.place[2])

    def arm(self, end: str | None) -> Limb:
        """The longest chain of joints, down to `end`, or to where a gripper begins."""
        moved = [b for b in self.bodies if self._hinges(b)]
        paths = [[b for b in self.path(body) if b in moved] for body in self.bodies]
        path = max(paths, key=lambda path: len(self._names(path)))
        if end is not None:
            path = paths[self.bodies.index(self._body(end, "--end"))]
            if not path:
                raise ConfigError(f"--end {end}: no hinge or slide moves this body")
        for above, body in enumerate(path, start=1) if end is None else ():
            deeper = [p for p in paths if body in p[:-1]]
            branches = {p[p.index(body) + 1] for p in deeper}
            if len(branches) > 1 and max(map(len, deeper)) - above <= above / 2:
                path = path[:above]
                break
        if end is None and len(path) > 2 and self._is_jaw(path[-1]):
            path = path[:-1]
        below = self._names(b for b in moved if path[-1] in self.path(b)[:-1])
        return self._limb(self._names(path), below, path[0], path[-1])

    def _is_jaw(self, body: int) -> bool:
        """Whether a body without branches closes on the one above, which reaches as far."""
        joint, (away, own, other) = self.model.body_jntadr[body], self._tips(body)
        is_aside = np.linalg.norm(away) > _ASIDE * np.linalg.norm(own) > 0.0
        turns_little = self.model.jnt_limited[joint] and np.ptp(self.model.jnt_range[joint]) < np.pi
        *_, before, _ = [b for b in self.path(body) if self._hinges(b)]
        before = self.data.xanchor[self.model.body_jntadr[before]]
        is_beyond = away @ (self.data.xanchor[joint] - before) > 0.0
        is_end = not any(self._hinges(b) for b in self.bodies if body in self.path(b)[:-1])
        reaches = away @ other > _FINGER * (away @ own)
        return bool(is_end and is_beyond and is_aside and turns_little and reaches)

    def _tips(self, body: int) -> np.ndarray:
        """Of a body and the one above: points farthest from the joint between them, ``(3, 3)``.

        In the world, relative to the joint; the first row is their direction, that of the body's
        center of mass.
        """
        data, weld, joint = self.data, self.model.body_weldid, self.model.body_jntadr[body]
        axis, away = data.xaxis[joint], data.subtree_com[body] - data.xanchor[joint]
        away = away - axis * (axis @ away)
        above = self.model.body_parentid[body]
        tips = [away]
        for link in (body, above):
            parts = [self._points(b) for b in self.bodies if weld[b] == weld[link]]
            points = np.concatenate(parts) - data.xanchor[joint]
            tips.append(points[(points @ away).argmax()])
        return np.array(tips)

    def _limb(self, joints: tuple[str, ...], below: tuple[str, ...], root: int, end: int) -> Limb:
        beside = tuple(name for name in below if name not in joints)
        center = self._in_base(self.data.subtree_com[root])
        return Limb(joints, beside, self.model.body(end).name, self._place(end), center)

    def tool(self, arm: Limb) -> np.ndarray:
        """The grip position in the frame of the arm's end: among fingers, or at its tip, m.

        A single finger closes on the arm's end: the position is between the tips of both.
        """
        model, data, end = self.model, self.data, self.model.body(arm.end).id
        fingers = [model.jnt_bodyid[model.joint(name).id] for name in arm.beside]
        welded = [b for b in self.bodies if model.body_weldid[b] == model.body_weldid[end]]
        far = max(welded, key=lambda b: float(np.linalg.norm(data.xpos[b] - data.xpos[end])))
        place = data.xpos[far] if far != end else data.xipos[end]
        place = np.mean(data.xipos[fingers], axis=0) if fingers else place
        if len(fingers) == 1 and self._is_jaw(fingers[0]):
            place = data.joint(arm.beside[0]).xanchor + self._tips(fingers[0])[1:].mean(axis=0)
        return np.asarray((place - data.xpos[end]) @ data.xmat[end].reshape(3, 3))

    def heading(self, legs: Sequence[Limb], soles: Sequence[Foot]) -> float:
        """The forward direction: most axes of legs are lateral, and soles are longer in front.

        On two legs without shapes of feet, it is that in which knees bend.

        On more than four legs, whose axes lie around the base, it is that with no leg ahead.
        """
        axes = [self.data.joint(n).xaxis @ self.rotation for leg in legs for n in leg.joints]
        along_x, along_y, _ = np.square(axes).sum(axis=0) if axes else np.zeros(3)
        is_turned = along_x > 1.5 * along_y
        if len(legs) > 4:
            away = np.abs([leg.place[:2] for leg in legs])
            x, y = away.min(axis=0) / away.max()
            is_turned = x > 0.1 > y
        forward = np.array([0.0, 1.0, 0.0] if is_turned else [1.0, 0.0, 0.0])
        left, ahead = np.array([-forward[1], forward[0], 0.0]), []
        if len(legs) == 2 and not any(sole.geoms for sole in soles):
            ahead = [self.scale * self._bends(leg, left) for leg in legs]
        for leg, sole in zip(legs, soles, strict=True):
            if sole.length and sole.geoms:
                # The anchor of an ankle's roll may lie anywhere along the sole.
                *_, ankle = *leg.joints[-1:], *self._lateral(leg, left)
                foot, anchor = self.data.body(sole.body), self.data.joint(ankle).xanchor
                away = foot.xpos + foot.xmat.reshape(3, 3) @ sole.center - anchor
                ahead.append(float((self.rotation @ forward) @ away))
        if ahead and np.mean(ahead) < -0.02 * self.scale:
            forward = -forward
        return float(np.arctan2(forward[1], forward[0]))

    def _bends(self, leg: Limb, left: np.ndarray) -> float:
        """1 if a shank folds back from a straight leg at 0, as a person's; -1 if it folds ahead.

        0 if its knee does both, or without hip, knee and ankle about `left`, in the base's frame.
        """
        lateral = self._lateral(leg, left)
        if len(lateral) < 3 or not self.model.joint(knee := list(lateral)[1]).limited[0]:
            return 0.0
        low, high = self.model.joint(knee).range
        is_one_sided = abs(low + high) > 0.5 * (high - low)
        return float(np.sign(lateral[knee] * (low + high))) if is_one_sided else 0.0

    def _lateral(self, leg: Limb, left: np.ndarray) -> dict[str, float]:
        """The lateral part of the axis of each joint of a leg that turns about `left`."""
        turns = {n: float(self.data.joint(n).xaxis @ self.rotation @ left) for n in leg.joints}
        return {name: turn for name, turn in turns.items() if abs(turn) > LATERAL}

    def foot(self, name: str, end: str) -> Foot:
        """The foot of the leg that ends in the body `end`."""
        model, body = self.model, self.model.body(end).id
        welded = [b for b in self.bodies if model.body_weldid[b] == model.body_weldid[body]]
        geoms = np.flatnonzero(np.isin(model.geom_bodyid, welded)).tolist()
        geoms = [g for g in geoms if collides(model, g)] or geoms
        shapes = [(g, surface(self.data, g, -self.up)) for g in geoms]
        shapes = shapes or [(-1, inertia_box(self.data, body))]
        owners = np.repeat([g for g, _ in shapes], [len(points) for _, points in shapes])
        points = self._in_base(np.concatenate([points for _, points in shapes]))
        lowest, down = points[:, 2].min(), np.array([0.0, 0.0, -1.0])
        near = points[:, 2] < lowest + 0.02 * self.scale
        sole, sole_owners = points[near], owners[near]
        center, ball = (sole.min(axis=0) + sole.max(axis=0)) / 2.0, 0.0
        center[2], length = lowest, float(np.ptp(sole, axis=0)[:2].max())
        if length < 0.1 * max(self.scale, self._reach(body, center)):
            first, length = points[:, 2].argmin(), 0.0
            if owners[first] >= 0 and (ball := radius(model, owners[first])):
                center = points[first] + [0.0, 0.0, ball]
        elif len(sole) > 2 and (normal := level_normal(sole)) is not None:
            down, center = normal, center + normal * ((sole - center) @ normal).max()
        frame, place = self.data.xmat[body].reshape(3, 3), self.data.xpos[body]
        return Foot(
            name=name,
            body=end,
            geoms=tuple(sorted({int(g) for g in sole_owners if g >= 0})),
            center=(self.origin + self.rotation @ center - place) @ frame,
            down=self.rotation @ down @ frame,
            radius=ball,
            length=length,
        )

    def _reach(self, body: int, end: np.ndarray) -> float:
        """Length of the links down to `end` of a body, in the base's frame, m.

        The height of the base says little about legs that lie or are folded.
        """
        below = self.path(body)[len(self.path(self.base)) :]
        points = np.array([*(self._place(b) for b in below), end])
        return float(np.linalg.norm(np.diff(points, axis=0), axis=1).sum())

    def pose(self) -> dict[str, np.ndarray]:
        """Positions of all joints by name, except those of floating bodies."""
        model = self.model
        inside = [j for j in range(model.njnt) if model.jnt_bodyid[j] in self.bodies]
        joints = [j for j in inside if model.jnt_type[j] != int(mujoco.mjtJoint.mjJNT_FREE)]
        return {model.joint(j).name: self.data.joint(j).qpos.copy() for j in joints}

    def _take_keyframe(self) -> bool:
        """Set the first keyframe in which the robot is upright, or zeros within the ranges.

        A keyframe with joints a turn beyond their ranges is not one: it may be in degrees.
        """
        model, data = self.model, self.data
        limited = (model.jnt_limited > 0) & (model.jnt_type >= _SLIDE)
        at, (low, high) = model.jnt_qposadr[limited], model.jnt_range[limited].T
        for key in range(model.nkey):
            mujoco.mj_resetDataKeyframe(model, data, key)
            mujoco.mj_kinematics(model, data)
            beyond = np.abs(data.qpos[at] - np.clip(data.qpos[at], low, high)).max(initial=0.0)
            is_wild = beyond > 2.0 * np.pi or np.abs(data.qpos).max() > _WILD
            if data.xmat[self.base][8] > 0.95 and not is_wild:
                return True
        mujoco.mj_resetData(model, data)
        data.qpos[at] = np.clip(data.qpos[at], low, high)
        return False

    def path(self, body: int) -> list[int]:
        """The bodies from the root to `body`, without the world."""
        return [*self.path(int(self.model.body_parentid[body])), body] if body else []

    def _names(self, bodies: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.model.joint(j).name for b in bodies for j in self._hinges(b))

    def _hinges(self, body: int) -> list[int]:
        own = (self.model.jnt_bodyid == body) & (self.model.jnt_type >= _SLIDE)
        return [int(j) for j in np.flatnonzero(own)]

    def _refuse_wheels(self, limbs: list[Limb]) -> None:
        """Raise ConfigError if limbs on both sides end on wheels."""
        wheels = [limb for limb in limbs if self._is_wheel(limb)]
        sides = [limb.place[1] for limb in wheels]
        if wheels and min(sides) < 0.0 < max(sides):
            names = ", ".join(limb.end for limb in wheels[:4]) + ", ..." * (len(wheels) > 4)
            text = f"{names} turn without end about their own middles, as wheels do; only legs and"
            text = f"{text} arms can be prepared. For wheels, write a task and its model by hand"
            raise ConfigError(f"{text}, as docs/writing_a_task.md shows")

    def _is_wheel(self, limb: Limb) -> bool:
        """Whether its end turns without limit about a level axis through the middle of it."""
        model, data, joint = self.model, self.data, self.model.joint(limb.joints[-1]).id
        if model.jnt_limited[joint] and np.ptp(model.jnt_range[joint]) < 4.0 * np.pi:
            return False
        geoms, body = self.foot("", limb.end).geoms, model.jnt_bodyid[joint]
        center = data.geom_xpos[geoms[0]] if geoms else data.xipos[body]
        axis, away = data.xaxis[joint], center - data.xanchor[joint]
        is_central = np.linalg.norm(np.cross(axis, away)) < 0.02 * self.scale
        return bool(abs(axis @ self.up) < 0.5 and is_central)

    def _points(self, body: int) -> np.ndarray:
        """Points on the surface of a body, and its position, in the world, ``(n, 3)``."""
        geoms = np.flatnonzero(self.model.geom_bodyid == body).tolist()
        shapes = [surface(self.data, geom, -self.up) for geom in geoms]
        return np.concatenate([self.data.xpos[[body]], *shapes])

    def _in_base(self, points: np.ndarray) -> np.ndarray:
        return np.asarray((points - self.origin) @ self.rotation)

    def _place(self, body: int) -> np.ndarray:
        return self._in_base(self.data.xpos[body])

    def _limb_of(self, foot: str, limbs: list[Limb]) -> Limb:
        place = self.path(self._body(foot, "--feet"))
        for limb in limbs:
            end = self.path(self.model.body(limb.end).id)
            if end[-1] in place or place[-1] in end:
                return limb
        raise ConfigError(f"--feet names {foot!r}, which is at the end of no limb")

    def _body(self, name: str, flag: str) -> int:
        bodies = {self.model.body(b).name: b for b in self.bodies}
        if name not in bodies:
            text = f"{flag} names {name!r}{did_you_mean(name, bodies)}"
            raise ConfigError(f"{text}; the bodies are {', '.join(bodies)}")
        return bodies[name]
