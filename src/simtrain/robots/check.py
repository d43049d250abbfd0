"""Checks of a prepared robot: whether it can stand, and whether its model is plausible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import mujoco
import numpy as np

from simtrain.robots.kinematics import at
from simtrain.robots.prepare import Prepared
from simtrain.robots.read import refused
from simtrain.robots.standing import Guided, equilibrium, on_ground

STANDS_S = 3.0
_SINKS = 0.05
"""Maximum fraction of its height by which a standing robot may sink."""
_AWAY = 0.3
"""Maximum deviation of a joint from home while the robot stands, rad or m."""
_SATURATED = 0.95
"""Fraction of a motor's largest torque that the home pose must not exceed."""
_FINE = 0.0025
"""A smaller physics step than this means that servos are stiffer than necessary, s."""
_OPEN = 0.02
"""Maximum distance between the ends of a loop, which give way a little under load, m or rad."""


@dataclass(frozen=True)
class Finding:
    """A row of the table."""

    what: str
    is_good: bool
    text: str
    """The measurement and, if it is not good, what to change."""


@refused("the model cannot be checked")
def check(prepared: Prepared) -> list[Finding]:
    """All findings; the robot can stand if the first one is good."""
    model = on_ground(prepared.spec)
    parts = (_stands, _balance, _torques, _loops, _contacts, _ranges, _masses, _servos)
    return [finding for part in parts for finding in part(prepared, model)]


def _stands(prepared: Prepared, model: mujoco.MjModel) -> Iterator[Finding]:
    home, guided = prepared.home, Guided(model, prepared.home)
    for _ in guided.run(STANDS_S, prepared.ctrl):
        pass
    qpos, height = guided.data.qpos, max(float(home[2]), 0.1) if prepared.robot.legs else 1.0
    sunk = float(home[2] - qpos[2]) if prepared.robot.legs else 0.0
    away = np.abs(qpos[guided.joints] - home[guided.joints])
    worst = prepared.robot.joints[int(away.argmax())]
    good = bool(np.isfinite(qpos).all()) and abs(sunk) < _SINKS * height and away.max() < _AWAY
    moved = f"{'sinks' if sunk >= 0.0 else 'rises'} {round(1e3 * abs(sunk))} mm"
    guide = f"its base upright by a guide: {moved}, "
    text = f"{STANDS_S:.0f} s at home, {guide if prepared.robot.legs else ''}"
    is_slide = model.joint(worst).type[0] == mujoco.mjtJoint.mjJNT_SLIDE
    text = f"{text}{worst} is {away.max():.2f} {'m' if is_slide else 'rad'} from home"
    if not good:
        change = "lower" if prepared.timestep < _FINE else "raise the force range and"
        text = f"{text}; {change} the stiffness (kp) of its servos"
    yield Finding("stands", good, text)


def _balance(prepared: Prepared, model: mujoco.MjModel) -> Iterator[Finding]:
    """How long a robot on legs stays upright without the guide."""
    if not (legs := len(prepared.robot.legs)):
        return
    data = mujoco.MjData(model)
    mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_forward(model, data)
    steps, total = 0, round(STANDS_S / model.opt.timestep)
    while steps < total and data.body(prepared.robot.base).xmat[8] > 0.8:
        mujoco.mj_step(model, data)
        steps += 1
    text = f"{steps * model.opt.timestep:.1f} s by itself, its servos at rest"
    if steps < total:
        text += ": a policy must balance it" if legs == 2 else "; are its feet those above?"
    yield Finding("balance", steps == total or legs == 2, text)


def _torques(prepared: Prepared, model: mujoco.MjModel) -> Iterator[Finding]:
    _, torques = equilibrium(model, prepared.home)
    full = [
        f"{servo.joint} ({needed:.0f} of {servo.torque:.0f} N m)"
        for servo in prepared.robot.servos
        if servo.torque > 0.0
        and (needed := abs(torques[model.joint(servo.joint).dofadr[0]])) > _SATURATED * servo.torque
    ]
    text = f"in the home pose, every joint needs less than {_SATURATED:.0%} of its largest torque"
    if full:
        text = f"holding home saturates {', '.join(full)}; raise the force range, or bend less"
    yield Finding("torques", not full, text)


def _loops(prepared: Prepared, model: mujoco.MjModel) -> Iterator[Finding]:
    """Whether the loops of equality constraints are closed in the home pose."""
    if not model.neq:
        return
    data = at(model, prepared.home)
    rows = data.efc_type == int(mujoco.mjtConstraint.mjCNSTR_EQUALITY)
    apart = np.abs(data.efc_pos[rows])
    worst = data.efc_id[rows][apart.argmax()] if len(apart) else 0
    good = not len(apart) or bool(apart.max() < _OPEN)
    text = "equality constraints hold at home"
    if not good:
        text = f"the constraint {model.equality(worst).name or worst} is off by {apart.max():.3f}"
        text = f"{text} at home; give the model a keyframe in which it holds"
    yield Finding("loops", good, text)


def _contacts(prepared: Prepared, _: mujoco.MjModel) -> Iterator[Finding]:
    pairs = prepared.touching
    text = "no parts of the robot touch each other at home"
    if pairs:
        shown = ", ".join(f"{one} and {other}" for one, other in pairs[:3])
        more = f" and {len(pairs) - 3} pairs more" if len(pairs) > 3 else ""
        text = f"{shown}{more} touch at home: their collisions are disabled; check their shapes"
    yield Finding("contacts", not pairs, text)


def _ranges(prepared: Prepared, model: mujoco.MjModel) -> Iterator[Finding]:
    outside = []
    for name in prepared.robot.joints:
        joint = model.joint(name)
        low, high = joint.range
        value = prepared.home[joint.qposadr[0]]
        if model.jnt_limited[joint.id] and not low - 0.01 <= value <= high + 0.01:
            outside.append(f"{name} ({value:.2f} of {low:.2f} to {high:.2f})")
    text = "the home pose is within the range of every joint"
    if outside:
        text = f"the home pose is outside the range of {', '.join(outside)}"
    yield Finding("ranges", not outside, text)


def _masses(prepared: Prepared, model: mujoco.MjModel) -> Iterator[Finding]:
    mass = prepared.robot.mass
    odd = [
        f"{model.body(body).name} weighs {own:.1f} of {mass:.1f} kg"
        for body, own in enumerate(model.body_mass)
        if own > 0.8 * mass and model.nbody > 3
    ]
    text = f"{mass:.1f} kg; no body has nearly all of it"
    yield Finding("masses", not odd, "; ".join(odd) or text)


def _servos(prepared: Prepared, model: mujoco.MjModel) -> Iterator[Finding]:
    """Which servo needs a small physics step: the one that is stiffest for its inertia."""
    timestep, text = prepared.timestep, f"stable with {1e3 * prepared.timestep:g} ms"
    if timestep < _FINE:
        inertia = model.dof_M0[model.jnt_dofadr[model.actuator_trnid[:, 0]]]
        rates = np.sqrt(np.abs(model.actuator_gainprm[:, 0]) / inertia) / (2.0 * np.pi)
        worst = int(rates.argmax())
        joint = model.joint(model.actuator_trnid[worst, 0]).name
        text = f"only {text}: the servo of {joint} oscillates at {rates[worst]:.0f} Hz;"
        text = f"{text} lower its stiffness (kp), or give its joint the armature of its rotor"
    yield Finding("servos", timestep >= _FINE, text)
