"""Pictures of one environment, drawn without a window: the robot, its command, a line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress

import mujoco
import numpy as np
from mujoco.rendering.classic import gl_context
from PIL import Image, ImageDraw, ImageFont

from simtrain.env.cfg import TaskCfg
from simtrain.env.commands import Arrow
from simtrain.env.env import Env
from simtrain.env.model import compile_model
from simtrain.env.names import find_base
from simtrain.errors import ConfigError
from simtrain.view.opengl import broken, choose_backend, context_class

_ARROW_WIDTH = 0.012  # m
SHORTEST_ARROW = 0.03
"""Arrows below this length are not drawn, m."""
_FOLLOW_S = 0.25  # time constant with which the camera follows, s


def drawing_model(cfg: TaskCfg) -> mujoco.MjModel:
    """The task's model with everything that is to be seen, for drawing alone.

    Its bodies and joints are those of `Env.model`; randomized shapes are drawn as the model has
    them.
    """
    return compile_model(cfg, visuals=True)


def copy_state(env: Env, index: int, data: mujoco.MjData) -> None:
    """Put `data`, of `drawing_model`, into the state of the environment `index`, in place."""
    for field in ("qpos", "qvel", "ctrl", "mocap_pos", "mocap_quat"):
        target = getattr(data, field)
        if target.size:
            target[:] = env.bind(field)[index].cpu().numpy().reshape(target.shape)


class Canvas:
    """Draws pictures of a simulation; a context manager, for it holds an OpenGL context."""

    def __init__(self, model: mujoco.MjModel, width: int, height: int) -> None:
        """Open an OpenGL context.

        Args:
            model: what to draw; its quality is changed in place to what the machine can draw.
            width: of the pictures, in pixels.
            height: of the pictures, in pixels.

        Raises:
            RenderingError: the machine has no OpenGL to draw with; says what to install.
        """
        model.vis.global_.offwidth = max(width, model.vis.global_.offwidth)
        model.vis.global_.offheight = max(height, model.vis.global_.offheight)
        if model.nlight == 0:  # MuJoCo's headlight alone is dim
            model.vis.headlight.ambient[:] = 0.4
            model.vis.headlight.diffuse[:] = 0.6
        self._camera = _Camera(model)
        self._text_size = max(12, height // 30)
        self._font = ImageFont.load_default(size=self._text_size)
        self._renderer = _open_renderer(model, width, height)

    def __enter__(self) -> Canvas:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the OpenGL context back."""
        self._renderer.close()

    def draw(
        self,
        data: mujoco.MjData,
        passed_s: float = 0.0,
        lines: Sequence[str] = (),
        arrows: Sequence[Arrow] = (),
    ) -> np.ndarray:
        """A picture of `data`, uint8, ``(height, width, 3)``.

        Args:
            data: a state whose positions are up to date.
            passed_s: time since the last picture, s; the camera follows as fast as that allows.
            lines: text to put into the lower left corner.
            arrows: to draw into the scene.
        """
        self._camera.follow(data, passed_s)
        self._renderer.update_scene(data, self._camera.view)
        for arrow in arrows:
            self._add(arrow)
        return self._write(self._renderer.render(), lines)

    def _add(self, arrow: Arrow) -> None:
        scene = self._renderer.scene
        start, end = np.array(arrow.start), np.array(arrow.end)
        if scene.ngeom >= scene.maxgeom or math.dist(start, end) < SHORTEST_ARROW:
            return
        geom, kind = scene.geoms[scene.ngeom], mujoco.mjtGeom.mjGEOM_ARROW
        rgba = np.array([*arrow.rgb, 1.0], dtype=np.float32)
        mujoco.mjv_initGeom(geom, kind, np.zeros(3), np.zeros(3), np.eye(3).ravel(), rgba)
        mujoco.mjv_connector(geom, kind, _ARROW_WIDTH, start, end)
        scene.ngeom += 1

    def _write(self, pixels: np.ndarray, lines: Sequence[str]) -> np.ndarray:
        text = "\n".join(filter(None, lines))
        if not text:
            return pixels
        image = Image.fromarray(pixels)
        margin = self._text_size // 2
        ImageDraw.Draw(image).multiline_text(
            (2 * margin, image.height - 2 * margin),
            text,
            font=self._font,
            fill="white",
            anchor="ld",
            stroke_width=2,
            stroke_fill="black",
        )
        return np.asarray(image)


