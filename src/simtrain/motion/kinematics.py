"""From positions of a robot, frame by frame, to a motion: velocities and bodies by MuJoCo."""

from pathlib import Path

import mujoco
import numpy as np

from simtrain.errors import ConfigError
from simtrain.motion.clip import MotionClip, body_names, joint_names, mean_of_neighbours

_FREE = mujoco.mjtJoint.mjJNT_FREE.value


def load_robot(path: Path) -> mujoco.MjModel:
    """Compile an MJCF of a robot with a floating base; it gets a floor if it has no plane.

    ConfigError if it cannot be used.
    """
    try:
        spec = mujoco.MjSpec.from_file(str(path))
        if not any(geom.type == mujoco.mjtGeom.mjGEOM_PLANE for geom in spec.worldbody.geoms):
            spec.worldbody.add_geom(type=mujoco.mjtGeom.mjGEOM_PLANE, size=[0, 0, 0.05])
        model = spec.compile()
    except ValueError as error:
        raise ConfigError(f"{path} is not a valid model: {' '.join(str(error).split())}") from error
    check_robot(model, str(path))
    return model


def check_robot(model: mujoco.MjModel, where: str) -> None:
    """Raise ConfigError unless a model is of one free joint, then hinges and slides."""
    floats = model.njnt > 0 and model.jnt_type[0] == _FREE
    if not floats or model.nq != 7 + len(joint_names(model)):
        needed = "of a free joint, followed by hinges and slides alone"
        raise ConfigError(f"{where} is not {needed}, as robots of motions must be")


def root_body(model: mujoco.MjModel) -> int:
    """The id of the body that floats."""
    return int(model.jnt_bodyid[0])


def qpos_of(clip: MotionClip, model: mujoco.MjModel) -> np.ndarray:
    """A motion as MuJoCo's positions, float64, ``(frames, nq)``."""
    root = root_body(model) - 1
    parts = (clip.body_pos_w[:, root], clip.body_quat_w[:, root], clip.joint_pos)
    return np.concatenate(parts, axis=1, dtype=np.float64)


def qvel_of(model: mujoco.MjModel, qpos: np.ndarray, fps: float) -> np.ndarray:
    """Velocities of positions ``(frames, nq)`` by ``mj_differentiatePos``: ``(frames, nv)``.

    In each frame it is the mean of the differences to the frame before and the frame after.
    """
    steps = np.zeros((len(qpos) - 1, model.nv))
    for i in range(len(steps)):
        # A turn of the base has the same entries in both of its frames: it is about its own axis.
        mujoco.mj_differentiatePos(model, steps[i], 1.0 / fps, qpos[i], qpos[i + 1])
    return mean_of_neighbours(steps)


def clip_of(model: mujoco.MjModel, name: str, fps: float, qpos: np.ndarray) -> MotionClip:
    """The motion through positions ``(frames, nq)`` of a `load_robot` model, two or more.

    What it is made of is rounded to 8 um or urad, and velocities to 0.2 mm/s or mrad/s, so that
    its file is half as large.
    """
    qpos = np.concatenate((_rounded(qpos[:, :3], 17), qpos[:, 3:7], _rounded(qpos[:, 7:], 17)), 1)
    qvel = qvel_of(model, qpos, fps)
    shape = (len(qpos), model.nbody)
    pos, quat = np.zeros((*shape, 3)), np.zeros((*shape, 4))
    linear, angular = np.zeros((*shape, 3)), np.zeros((*shape, 3))
    data = mujoco.MjData(model)
    for i in range(len(qpos)):
        data.qpos, data.qvel = qpos[i], qvel[i]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_comVel(model, data)
        pos[i], quat[i], angular[i] = data.xpos, data.xquat, data.cvel[:, :3]
        # cvel is of the point of the body that is at its robot's centre of mass.
        arm = data.xpos - data.subtree_com[model.body_rootid]
        linear[i] = data.cvel[:, 3:] + np.cross(data.cvel[:, :3], arm)
    places = [_rounded(array, 17) for array in (pos[:, 1:], quat[:, 1:])]
    velocities = [_rounded(array, 12) for array in (qvel[:, 6:], linear[:, 1:], angular[:, 1:])]
    joint_vel, *body_vel = velocities
    arrays = (qpos[:, 7:], joint_vel, *places, *body_vel)
    float32 = (np.ascontiguousarray(array, dtype=np.float32) for array in arrays)
    return MotionClip(name, fps, joint_names(model), body_names(model), *float32)


def _rounded(array: np.ndarray, bits: int) -> np.ndarray:
    """The array with so many bits after the point."""
    rounded: np.ndarray = np.ldexp(np.round(np.ldexp(array, bits)), -bits)
    return rounded
