"""A robot with two legs that slide and a mast, small enough to compute by hand."""

from __future__ import annotations

from pathlib import Path

import mujoco
import numpy as np

from simtrain.motion.clip import load_robot

G1 = Path(__file__).parents[2] / "tasks" / "g1"
XML = """
<mujoco><compiler angle="radian"/><worldbody>
<body name="base" pos="0 0 0.5"><freejoint/><geom size="0.1"/>
<body name="mast"><joint name="mast" axis="0 0 1" range="-1 1" limited="true"/>
<geom type="box" size="0.05 0.05 0.05" pos="0 0 0.2"/><site name="top" pos="0.1 0 0.2"/></body>
<body name="left" pos="0 0.2 -0.2"><joint name="left" type="slide" axis="0 0 1" range="-1 1"/>
<geom type="box" size="0.1 0.05 0.05" pos="0 0 -0.25"/><site name="left_sole" pos="0 0 -0.3"/>
</body>
<body name="right" pos="0 -0.2 -0.2"><joint name="right" type="slide" axis="0 0 1" range="-1 1"/>
<geom type="box" size="0.1 0.05 0.05" pos="0 0 -0.25"/><site name="right_sole" pos="0 0 -0.3"/>
</body></body></worldbody>
<keyframe><key name="stand" qpos="0 0 0.5 1 0 0 0 0 0 0"/></keyframe></mujoco>"""


def make_robot(folder: Path, xml: str = XML) -> mujoco.MjModel:
    """The robot, with a floor; its file is robot.xml."""
    (folder / "robot.xml").write_text(xml)
    return load_robot(folder / "robot.xml")


def standing(model: mujoco.MjModel, frames: int = 26) -> np.ndarray:
    """Positions of frames in which it stands still, ``(frames, nq)``."""
    return np.tile(model.key("stand").qpos, (frames, 1))