class Picture:
    """Draws pictures of an environment; a context manager, for it holds an OpenGL context."""

    def __init__(self, env: Env, *, width: int = 960, height: int = 540) -> None:
        """Open an OpenGL context.

        Args:
            env: the environment.
            width: of the pictures, in pixels.
            height: of the pictures, in pixels.

        Raises:
            RenderingError: the machine has no OpenGL to draw with; says what to install.
        """
        self._env = env
        self._model = drawing_model(env.cfg)
        self._data = mujoco.MjData(self._model)
        self._canvas = Canvas(self._model, width, height)

    def __enter__(self) -> Picture:
        return self

    def __exit__(self, *exception: object) -> None:
        self._canvas.close()

    def draw(self, index: int = 0, passed_s: float = 0.0, note: str = "") -> np.ndarray:
        """The environment `index` as it is now, uint8, ``(height, width, 3)``.

        Args:
            index: the environment.
            passed_s: time since the last picture, s; the camera follows as fast as that allows.
            note: text to put below the commands.
        """
        copy_state(self._env, index, self._data)
        mujoco.mj_forward(self._model, self._data)
        terms = self._env.commands.terms.values()
        arrows = [arrow for term in terms for arrow in term.arrows(index)]
        return self._canvas.draw(
            self._data, passed_s, [*command_lines(self._env, index), note], arrows
        )


def command_lines(env: Env, index: int) -> list[str]:
    """A line for each command of the environment `index`, its entries with their labels."""
    lines = []
    for name, term in env.commands.terms.items():
        values = zip(term.entries(), term.command[index].tolist(), strict=True)
        lines.append(f"{name}:  " + "   ".join(f"{label} {value:+.2f}" for label, value in values))
    return lines


def _open_renderer(model: mujoco.MjModel, width: int, height: int) -> mujoco.Renderer:
    """A renderer of the chosen backend, of less quality where the CPU draws."""
    # MuJoCo takes its own choice from MUJOCO_GL while it is imported, long before.
    gl_context.GLContext = context_class()
    try:
        renderer = mujoco.Renderer(model, height, width)
        if not _drawn_by_cpu():
            return renderer
        renderer.close()
        model.vis.quality.offsamples = 0
        model.vis.quality.shadowsize = min(model.vis.quality.shadowsize, 1024)
        renderer = mujoco.Renderer(model, height, width)
    except Exception as error:  # what a driver's failure raises is not documented
        raise broken(choose_backend(), error) from error
    renderer.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION.value] = 0
    return renderer


def _drawn_by_cpu() -> bool:
    from OpenGL import GL  # not sooner: importing it settles the backend

    return any(name in GL.glGetString(GL.GL_RENDERER) for name in (b"llvmpipe", b"softpipe"))


class _Camera:
    """The model's first camera that stands in the world, or else one that follows the robot."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self.view = mujoco.MjvCamera()
        self._body: int | None = None
        (standing,) = np.nonzero(model.cam_bodyid == 0)
        if len(standing):
            self.view.type = mujoco.mjtCamera.mjCAMERA_FIXED.value
            self.view.fixedcamid = int(standing[0])
            return
        with suppress(ConfigError):
            self._body = find_base(model).body
        mujoco.mjv_defaultFreeCamera(model, self.view)
        if self._body is not None:
            self.view.distance = 2.5 * robot_radius(model)
            self.view.lookat[:] = math.inf

    def follow(self, data: mujoco.MjData, passed_s: float) -> None:
        """Turn to where the base is now; smoothly, or at once after a jump."""
        if self._body is None:
            return
        target = data.xpos[self._body]
        away = target - self.view.lookat
        if not np.linalg.norm(away) < self.view.distance:
            self.view.lookat[:] = target
        else:
            self.view.lookat[:] += away * (1.0 - math.exp(-passed_s / _FOLLOW_S))


def robot_radius(model: mujoco.MjModel) -> float:
    """How far what moves reaches from the floating base, m, in the model's first keyframe.

    Without a floating base, how far it reaches from the world's origin.
    """
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
