"""Motions of the walker, for tests."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation
from walker import walker_model

from simtrain.motion.clip import MotionClip, body_names, joint_names


def write_clip(path: Path, frames: int, seed: int = 0, fps: float = 50.0) -> Path:
    """A robot that turns and leans on its way, with the velocities that MuJoCo has for it."""
    model, rng = walker_model().compile(), np.random.default_rng(seed)
    data, time = mujoco.MjData(model), np.arange(frames) / fps
    rate, phase = rng.uniform(0.5, 2.0, 8), rng.uniform(0, 6, 8)
    curves = np.sin(rate * time[:, None] + phase)
    turn = Rotation.from_euler("zyx", curves[:, 3:6] * [2.0, 0.3, 0.3])
    place = [0.0, 0.0, 0.7] + 0.2 * curves[:, :3]
    qpos = np.hstack((place, turn.as_quat(scalar_first=True), curves[:, 6:]))
    qvel = np.zeros((frames, model.nv))
    for i in range(frames):
        first, last = max(i - 1, 0), min(i + 1, frames - 1)
        mujoco.mj_differentiatePos(model, qvel[i], (last - first) / fps, qpos[first], qpos[last])
    parts = {"body_pos_w": 3, "body_quat_w": 4, "body_lin_vel_w": 3, "body_ang_vel_w": 3}
    arrays = {n: np.zeros((frames, model.nbody - 1, k), np.float32) for n, k in parts.items()}
    for i in range(frames):
        data.qpos[:], data.qvel[:] = qpos[i], qvel[i]
        mujoco.mj_forward(model, data)
        arrays["body_pos_w"][i], arrays["body_quat_w"][i] = data.xpos[1:], data.xquat[1:]
        for body in range(1, model.nbody):
            twist, kind = np.zeros(6), mujoco.mjtObj.mjOBJ_XBODY
            mujoco.mj_objectVelocity(model, data, kind, body, twist, 0)
            arrays["body_ang_vel_w"][i, body - 1], arrays["body_lin_vel_w"][i, body - 1] = (
                twist[:3],
                twist[3:],
            )
    joints = {"joint_pos": qpos[:, 7:], "joint_vel": qvel[:, 6:]}
    arrays |= {name: value.astype(np.float32) for name, value in joints.items()}
    MotionClip(path.stem, fps, joint_names(model), body_names(model), **arrays).save(path)
    return path
