"""Pictures of a prepared robot: home pose, joint axes, joint ranges and feet; random poses."""

from __future__ import annotations

from collections.abc import Iterator

import mujoco
import numpy as np
from PIL import Image
from scipy.spatial.transform import Rotation

from simtrain.env.commands import Arrow, Frame, Marker, Sphere
from simtrain.robots.gait import Gait
from simtrain.robots.kinematics import close_loops, ranges, touching_bodies
from simtrain.robots.prepare import Prepared
from simtrain.view.renderer import Canvas

_SIZE = 480
_VIEWS = (90.0, 180.0, 130.0)
"""Views from the left, from the front, and from the front left, degrees."""
_LEFT, _RIGHT, _MIDDLE = (0.1, 0.7, 0.2), (0.1, 0.4, 0.9), (0.6, 0.6, 0.6)
_POSES, _SECONDS = 60, 1.5
_RANGE, _FOOT = (0.95, 0.6, 0.1), (0.9, 0.1, 0.1)


def picture(prepared: Prepared, scene: mujoco.MjModel, figures: Gait | None) -> Image.Image:
    """Three views of the robot at home and, below, half a step, or an arm at its range limits.

    Above, the robot is half transparent. Axes are green on the left, blue on the right and gray in
    the middle, which shows a wrong symmetry. Joint ranges are orange, feet are red.
    """
    robot, poses = prepared.robot, [mujoco.MjData(scene) for _ in range(2 if figures else 1)]
    for data in poses:
        data.qpos[:] = prepared.home
    if figures:
        offsets = zip(robot.sites(prepared.model), figures.offsets, strict=True)
        ahead = {foot.name for foot, offset in offsets if offset > 0.0}
        for leg, foot in zip(robot.legs, robot.feet, strict=True):
            for name in leg.joints if foot.name in ahead else ():
                poses[1].qpos[scene.joint(name).qposadr[0]] += figures.bend.get(name, 0.0)
    for data in poses:
        mujoco.mj_kinematics(scene, data)
        close_loops(data, robot)
        mujoco.mj_forward(scene, data)
    markers, opaque = list(_markers(prepared, scene, poses[0])), scene.geom_rgba.copy()
    columns = []
    for azimuth in _VIEWS:
        scene.vis.global_.azimuth, scene.vis.global_.elevation = azimuth, -10.0
        with Canvas(scene, _SIZE, _SIZE) as canvas:
            scene.geom_rgba[scene.geom_bodyid > 0, 3] *= 0.4
            rows = [canvas.render(poses[0], markers=markers)]
            scene.geom_rgba[:] = opaque
            rows += [canvas.render(data) for data in poses[1:]]
        columns.append(np.concatenate(rows))
    return Image.fromarray(np.concatenate(columns, axis=1))


def _markers(prepared: Prepared, scene: mujoco.MjModel, data: mujoco.MjData) -> Iterator[Marker]:
    robot, size = prepared.robot, 0.18 * scene.stat.extent
    for name in robot.joints:
        joint, other = scene.joint(name).id, scene.joint(robot.partners[name]).id
        start, axis = data.xanchor[joint], data.xaxis[joint]
        side = start[1] - data.xanchor[other][1]
        color = _MIDDLE if joint == other else _LEFT if side > 0.0 else _RIGHT
        yield Arrow(tuple(start), tuple(start + size * axis), color)
        if scene.jnt_limited[joint] and scene.jnt_type[joint] == int(mujoco.mjtJoint.mjJNT_HINGE):
            yield from _range(scene, data, joint, 0.5 * size)
    for foot in robot.feet:
        yield Sphere(tuple(data.site(f"{foot.name}_sole").xpos), 0.13 * size, _FOOT)
    if not robot.legs:
        tool = data.site("tool")
        turned = Rotation.from_matrix(tool.xmat.reshape(3, 3))
        w, x, y, z = turned.as_quat(scalar_first=True).tolist()
        yield Frame(tuple(tool.xpos), (w, x, y, z), size)


def _range(scene: mujoco.MjModel, data: mujoco.MjData, joint: int, size: float) -> Iterator[Sphere]:
    """Dots on the arc of the link over its joint range, starting at home."""
    start, axis = data.xanchor[joint], data.xaxis[joint]
    body = scene.jnt_bodyid[joint]
    link = data.subtree_com[body] - start
    link = link - link @ axis * axis
    link = link / np.linalg.norm(link) if np.linalg.norm(link) > 1e-6 else np.cross(axis, [1, 1, 0])
    now = data.qpos[scene.jnt_qposadr[joint]]
    low, high = scene.jnt_range[joint] - now
    turns = Rotation.from_rotvec(np.outer(np.linspace(low, high, 30), axis))
    for turned in turns.apply(link):
        yield Sphere(tuple(start + size * turned), 0.05 * size, _RANGE)


class PosesFilm:
    """A robot in random poses, without gravity, to check axes and ranges.

    It moves from pose to pose; its base does not move. See `simtrain.view.film`.
    """

    fps, end_seconds = 30.0, 0.0

    def __init__(self, prepared: Prepared, name: str) -> None:
        self.title, self.model = name, prepared.model
        self.data = mujoco.MjData(self.model)
        places, low, high = ranges(self.model, prepared.robot.joints)
        drawn = np.random.default_rng(0).uniform(low, high, (_POSES, len(low)))
        self._poses = np.tile(prepared.home, (_POSES + 1, 1))
        self._poses[:, places] = [*drawn, drawn[0]]
        self.frames = round(_POSES * _SECONDS * self.fps)

    def show(self, frame: int) -> list[str]:
        """See `Film.show`; the lines name parts that touch each other."""
        pose, part = divmod(frame / self.fps / _SECONDS, 1.0)
        before, after = self._poses[int(pose)], self._poses[int(pose) + 1]
        self.data.qpos[:] = before + (after - before) * min(1.0, 2.0 * part)
        mujoco.mj_forward(self.model, self.data)
        pairs = sorted(touching_bodies(self.data))
        touching = [" and ".join(self.model.body(body).name for body in pair) for pair in pairs]
        return [f"pose {int(pose) + 1} of {_POSES}", *(f"{t} touch each other" for t in touching)]
