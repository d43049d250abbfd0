"""Figures of a walking task for a prepared robot: its gait and its action scales."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from os.path import commonprefix

import numpy as np

from simtrain.errors import ConfigError
from simtrain.robots.inspect import Robot
from simtrain.robots.kinematics import at, down_to, inertias, mirror_signs, move_foot, pitch_joints
from simtrain.robots.prepare import Prepared, step_rate, swing_rate

_SWING = {2: 0.145, 4: 0.28}
"""Height of the swing, as a fraction of the hip height, for two legs and for more."""
_SPEEDS = {2: ((-0.2, 0.4), (-0.12, 0.12)), 4: ((-0.6, 0.6), (-0.3, 0.3))}
"""Speeds forward and sideways, as multiples of sqrt(g h)."""
_STEP, _SHARE = 0.25, 0.3
"""Least action scale of added servos down to the knees of two legs, rad, and the most torque that
it exerts, as a fraction of weight times hip height."""
_REACHED = 0.9
"""Fraction of the height of the swing that counts as reached."""
_LARGEST = 0.8
"""Largest action scale, rad."""
_TURNS = {2: 0.18, 4: 0.17}
"""Turning rates, as multiples of sqrt(g / h)."""


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
    """Patterns of joint names on both sides; None if the robot is not symmetric."""


def gait(prepared: Prepared) -> Gait:
    """The figures of a trot on four legs, of steps on two, of a tripod gait on six."""
    robot, height = prepared.robot, prepared.hip_height
    legs = robot.stance
    speed, rate = math.sqrt(9.81 * height), math.sqrt(9.81 / height)
    swing = round(_SWING[legs] * height, 3)
    (back, ahead), (right, left) = _SPEEDS[legs]
    turn = round(_TURNS[legs] * rate, 1)
    bend, reached = _bend(prepared, swing)
    return Gait(
        offsets=_offsets(prepared),
        bend=bend,
        action_scale=_action_scale(prepared),
        lin_vel_x=(round(back * speed, 1), round(ahead * speed, 1)),
        lin_vel_y=(round(right * speed, 1), round(left * speed, 1)),
        ang_vel_z=(-turn, turn),
        frequency=round(step_rate(robot, height), 1),
        swing_height=swing if reached > _REACHED * swing else round(reached, 3),
        sole=round(float(np.mean([foot.radius for foot in robot.feet])), 4),
        mirror=mirror_patterns(robot),
    )


def _offsets(prepared: Prepared) -> tuple[float, ...]:
    """Half a period for every other foot around the robot, in the order of the feet's sites."""
    robot, model = prepared.robot, prepared.model
    data = at(model, prepared.home)
    places = [data.site(f"{foot.name}_sole").xpos for foot in robot.sites(model)]
    offsets = np.zeros(len(places))
    for is_left in (False, True):
        row = [i for i, place in enumerate(places) if (place[1] > 0.0) == is_left]
        row.sort(key=lambda i: -places[i][0])
        # On two legs the right one is half a period ahead, on more the left one in front.
        offsets[row] = 0.5 * ((np.arange(len(row)) + (is_left != (len(places) == 2))) % 2)
    return tuple(offsets.tolist())


def _bend(prepared: Prepared, swing: float) -> tuple[dict[str, float], float]:
    """The smallest changes of joints that lift each foot by `swing`, rad, and the height, m, that
    all feet reach within the ranges of the joints."""
    model, robot, home = prepared.model, prepared.robot, prepared.home
    bends: dict[str, float] = {}
    lowest = swing
    for leg, foot in zip(robot.legs, robot.feet, strict=True):
        data = at(model, home)
        names = pitch_joints(data, leg) or list(leg.joints)
        places = [model.joint(name).qposadr[0] for name in names]
        sole = data.site(f"{foot.name}_sole")
        target, guess = sole.xpos + np.array([0.0, 0.0, swing]), home[places]
        move_foot(data, robot, foot, names, target, guess=guess, scale=swing, stay=0.05)
        lowest = min(lowest, swing + float(sole.xpos[2] - target[2]))
        bends |= dict(zip(names, (data.qpos[places] - guess).tolist(), strict=True))
    signs = mirror_signs(model, robot)
    even = {
        name: (angle + signs[name] * bends.get(robot.partners[name], angle)) / 2.0
        for name, angle in bends.items()
    }
    lifting = {name: round(angle, 2) for name, angle in even.items() if abs(angle) > 0.02}
    if not lifting:
        raise ConfigError("the joints of the legs cannot lift the feet; name them with --feet")
    return lifting, lowest


