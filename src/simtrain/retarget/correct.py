"""Correction of a robot's own motion by retargeting it: soles that stand, and balance."""

from dataclasses import replace

import mujoco
import numpy as np

from simtrain.retarget.humanoid import Humanoid
from simtrain.retarget.person import on_floor
from simtrain.retarget.solve import solve
from simtrain.retarget.steps import targets_of

_ABOVE = {"knee": "hip", "elbow": "shoulder"}


def correct(qpos: np.ndarray, robot: Humanoid, fps: float) -> np.ndarray:
    """The motion, solved again like that of a person; positions ``(frames, nq)``.

    While a foot stands, its sole is flat and still. At rest, the centre of mass is above the feet.
    Rotations of base and chest are kept, and joint positions as far as possible. ConfigError if
    there is no solution.
    """
    at, base, chest = _landmarks(qpos, robot)
    person = on_floor({name: place / robot.leg for name, place in at.items()}, fps, robot.leg)
    targets = targets_of(person, robot, stretched=1.0)
    chest = chest @ robot.chest_rotation.T
    return solve(robot, replace(targets, pelvis=base, chest=chest, posture=qpos), fps)


def _landmarks(
    qpos: np.ndarray, robot: Humanoid
) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Positions by landmark, ``(frames, 3)``, and rotations of base and chest."""
    model, data = robot.model, mujoco.MjData(robot.model)
    base, chest = model.body(robot.base).id, model.body(robot.chest).id
    at: dict[str, list[np.ndarray]] = {}
    turns = np.zeros((2, len(qpos), 3, 3))
    for i, data.qpos in enumerate(qpos):
        mujoco.mj_kinematics(model, data)
        turns[:, i] = data.xmat[[base, chest]].reshape(2, 3, 3)
        places = {}
        for name, (upper, lower) in robot.segments.items():
            side, part = name.split("_")
            places[name] = lower.at(data)
            if part in _ABOVE:
                places[f"{side}_{_ABOVE[part]}"] = upper.at(data)
        for side, sole in robot.soles.items():
            places[f"{side}_toe"] = sole.toe(model, data)
            # A robot without arms has no shoulders; its chest's rotation is given.
            above = places[f"{side}_hip"] + robot.leg * turns[0, i, :, 2]
            places.setdefault(f"{side}_shoulder", above)
        for name, place in places.items():
            at.setdefault(name, []).append(place)
    return {name: np.array(places) for name, places in at.items()}, *turns
