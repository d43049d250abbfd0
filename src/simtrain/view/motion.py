"""Motions to look at: on a page with a slider over their frames, or as a video."""

import time
from pathlib import Path

import mujoco
import viser
from mjviser import ViserMujocoScene

from simtrain.motion.clip import MotionClip
from simtrain.motion.kinematics import qpos_of
from simtrain.view.renderer import Canvas, robot_radius
from simtrain.view.server import PageServer
from simtrain.view.video import Size, writing_video

_FPS = 30


class MotionPage(PageServer):
    """Serves a page on which a motion plays, and stands still at any of its frames."""

    def __init__(
        self, clip: MotionClip, model: mujoco.MjModel, *, host: str, port: int, speed: float
    ) -> None:
        """Start the server, see `PageServer`."""
        super().__init__(host, port, clip.name)
        gui = self.server.gui
        self._clip, self._model, self._data = clip, model, mujoco.MjData(model)
        self._qpos = qpos_of(clip, model)
        self._scene = ViserMujocoScene(self.server, model, 1)
        self._scene.create_scene_gui(camera_distance=3.0 * robot_radius(model))
        self._text = gui.add_markdown("")
        last = clip.frames - 1
        self._slider = gui.add_slider("Frame", min=0, max=last, step=1, initial_value=0)
        self._playing = gui.add_checkbox("Play", initial_value=True)
        self._loop = gui.add_checkbox("Loop", initial_value=True)
        speed = min(max(0.1, speed), 4.0)
        self._speed = gui.add_slider("Speed", min=0.1, max=4.0, step=0.1, initial_value=speed)
        self._slider.on_update(self._pause)  # once a person chooses a frame

    def run(self) -> None:
        """Play in real time until interrupted, and only while somebody looks."""
        frame, shown, then = 0.0, -1, time.perf_counter()
        while True:
            now = time.perf_counter()
            passed, then = now - then, now
            if not self._playing.value:
                frame = float(self._slider.value)
            elif self.server.get_clients():
                frame = self.next_frame(frame, passed)
                # viser's setters are not seen as such
                self._slider.value = int(frame)  # type: ignore[misc]
            if int(frame) != shown:
                shown = int(frame)
                self._text.content = _line(self._clip, shown)
                _show(self._model, self._data, self._qpos[shown])
                self._scene.update_from_mjdata(self._data)
            time.sleep(max(0.0, now + 1.0 / _FPS - time.perf_counter()))

    def next_frame(self, frame: float, passed: float) -> float:
        """The frame, in parts, `passed` seconds after another; stops at the end without Loop."""
        last, ends_here = self._clip.frames - 1, frame >= self._clip.frames - 1
        following = (0.0 if ends_here else frame) + self._speed.value * self._clip.fps * passed
        if following < last:
            return following
        self._playing.value = self._loop.value  # type: ignore[misc]
        return float(last)

    def _pause(self, event: viser.GuiEvent[viser.GuiSliderHandle[int]]) -> None:
        if event.client is not None:
            self._playing.value = False  # type: ignore[misc]


def record_clip(
    clip: MotionClip, model: mujoco.MjModel, path: Path, speed: float, size: Size = (960, 540)
) -> None:
    """Write an MP4 file of a motion; raises what `video.record` does."""
    qpos, data = qpos_of(clip, model), mujoco.MjData(model)
    pictures = int(clip.seconds / speed * _FPS + 1e-6) + 1
    with Canvas(model, *size) as canvas, writing_video(path, size, _FPS) as write:
        for picture in range(pictures):
            frame = min(round(picture * speed * clip.fps / _FPS), clip.frames - 1)
            _show(model, data, qpos[frame])
            write(canvas.render(data, speed / _FPS, [_line(clip, frame)]))


def _show(model: mujoco.MjModel, data: mujoco.MjData, qpos: object) -> None:
    """Put the robot into a frame, in place."""
    data.qpos = qpos
    mujoco.mj_forward(model, data)


def _line(clip: MotionClip, frame: int) -> str:
    return f"{clip.name}   {frame / clip.fps:.2f} s   frame {frame} of {clip.frames - 1}"
