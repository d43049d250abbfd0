"""Statics and simulation of a prepared robot, for its servos and its physics step."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
from scipy.optimize import brentq

from simtrain.errors import ConfigError
from simtrain.robots.inspect import IN_PARENT, Robot
from simtrain.robots.kinematics import at, touching_bodies
from simtrain.robots.read import compiled

CONTROL_STEP = 0.02
"""Time between two actions, s."""
_STEPS = (0.01, 0.005, 0.004, 0.0025, 0.002, 0.001)
"""Physics steps to choose from, s; each divides a control step."""
_SAME_MOTION = 0.1
"""Maximum deviation of joints from their motion with the smallest physics step, rad."""
_REST_S, _CORRECTIONS = 0.5, 10
"""Time to come to rest after a change of the targets, s, and the number of changes."""
_FREE, _SLIDE = int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_SLIDE)


def on_ground(spec: mujoco.MjSpec) -> mujoco.MjModel:
    """The model of `spec` on a plane, if it floats."""
    spec = spec.copy()
    if spec.bodies[1].joints and spec.bodies[1].joints[0].type == mujoco.mjtJoint.mjJNT_FREE:
        plane = spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE)
        plane.size, plane.contype, plane.conaffinity = [0.0, 0.0, 0.05], 1, 1
    return compiled(spec)


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

    def excess(height: float) -> float:
        data.qpos[2] = height
        mujoco.mj_inverse(model, data)
        return float(data.qfrc_inverse[2])

    data.qpos[:] = home
    if model.jnt_type[0] == _FREE:
        low, high = 0.9 * home[2], 1.1 * home[2]
        if excess(low) < 0.0 < excess(high):
            excess(brentq(excess, low, high, xtol=1e-6))
        else:
            excess(home[2])
    else:
        mujoco.mj_inverse(model, data)
    return data.qpos.copy(), data.qfrc_inverse.copy()


def settled(
    model: mujoco.MjModel, home: np.ndarray, ctrl: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Where linkages and springs come to rest while driven joints stay at `home`, and targets.

    By simulation, which corrects `ctrl` until the driven joints are at home: `(nq,)`, `(nu,)`.
    """
    guided, ctrl = Guided(model, home), ctrl.copy()
    on_joint = model.actuator_trntype <= IN_PARENT
    places = model.jnt_qposadr[model.actuator_trnid[on_joint, 0]]
    for _ in range(_CORRECTIONS):
        for _ in guided.run(_REST_S, ctrl):
            pass
        ctrl[on_joint] += home[places] - guided.data.qpos[places]
    return guided.data.qpos.copy(), ctrl


def targets(
    model: mujoco.MjModel, qpos: np.ndarray, torques: np.ndarray | None = None
) -> np.ndarray:
    """Targets of position servos with which they exert `torques` at `qpos`, `(nu,)`."""
    ctrl: np.ndarray = at(model, qpos).actuator_length.copy()
    if torques is not None:
        on_joint = model.actuator_trntype <= IN_PARENT
        dofs = model.jnt_dofadr[model.actuator_trnid[on_joint, 0]]
        stiffness = model.actuator_gainprm[on_joint, 0] * model.actuator_gear[on_joint, 0]
        ctrl[on_joint] += torques[dofs] / stiffness
    return ctrl


def remove_gear(actuator: mujoco.MjsActuator) -> None:
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


def carried(model: mujoco.MjModel, robot: Robot) -> dict[str, float]:
    """The stiffness with which joints of trunk and arms just carry their load, N m/rad."""
    data = at(model, model.qpos0)
    in_legs, needed = {name for leg in robot.legs for name in leg.joints}, {}
    for name in set(robot.joints) - in_legs:
        joint = model.joint(name).id
        body = model.jnt_bodyid[joint]
        arm = float(np.linalg.norm(data.subtree_com[body] - data.xanchor[joint]))
        needed[name] = 9.81 * float(model.body_subtreemass[body]) * arm
    return needed


def inertias(model: mujoco.MjModel, home: np.ndarray) -> dict[str, float]:
    """The inertia that each joint moves at `home` while all others are held, kg m^2 or kg."""
    matrix = np.empty((model.nv, model.nv))
    mujoco.mj_fullM(model, at(model, home), matrix)
    joints = [model.joint(number) for number in range(model.njnt)]
    return {joint.name: float(matrix[joint.dofadr[0], joint.dofadr[0]]) for joint in joints}


def leave_contacts(spec: mujoco.MjSpec, home: np.ndarray) -> tuple[tuple[str, str], ...]:
    """Exclude pairs of bodies that touch each other at home, in place; the pairs.

    Excluding does not act on the explicit pairs of geoms in `<contact>`, so these are removed.
    """
    model = compiled(spec)
    bodies = sorted(touching_bodies(model, at(model, home)))
    pairs = tuple((model.body(one).name, model.body(two).name) for one, two in bodies)
    for one, two in pairs:
        spec.add_exclude(bodyname1=one, bodyname2=two)
    for explicit in list(spec.pairs):
        geoms = model.geom(explicit.geomname1), model.geom(explicit.geomname2)
        if tuple(sorted(int(geom.bodyid[0]) for geom in geoms)) in bodies:
            spec.delete(explicit)
    return pairs


def stable_step(model: mujoco.MjModel, home: np.ndarray) -> float:
    """The largest physics step with which joints move in the same way as with the smallest."""
    fine = _motion(model, home, _STEPS[-1])
    for timestep in _STEPS:
        coarse = _motion(model, home, timestep)
        if np.isfinite(coarse).all() and np.abs(coarse - fine).max() < _SAME_MOTION:
            return timestep
    raise ConfigError("its servos are not stable at 1 ms; lower their stiffness (kp)")


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
