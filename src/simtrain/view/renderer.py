"""Pictures of an environment, drawn without a window: robot, commands, lines of text."""

import math
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Self

import mujoco
import numpy as np
from mujoco.rendering.classic import gl_context
from PIL import Image, ImageDraw, ImageFont

from simtrain.env.commands import Arrow, Frame, Marker, Sphere
from simtrain.env.env import Env
from simtrain.env.model import compile_model
from simtrain.env.names import find_base
from simtrain.errors import ConfigError
from simtrain.view.opengl import REMEDIES, RenderingError, choose_backend, choose_egl_device

_ARROW_RADIUS = 0.012  # m
_AXIS_RADIUS = 0.04  # of a frame, parts of its length
_SHORTEST_ARROW = 0.03  # m; shorter ones are not drawn
GHOST_RGBA = (0.15, 0.75, 0.25, 0.35)
_CAMERA_TIME_CONSTANT_S = 0.25
_TRACKING = (mujoco.mjtCamLight.mjCAMLIGHT_TRACK, mujoco.mjtCamLight.mjCAMLIGHT_TRACKCOM)


class Canvas:
    """Draws pictures of a simulation; a context manager, because it holds an OpenGL context."""

    def __init__(self, model: mujoco.MjModel, width: int, height: int) -> None:
        """Open an OpenGL context, or raise RenderingError; may lower `model`'s quality in place."""
        model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
        model.vis.global_.offheight = max(height, model.vis.global_.offheight)
        if model.nlight == 0:  # MuJoCo's headlight alone is dim
            model.vis.headlight.ambient[:] = 0.4
            model.vis.headlight.diffuse[:] = 0.6
        self._model = model
        self._camera = _Camera(model)
        self._text_size = max(12, height // 30)
        self._font = ImageFont.load_default(size=self._text_size)
        self._renderer = _open_renderer(model, width, height)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._renderer.close()

    def render(
        self,
        data: mujoco.MjData,
        passed_s: float = 0.0,
        lines: Sequence[str] = (),
        markers: Sequence[Marker] = (),
        ghosts: Sequence[mujoco.MjData] = (),
    ) -> np.ndarray:
        """A picture of `data`, whose positions are up to date: uint8, ``(height, width, 3)``.

        `passed_s` is the time since the last picture, for the camera that follows the robot;
        `lines` are drawn in the lower left corner, and `ghosts` are half-transparent robots.
        """
        self._camera.follow(data, passed_s)
        self._renderer.update_scene(data, self._camera.view)
        scene = self._renderer.scene
        for ghost in ghosts:
            first, moving = scene.ngeom, mujoco.mjtCatBit.mjCAT_DYNAMIC
            options, nothing = mujoco.MjvOption(), mujoco.MjvPerturb()
            mujoco.mjv_addGeoms(self._model, ghost, options, nothing, moving, scene)
            for geom in scene.geoms[first : scene.ngeom]:
                geom.rgba[:], geom.matid = GHOST_RGBA, -1
        for marker in markers:
            _add_marker(scene, marker)
        pixels: np.ndarray = self._renderer.render()
        text = "\n".join(filter(None, lines))
        if not text:
            return pixels
        image = Image.fromarray(pixels)
        margin = self._text_size // 2
        ImageDraw.Draw(image).multiline_text(
            (2 * margin, image.height - 2 * margin), text,
            font=self._font, fill="white", anchor="ld", stroke_width=2, stroke_fill="black",
        )  # fmt: skip
        return np.asarray(image)


def arrows_of(marker: Marker) -> tuple[np.ndarray, np.ndarray, float]:
    """The arrows of a marker: a frame's axes, or one arrow unless it is too short.

    Both ends of each in the world, m, ``(arrows, 2, 3)``; red, green and blue of each, 0 to 1,
    ``(arrows, 3)``; and their radius, m.
    """
    if isinstance(marker, Frame):
        matrix = np.empty(9)
        mujoco.mju_quat2Mat(matrix, np.array(marker.quaternion))
        ends = marker.origin + marker.length * matrix.reshape(3, 3).T
        points = np.stack((np.broadcast_to(marker.origin, (3, 3)), ends), axis=1)
        return points, np.eye(3), _AXIS_RADIUS * marker.length
    if isinstance(marker, Arrow) and math.dist(marker.start, marker.end) >= _SHORTEST_ARROW:
        return np.array([[marker.start, marker.end]]), np.array([marker.rgb]), _ARROW_RADIUS
    return np.empty((0, 2, 3)), np.empty((0, 3)), 0.0


def _add_marker(scene: mujoco.MjvScene, marker: Marker) -> None:
    """Draw a marker, unless the scene is full."""
    points, colors, radius = arrows_of(marker)
    if scene.ngeom + len(points) + 1 > scene.maxgeom:
        return
    if isinstance(marker, Sphere):
        size, rgba = np.full(3, marker.radius), (*marker.rgb, 0.6)
        _add_geom(scene, mujoco.mjtGeom.mjGEOM_SPHERE, size, marker.center, rgba)
    kind = mujoco.mjtGeom.mjGEOM_ARROW
    for (start, end), rgb in zip(points, colors, strict=True):
        geom = _add_geom(scene, kind, np.zeros(3), np.zeros(3), (*rgb, 1.0))
        mujoco.mjv_connector(geom, kind, radius, start, end)


def _add_geom(
    scene: mujoco.MjvScene, kind: mujoco.mjtGeom, size: Any, center: Any, rgba: Any
) -> mujoco.MjvGeom:
    geom, color = scene.geoms[scene.ngeom], np.array(rgba, dtype=np.float32)
    mujoco.mjv_initGeom(geom, kind, size, np.array(center), np.eye(3).ravel(), color)
    scene.ngeom += 1
    return geom


class Picture(Canvas):
    """Draws pictures of an environment."""

    def __init__(self, env: Env, width: int = 960, height: int = 540) -> None:
        """Open an OpenGL context, see `Canvas`."""
        self._drawn = DrawnEnv(env)
        super().__init__(self._drawn.model, width, height)
        self._data = mujoco.MjData(self._model)

    def draw(self, index: int = 0, passed_s: float = 0.0, note: str = "") -> np.ndarray:
        """The environment `index` with its commands and a note below them, see `Canvas.render`."""
        env, drawn = self._drawn.env, self._drawn
        drawn.take_sizes(index)
        take_state(env, index, self._model, self._data)
        terms = env.commands.terms.items()
        lines = [f"{name}:  {term.caption(index)}" for name, term in terms]
        markers = [marker for _, term in terms for marker in term.markers(index)]
        ghosts = list(drawn.ghosts(index).values())
        return self.render(self._data, passed_s, [*lines, note], markers, ghosts)


def take_state(env: Env, index: int, model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """Copy the state of the environment `index` to `data` of the drawn `model`, in place."""
    for field in ("qpos", "qvel", "ctrl", "mocap_pos", "mocap_quat"):
        target = getattr(data, field)
        if target.size:
            target[:] = env.bind(field)[index].cpu().numpy().reshape(target.shape)
    mujoco.mj_forward(model, data)


class DrawnEnv:
    """The model of an environment, with all geoms that are only drawn."""

    def __init__(self, env: Env) -> None:
        self.env, self.model = env, compile_model(env.cfg, visuals=True)
        # The drawn model has more geoms; those that are randomized have names.
        names = [(i, env.model.geom(i).name) for i in range(env.model.ngeom)]
        pairs = [(self.model.geom(name).id, i) for i, name in names if name]
        self._shown, self._own = np.array(pairs, dtype=int).reshape(-1, 2).T
        self._ghosts: dict[str, mujoco.MjData] = {}

    def take_sizes(self, index: int) -> bool:
        """Copy sizes and positions of parts of the environment `index` to `model`, in place;
        whether a geom changed."""
        model, own = self.model, self.env.sim.get_model(index)
        for field in ("body_pos", "body_quat", "jnt_pos", "jnt_axis", "qpos0"):
            getattr(model, field)[:] = getattr(own, field)
        changed = False
        for field in ("geom_size", "geom_pos", "geom_quat"):
            shown, values = getattr(model, field), getattr(own, field)[self._own]
            changed |= not np.array_equal(shown[self._shown], values)
            shown[self._shown] = values
        return changed

    def ghosts(self, index: int) -> dict[str, mujoco.MjData]:
        """The target poses of robots in the commands of the environment `index`, by name."""
        for name, term in self.env.commands.terms.items():
            if (qpos := term.ghost(index)) is not None:
                data = self._ghosts.setdefault(name, mujoco.MjData(self.model))
                data.qpos[:] = qpos
                mujoco.mj_kinematics(self.model, data)
        return self._ghosts


def _open_renderer(model: mujoco.MjModel, width: int, height: int) -> mujoco.Renderer:
    """A renderer of the chosen backend, with lower quality if the CPU draws."""
    backend = choose_backend()
    try:
        if backend == "egl":
            choose_egl_device()
        # MuJoCo takes its own choice from MUJOCO_GL while it is imported, long before.
        gl_context.GLContext = import_module(f"mujoco.{backend}").GLContext
        renderer = mujoco.Renderer(model, height, width)
        from OpenGL import GL  # not sooner: importing it settles the backend

        drawn_by = GL.glGetString(GL.GL_RENDERER)
        if not any(name in drawn_by for name in (b"llvmpipe", b"softpipe")):  # not the CPU
            return renderer
        renderer.close()
        model.vis.quality.offsamples = 0
        model.vis.quality.shadowsize = min(model.vis.quality.shadowsize, 1024)
        renderer = mujoco.Renderer(model, height, width)
    except Exception as error:  # errors of failing drivers are not documented
        reason = " ".join(str(error).split()) or type(error).__name__
        raise RenderingError(f"OpenGL by {backend} fails: {reason}; {REMEDIES[backend]}") from error
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION.value] = 0
    return renderer


class _Camera:
    """The model's first camera that is fixed to the world, or else one that follows the robot.

    It follows the floating base. A robot without one, as in a plane, is followed by the first
    camera of the model that does so (``mode`` ``track`` or ``trackcom``).
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        self.view = mujoco.MjvCamera()
        self._body: int | None = None
        tracking = np.isin(model.cam_mode, _TRACKING)
        fixed = (model.cam_bodyid == 0) & ~tracking
        if not fixed.any():
            mujoco.mjv_defaultFreeCamera(model, self.view)
            with suppress(ConfigError):
                self._body = find_base(model).body
                self.view.distance = 2.5 * robot_radius(model)
                self.view.lookat[:] = math.inf
        if self._body is None and (fixed | tracking).any():
            self.view.type = mujoco.mjtCamera.mjCAMERA_FIXED.value
            self.view.fixedcamid = int(np.argmax(fixed if fixed.any() else tracking))

    def follow(self, data: mujoco.MjData, passed_s: float) -> None:
        """Turn to the position of the base; smoothly, or at once after a jump."""
        if self._body is None:
            return
        offset = data.xpos[self._body] - self.view.lookat
        if np.linalg.norm(offset) < self.view.distance:
            self.view.lookat[:] += offset * (1.0 - math.exp(-passed_s / _CAMERA_TIME_CONSTANT_S))
        else:
            self.view.lookat[:] = data.xpos[self._body]


def robot_radius(model: mujoco.MjModel) -> float:
    """Distance of moving geoms from the base, or the origin, in the first keyframe, m."""
    data = mujoco.MjData(model)
    if model.nkey:
        mujoco.mj_resetDataKeyframe(model, data, 0)
    mujoco.mj_kinematics(model, data)
    center = np.zeros(3)
    with suppress(ConfigError):
        center = data.xpos[find_base(model).body]
    moving = model.body_weldid[model.geom_bodyid] != 0
    reach = np.linalg.norm(data.geom_xpos - center, axis=1) + model.geom_rbound
    return float(reach[moving].max(initial=0.1))
