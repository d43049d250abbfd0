"""Simulating a prepared robot that stands: what its servos need, and which physics step."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np

from simtrain.errors import ConfigError
from simtrain.robots.inspect import Robot
from simtrain.robots.read import compiled

CONTROL_STEP = 0.02
"""Time between two actions, s."""
_STEPS = (0.01, 0.005, 0.004, 0.0025, 0.002, 0.001)
"""Physics steps to choose from, parts of a control step."""
_SAME_MOTION = 0.1
"""How far joints may be from where they are with the finest physics step, rad."""


def on_ground(spec: mujoco.MjSpec) -> mujoco.MjModel:
    """The model of `spec` on a plane."""
    spec = spec.copy()
    plane = spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE)
    plane.size, plane.contype, plane.conaffinity = [0.0, 0.0, 0.05], 1, 1
    return compiled(spec, "the prepared model")


class Guided:
    """A simulation whose base may only rise and sink, or hangs `lift` above its place, m."""

    def __init__(
        self, model: mujoco.MjModel, robot: Robot, home: np.ndarray, *, lift: float = 0.0
    ) -> None:
        self.model, self.data = model, mujoco.MjData(model)
        joint = model.body(robot.base).jntadr[0]
        self.place, self.dof = model.jnt_qposadr[joint], model.jnt_dofadr[joint]
        hinges = [model.joint(name) for name in robot.joints]
        self.joints = np.array([j.qposadr[0] for j in hinges])
        self.dofs = np.array([j.dofadr[0] for j in hinges])
        self.data.qpos[:] = home
        self.data.qpos[self.place + 2] += lift
        self._rises, self._pose = not lift, self.data.qpos[self.place : self.place + 7].copy()

    def run(self, seconds: float, ctrl: np.ndarray) -> Iterator[None]:
        """Simulate, and give control back after each step."""
        data, place, dof = self.data, self.place, self.dof
        data.ctrl[:] = ctrl
        for _ in range(round(seconds / self.model.opt.timestep)):
            mujoco.mj_step(self.model, data)
            height, speed = data.qpos[place + 2], data.qvel[dof + 2]
            data.qpos[place : place + 7] = self._pose
            data.qvel[dof : dof + 6] = 0.0
            if self._rises:
                data.qpos[place + 2], data.qvel[dof + 2] = height, speed
            yield


def targets(model: mujoco.MjModel, home: np.ndarray) -> np.ndarray:
    """The positions of the servos' joints at `home`, `(nu,)`."""
    ctrl = np.zeros(model.nu)
    for i in range(model.nu):
        joint = model.actuator_trnid[i, 0]
        ctrl[i] = home[model.jnt_qposadr[joint]] * model.actuator_gear[i, 0]
    return ctrl


def positions(model: mujoco.MjModel, ctrl: np.ndarray, home: np.ndarray) -> np.ndarray:
    """The positions that servos aim at, and those of `home` besides, `(nq,)`."""
    qpos = home.copy()
    for i in range(model.nu):
        joint = model.actuator_trnid[i, 0]
        qpos[model.jnt_qposadr[joint]] = ctrl[i] / model.actuator_gear[i, 0]
    return qpos


def hold(model: mujoco.MjModel, robot: Robot, home: np.ndarray) -> np.ndarray:
    """Targets of the servos with which the robot stands at `home`, its base guided, `(nu,)`."""
    wanted = targets(model, home)
    ctrl = wanted.copy()
    for _ in range(4):
        guided = Guided(model, robot, home)
        for _ in guided.run(1.0, ctrl):
            pass
        if not np.isfinite(guided.data.qpos).all():
            break
        ctrl += wanted - targets(model, guided.data.qpos)
    return ctrl


def settled(model: mujoco.MjModel, robot: Robot, home: np.ndarray, ctrl: np.ndarray) -> np.ndarray:
    """`home` at the height where the feet carry the weight."""
    guided = Guided(model, robot, home)
    for _ in guided.run(1.0, ctrl):
        pass
    settled = home.copy()
    height = guided.data.qpos[guided.place + 2]
    if abs(height - home[guided.place + 2]) < 0.2 * home[guided.place + 2]:
        settled[guided.place + 2] = height
    return settled


def stable_step(model: mujoco.MjModel, robot: Robot, home: np.ndarray) -> float:
    """The coarsest physics step with which joints move as they do with the finest."""
    fine = _motion(model, robot, home, _STEPS[-1])
    for timestep in _STEPS:
        coarse = _motion(model, robot, home, timestep)
        if np.isfinite(coarse).all() and np.abs(coarse - fine).max() < _SAME_MOTION:
            return timestep
    raise ConfigError("its servos are not stable at 1 ms; lower their stiffness (kp)")


def _motion(model: mujoco.MjModel, robot: Robot, home: np.ndarray, timestep: float) -> np.ndarray:
    """Positions of the joints while the robot stands, and while it kicks in the air, rad."""
    model.opt.timestep = timestep
    every, seen = round(CONTROL_STEP / timestep), []
    for lift in (0.0, 1.0):
        guided = Guided(model, robot, home, lift=lift)
        guided.data.qvel[guided.dofs] = lift
        for i, _ in enumerate(guided.run(0.5, targets(model, home)), start=1):
            if i % every == 0:
                seen.append(guided.data.qpos[guided.joints].copy())
    return np.array(seen)
