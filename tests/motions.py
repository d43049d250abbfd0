"""Motions of robots, for tests."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np
from scipy.spatial.transform import Rotation

from simtrain.motion.clip import clip_of


def write_clip(
    path: Path, model: mujoco.MjModel, frames: int, seed: int = 0, fps: float = 50.0
) -> Path:
    """A robot that turns and leans on its way; `model` floats, and its joints have one angle."""
    rng, time = np.random.default_rng(seed), np.arange(frames) / fps
    rate, phase = rng.uniform(0.5, 2.0, model.nv), rng.uniform(0, 6, model.nv)
    curves = np.sin(rate * time[:, None] + phase)
    turn = Rotation.from_euler("zyx", curves[:, 3:6] * [2.0, 0.3, 0.3])
    place = [0.0, 0.0, 0.7] + 0.2 * curves[:, :3]
    qpos = np.hstack((place, turn.as_quat(scalar_first=True), curves[:, 6:]))
    path.write_bytes(clip_of(model, path.stem, fps, qpos).packed())
    return path
