"""What a walking task needs of a prepared robot: the figures of its gait and its servos."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

import mujoco
import numpy as np
from scipy.optimize import least_squares

from simtrain.robots.inspect import Foot, Robot
from simtrain.robots.prepare import Prepared, mirror_signs
from simtrain.robots.standing import on_ground

_SWING = {2: 0.145, 4: 0.28}
"""Height of the swing by that of the hips, for two legs and for more."""
_FREQUENCY = {2: 0.445, 4: 0.535}
"""Steps of a foot by sqrt(g / h)."""
_SPEEDS = {2: ((-0.2, 0.4), (-0.12, 0.12)), 4: ((-0.6, 0.6), (-0.3, 0.3))}
"""Forward and sideways, by sqrt(g h)."""
_TURNS = {2: 0.18, 4: 0.17}
"""Rate of turning by sqrt(g / h)."""


@dataclass(frozen=True)
class Gait:
    """Arguments of `simtrain.mdp.locomotion.recipe.velocity_task`."""

    offsets: tuple[float, ...]
    bend: dict[str, float]
    action_scale: dict[str, float]
    lin_vel_x: tuple[float, float]
    lin_vel_y: tuple[float, float]
    ang_vel_z: tuple[float, float]
    frequency: float
    swing_height: float
    sole: float
    mirror: dict[str, str] | None
    """Patterns of the joints on both sides; None if the robot is not symmetric."""


def gait(prepared: Prepared) -> Gait:
    """The figures of a trot on four legs, of steps on two, of a tripod's on six."""
    robot, height = prepared.robot, prepared.hip_height
    legs = 2 if len(robot.legs) == 2 else 4
    speed, rate = math.sqrt(9.81 * height), math.sqrt(9.81 / height)
    swing = round(_SWING[legs] * height, 3)
    (back, ahead), (right, left) = _SPEEDS[legs]
    turn = round(_TURNS[legs] * rate, 1)
    return Gait(
        offsets=_offsets(prepared),
        bend=_bend(prepared, swing),
        action_scale=_action_scale(robot, legs),
        lin_vel_x=(round(back * speed, 1), round(ahead * speed, 1)),
        lin_vel_y=(round(right * speed, 1), round(left * speed, 1)),
        ang_vel_z=(-turn, turn),
        frequency=round(_FREQUENCY[legs] * rate, 1),
        swing_height=swing,
        sole=round(float(np.mean([foot.radius for foot in robot.feet])), 4),
        mirror=mirror_patterns(robot),
    )


def _offsets(prepared: Prepared) -> tuple[float, ...]:
    """Half a period for every other foot around the robot, in the order of the feet's sites."""
    model = prepared.spec.compile()
    robot = prepared.robot
    data = mujoco.MjData(model)
    data.qpos[:] = prepared.home
    mujoco.mj_kinematics(model, data)
    sites = sorted(robot.feet, key=lambda foot: model.site(f"{foot.name}_sole").id)
    places = [data.site(f"{foot.name}_sole").xpos for foot in sites]
    if len(sites) == 2:
        return (0.0, 0.5) if places[0][1] > places[1][1] else (0.5, 0.0)
    offsets = {}
    for side in (1.0, -1.0):
        row = sorted(
            (i for i, p in enumerate(places) if p[1] * side > 0.0), key=lambda i: -places[i][0]
        )
        for place, i in enumerate(row):
            offsets[i] = 0.5 * ((place + (side > 0.0)) % 2)
    return tuple(offsets[i] for i in range(len(sites)))