def _action_scale(prepared: Prepared) -> dict[str, float]:
    """The angle by which an action of 1 moves a target, rad.

    It is a fraction of the angle at which the servo exerts its largest torque. Soft servos need
    more: a fraction of the angle by which the robot's weight bends them. Stiff ones have a least
    angle, but not at ankles, whose torque would tip the foot. If a hip of two legs swings too
    slowly on the model's own servo, all are larger by the square of the ratio: two legs balance
    by where they step, and need the natural frequency of added servos.
    """
    robot, model, height = prepared.robot, prepared.model, prepared.hip_height
    is_biped, weight = robot.stance == 2, 9.81 * robot.mass * height
    torque, load, low, high = (0.125, 0.045, 0.1, 0.5) if is_biped else (0.33, 0.18, 0.2, 0.5)
    driven = {s.joint: s for s in robot.servos if s.torque > 0.0 and s.stiffness > 0.0}
    own = {name for name, servo in driven.items() if servo.kind == "position"}
    moved, data = inertias(model, prepared.home), at(model, prepared.home)
    rate = swing_rate(robot, height) if is_biped else 0.0
    hips, thighs = (
        {name for leg in robot.legs for name in down_to(data, leg, number)} for number in (1, 2)
    )
    slow = max((moved[n] * rate**2 / driven[n].stiffness for n in hips & own), default=0.0)
    scales: dict[str, float] = {}
    for name in robot.leg_joints:
        if servo := driven.get(name):
            bent = max(torque * servo.torque, load * weight) / servo.stiffness
            least = low if not is_biped or name in thighs or name in robot.trunk else 0.0
            if is_biped and name in thighs - own:
                least = max(low, min(_STEP, _SHARE * weight / servo.stiffness))
            scale = min(max(bent, least), high) * max(slow, 1.0)
            scales[name] = float(f"{min(scale, _LARGEST):.2g}")
    return {name: min(s, scales.get(robot.partners[name], s)) for name, s in scales.items()}


def mirror_patterns(robot: Robot) -> dict[str, str] | None:
    """Patterns that turn names of one side into those of the other; None without symmetry."""
    names = dict(robot.partners)
    if any(names[joint] == joint for leg in robot.legs for joint in leg.joints):
        return None
    feet = {leg.joints[0]: foot.name for leg, foot in zip(robot.legs, robot.feet, strict=True)}
    names |= {f"{foot}_sole": f"{feet[names[hip]]}_sole" for hip, foot in feet.items()}
    patterns: dict[str, str] = {}
    for one, other in names.items():
        if one == other or other in patterns:
            continue
        before, a, b, after = _difference(one, other)
        rest = f"{after[0] if after[0] in '_-' else ''}(.*)" if after else ""
        left, right = f"{before}{a}{rest}", f"{before}{b}{rest}"
        if right not in patterns:
            patterns[left] = right
    # The first that fits a name counts: "left(.*)" before "l(.*)".
    return dict(sorted(patterns.items(), key=lambda pair: -len(pair[0])))


def _difference(one: str, other: str) -> tuple[str, str, str, str]:
    """The common start, the different parts and the common end of two names, by words.

    By letters if they have no word in common.
    """
    for pattern in ("([_-])", "(.)"):
        words = [re.split(pattern, name) for name in (one, other)]
        before = commonprefix(words)  # noqa: RUF071 - of names, not of paths
        backward = [parts[len(before) :][::-1] for parts in words]
        after = commonprefix(backward)[::-1]  # noqa: RUF071
        if before or after:
            break
    if after and min(len(parts) for parts in backward) == len(after):  # a prefix of one side alone
        after = after[1:]
    a, b = ("".join(parts[len(after) :][::-1]) for parts in backward)
    return "".join(before), a, b, "".join(after)
