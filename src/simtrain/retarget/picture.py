"""A picture of a retargeted motion: the person next to the robot, in several frames."""

from itertools import pairwise

import mujoco
import numpy as np
from PIL import Image

from simtrain.env.commands import Marker, Sphere
from simtrain.retarget.humanoid import Humanoid
from simtrain.retarget.person import LANDMARKS, Person, above
from simtrain.view.renderer import Canvas

_COLUMNS, _ROWS, _WIDTH, _HEIGHT = 4, 2, 400, 360
_LEFT = 150  # pixels that are cut off: the camera looks at the robot, left of the person
_LONG = 100.0  # s, after which the camera has caught up
_COLOR = (0.9, 0.45, 0.1)
_TRUNK = ("left_hip", "right_hip", "right_shoulder", "left_shoulder", "left_hip")
_BONES = [(above(n), n) for n in LANDMARKS if not n.endswith(("hip", "shoulder"))]
_BONES += pairwise(_TRUNK)


def picture(person: Person, robot: Humanoid, qpos: np.ndarray) -> Image.Image:
    """Evenly spaced frames; the person is orange, scaled to the robot's size, and ahead of it."""
    model, data = robot.model, mujoco.MjData(robot.model)
    frames = np.linspace(0, len(qpos) - 1, _COLUMNS * _ROWS).round().astype(int)
    look = model.vis.global_
    look.azimuth, look.elevation, look.fovy = 110.0, -8.0, 55.0
    if not (model.geom_group[model.geom_bodyid > 0] < 3).any():
        model.geom_group[:] = 0  # it has no looks but its collision geometry
    tiles = []
    with Canvas(model, _LEFT + _WIDTH, _HEIGHT) as canvas:
        for frame in frames:
            data.qpos[:] = qpos[frame]
            mujoco.mj_forward(model, data)
            markers = _markers(person, robot, int(frame))
            tiles.append(canvas.render(data, passed_s=_LONG, markers=markers)[:, _LEFT:])
    rows = [np.concatenate(tiles[i : i + _COLUMNS], axis=1) for i in range(0, len(tiles), _COLUMNS)]
    return Image.fromarray(np.concatenate(rows))


def _markers(person: Person, robot: Humanoid, frame: int) -> list[Marker]:
    at = {n: robot.leg * (p[frame] + [1.0, 0.0, 0.0]) for n, p in person.at.items()}
    dots: list[Marker] = []
    for start, end in _BONES:
        for share in np.linspace(0.0, 1.0, 9):
            x, y, z = map(float, (1.0 - share) * at[start] + share * at[end])
            dots.append(Sphere((x, y, z), 0.03 if share in (0.0, 1.0) else 0.018, _COLOR))
    return dots