def _bend(prepared: Prepared, swing: float) -> dict[str, float]:
    """What lifts each foot by `swing` with the least change of its joints, rad."""
    model = on_ground(prepared.spec)
    data = mujoco.MjData(model)
    robot = prepared.robot
    data.qpos[:] = prepared.home
    mujoco.mj_kinematics(model, data)
    lateral = data.body(robot.base).xmat.reshape(3, 3)[:, 1]
    axes = {name: data.xaxis[model.joint(name).id].copy() for name in robot.joints}
    bends: dict[str, float] = {}
    for leg, foot in zip(robot.legs, robot.feet, strict=True):
        names = [n for n in leg.joints if abs(axes[n] @ lateral) > 0.7] or list(leg.joints)
        data.qpos[:] = prepared.home
        bends |= zip(names, _lift(model, data, names, foot, swing), strict=True)
    signs = mirror_signs(model, robot)
    even = {
        name: (angle + signs[name] * bends.get(robot.partners[name], angle)) / 2.0
        for name, angle in bends.items()
    }
    return {name: round(angle, 2) for name, angle in even.items() if abs(angle) > 0.02}


def _lift(
    model: mujoco.MjModel, data: mujoco.MjData, joints: list[str], foot: Foot, swing: float
) -> list[float]:
    """By what `joints` turn from the pose in `data`, which changes, to lift `foot` by `swing`."""
    places = [model.joint(name).qposadr[0] for name in joints]
    site = data.site(f"{foot.name}_sole")
    mujoco.mj_kinematics(model, data)
    begin, wanted = data.qpos[places].copy(), site.xpos + np.array([0.0, 0.0, swing])

    def away(q: np.ndarray) -> np.ndarray:
        data.qpos[places] = begin + q
        mujoco.mj_kinematics(model, data)
        tilt = site.xmat.reshape(3, 3)[:, 2][:2] * (foot.length > 0.0)
        return np.concatenate(((site.xpos - wanted) / swing, tilt, 0.05 * q))

    return [float(angle) for angle in least_squares(away, np.full(len(joints), 0.01)).x]


def _action_scale(robot: Robot, legs: int) -> dict[str, float]:
    """By which angle an action of 1 moves a target: a part of what the largest torque bends."""
    part, low, high = (0.125, 0.1, 0.3) if legs == 2 else (0.33, 0.2, 0.5)
    scales: dict[str, float] = {}
    driven = {s.joint: s for s in robot.servos if s.torque > 0.0 and s.stiffness > 0.0}
    for name in robot.leg_joints:
        if servo := driven.get(name):
            bent = min(max(part * servo.torque / servo.stiffness, low), high)
            scales[name] = round(bent, 2)
    return scales


def mirror_patterns(robot: Robot) -> dict[str, str] | None:
    """Patterns with which names of one side become those of the other; None without symmetry."""
    names = dict(robot.partners)
    middle = {leg for leg in (j for limb in robot.legs for j in limb.joints) if names[leg] == leg}
    if middle:
        return None
    names |= {f"{a.name}_sole": f"{b.name}_sole" for a, b in _pairs(robot)}
    patterns: dict[str, str] = {}
    for one, other in names.items():
        if one == other or other in patterns:
            continue
        before, a, b, after = _difference(one, other)
        rest = "_(.*)" if after.startswith("_") else "(.*)" if after else ""
        left, right = f"{before}{a}{rest}", f"{before}{b}{rest}"
        if right not in patterns:
            patterns[left] = right
    # The first that fits a name counts: "left(.*)" before "l(.*)".
    return dict(sorted(patterns.items(), key=lambda pair: -len(pair[0])))


def _pairs(robot: Robot) -> Iterable[tuple[Foot, Foot]]:
    feet = {leg.joints: foot for leg, foot in zip(robot.legs, robot.feet, strict=True)}
    for joints, foot in feet.items():
        other = tuple(robot.partners[joint] for joint in joints)
        yield foot, feet[other]


def _difference(one: str, other: str) -> tuple[str, str, str, str]:
    """What two names begin with, in what they differ, and what they end with, by their words."""
    before = _common(one, other)
    after = _common(one[len(before) :][::-1], other[len(before) :][::-1])[::-1]
    if "_" in before or "_" in after:
        before = before[: before.rfind("_") + 1]
        start = after.find("_")
        after = after[start:] if start >= 0 else ""
    end = len(after)
    a, b = (name[len(before) : len(name) - end] for name in (one, other))
    return before, a, b, after


def _common(one: str, other: str) -> str:
    """What both begin with."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return "".join(letter for letter, _ in same)
