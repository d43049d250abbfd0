"""A picture of a prepared robot: as it stands, its joints' axes, its feet, and half a step."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
from PIL import Image

from simtrain.env.commands import Arrow, Marker, Sphere
from simtrain.robots.prepare import Prepared
from simtrain.view.renderer import Canvas

_SIZE = 480
_VIEWS = (90.0, 180.0, 130.0)
"""From the left, from ahead, and from ahead on the left, degrees."""


def picture(
    prepared: Prepared, bend: dict[str, float], offsets: Sequence[float], scene: mujoco.MjModel
) -> Image.Image:
    """Three views of the robot at home, with axes (green) and feet (red), and of half a step."""
    data = mujoco.MjData(scene)
    rows = []
    for lifted in (False, True):
        data.qpos[:] = prepared.home
        for name, angle in bend.items() if lifted else ():
            data.qpos[scene.joint(name).qposadr[0]] += angle * _swings(prepared, name, offsets)
        mujoco.mj_forward(scene, data)
        markers = () if lifted else _markers(prepared, scene, data)
        rows.append(np.concatenate([_view(scene, data, turn, markers) for turn in _VIEWS], axis=1))
    return Image.fromarray(np.concatenate(rows))


def _view(
    scene: mujoco.MjModel, data: mujoco.MjData, azimuth: float, markers: Sequence[Marker]
) -> np.ndarray:
    scene.vis.global_.azimuth, scene.vis.global_.elevation = azimuth, -10.0
    with Canvas(scene, _SIZE, _SIZE) as canvas:
        return canvas.render(data, markers=markers)


def _markers(prepared: Prepared, scene: mujoco.MjModel, data: mujoco.MjData) -> list[Marker]:
    size = 0.25 * prepared.hip_height
    markers: list[Marker] = []
    for name in prepared.robot.joints:
        joint = scene.joint(name).id
        start = data.xanchor[joint]
        end = start + size * data.xaxis[joint]
        markers.append(Arrow(tuple(start), tuple(end), (0.1, 0.7, 0.2)))
    for foot in prepared.robot.feet:
        place = data.site(f"{foot.name}_sole").xpos
        markers.append(Sphere(tuple(place), 0.12 * size, (0.9, 0.1, 0.1)))
    return markers


def _swings(prepared: Prepared, joint: str, offsets: Sequence[float]) -> bool:
    """Whether the foot that a joint carries is one of those that are ahead by half a period."""
    robot, model = prepared.robot, prepared.spec.compile()
    sites = sorted(robot.feet, key=lambda foot: model.site(f"{foot.name}_sole").id)
    ahead = {foot.name for foot, offset in zip(sites, offsets, strict=True) if offset > 0.0}
    legs = zip(robot.legs, robot.feet, strict=True)
    return any(joint in leg.joints and foot.name in ahead for leg, foot in legs)
