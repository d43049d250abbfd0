"""Measuring whether a prepared robot can stand, and what about its model cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np

from simtrain.robots.prepare import Prepared
from simtrain.robots.standing import Guided, on_ground

STANDS_S = 3.0
_SINKS = 0.05
"""By which part of its height a robot that stands may sink."""
_SATURATED = 0.95
"""Part of a motor's largest torque that holding the pose may not take."""


@dataclass(frozen=True)
class Finding:
    """One line of the table."""

    what: str
    is_good: bool
    text: str
    """What was measured and, where it is not good, what to write."""


def check(prepared: Prepared) -> list[Finding]:
    """What was measured; the robot can stand if the first is good."""
    model = on_ground(prepared.spec)
    return [*_stands(prepared, model), *_ranges(prepared, model), *_masses(prepared, model)]


def _stands(prepared: Prepared, model: mujoco.MjModel) -> Iterator[Finding]:
    robot, home = prepared.robot, prepared.home
    guided = Guided(model, robot, home)
    largest = np.zeros(model.nu)
    for _ in guided.run(STANDS_S, prepared.ctrl):
        np.maximum(largest, np.abs(guided.data.actuator_force), out=largest)
    data, place = guided.data, guided.place + 2
    sunk = float(home[place] - data.qpos[place])
    away = np.abs(data.qpos[guided.joints] - home[guided.joints])
    worst = robot.joints[int(away.argmax())]
    good = bool(np.isfinite(data.qpos).all()) and abs(sunk) < _SINKS * home[place]
    text = f"{STANDS_S:.0f} s, upright by a guide: sinks {1e3 * sunk:.0f} mm"
    text = f"{text}, {worst} is {away.max():.2f} rad away"
    if not good:
        text = f"{text}; raise the stiffness (kp) and the force range of its servos"
    yield Finding("stands", good, text)
    seconds = _balance(model, robot.base)
    by_itself = seconds >= STANDS_S
    text = f"{seconds:.1f} s by itself, its servos at rest"
    if not by_itself:
        text += ": a policy must balance it" if len(robot.legs) == 2 else "; look at its feet"
    yield Finding("balance", by_itself or len(robot.legs) == 2, text)
    bounds = {servo.joint: servo.torque for servo in robot.servos}
    full = [
        name
        for i in range(model.nu)
        if (name := model.joint(model.actuator_trnid[i, 0]).name) in bounds
        and largest[i] > _SATURATED * bounds[name] > 0.0
    ]
    text = f"all below {_SATURATED:.0%} of their largest while it stands"
    if full:
        text = f"{', '.join(full)} need all they have; raise their force range, or bend less"
    yield Finding("torques", not full, text)


def _balance(model: mujoco.MjModel, base: str) -> float:
    """How long the robot stays upright with targets at rest, s."""
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    while data.time < STANDS_S and data.body(base).xmat[8] > 0.8:
        mujoco.mj_step(model, data)
    return float(data.time)


def _ranges(prepared: Prepared, model: mujoco.MjModel) -> Iterator[Finding]:
    outside = []
    for name in prepared.robot.joints:
        joint = model.joint(name)
        low, high = joint.range
        value = prepared.home[joint.qposadr[0]]
        if model.jnt_limited[joint.id] and not low - 0.01 <= value <= high + 0.01:
            outside.append(f"{name} ({value:.2f} of {low:.2f} to {high:.2f})")
    text = "of all joints contain the pose at home"
    if outside:
        text = f"home is outside of those of {', '.join(outside)}"
    yield Finding("ranges", not outside, text)


def _masses(prepared: Prepared, model: mujoco.MjModel) -> Iterator[Finding]:
    robot, size = prepared.robot, float(prepared.home[2])
    odd = []
    for body in range(1, model.nbody):
        mass, inertia = model.body_mass[body], model.body_inertia[body]
        if mass > 1e-3 * robot.mass and np.sqrt(inertia.max() / mass) > size:
            odd.append(f"{model.body(body).name}: its inertia is that of something larger")
        if mass > 0.8 * robot.mass and model.nbody > 3:
            odd.append(f"{model.body(body).name} weighs {mass:.1f} of {robot.mass:.1f} kg")
    text = f"{robot.mass:.1f} kg, no body with an inertia that cannot be"
    yield Finding("masses", not odd, "; ".join(odd) or text)
