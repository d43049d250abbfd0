"""Films: a robot in a sequence of frames, on a page with a slider or as a video."""

import time
from pathlib import Path
from typing import Any, Protocol

import mujoco
import numpy as np
import viser
from mjviser import ViserMujocoScene

from simtrain.motion.clip import MotionClip, qpos_of
from simtrain.sim.mujoco_engine import ignore_warning
from simtrain.view.renderer import Canvas, robot_radius
from simtrain.view.server import PageServer
from simtrain.view.video import writing_video

_FPS, _SIZE = 30, (960, 540)
_SLOWEST, _FASTEST = 0.01, 4.0


class Film(Protocol):
    """A robot in a sequence of frames."""

    title: str
    model: mujoco.MjModel
    data: mujoco.MjData
    """The robot in the frame that was shown last."""
    frames: int
    fps: float
    """Frames a second of the robot's time."""
    end_seconds: float
    """Time for which the last frame stays, s."""

    def show(self, frame: int) -> list[str]:
        """Set the positions of `data` to a frame; describe the frame in lines."""


class MotionFilm:
    """The film of a motion."""

    end_seconds = 0.0

    def __init__(self, clip: MotionClip, model: mujoco.MjModel) -> None:
        self.title, self.frames, self.fps = clip.name, clip.frames, clip.fps
        self.model, self.data = model, mujoco.MjData(model)
        self._qpos = qpos_of(clip, model)

    def show(self, frame: int) -> list[str]:
        """See `Film.show`."""
        self.data.qpos = self._qpos[frame]
        mujoco.mj_forward(self.model, self.data)
        seconds = frame / self.fps
        return [f"{self.title}   {seconds:.2f} s   frame {frame} of {self.frames - 1}"]


class Replay:
    """The film of the last steps of a failed simulation; `failure` describes the failure."""

    title = "replay of a failure"
    end_seconds = 2.0

    def __init__(
        self, model: mujoco.MjModel, states: dict[str, np.ndarray], decimation: int, message: str
    ) -> None:
        """Simulate the failure again, and go to the first control step.

        `states` are MuJoCo's fields before each step, ``(steps, ...)``; `message` is the engine's.
        """
        mujoco.set_mju_user_warning(ignore_warning)  # `failure` has it
        self.model, self.data = model, mujoco.MjData(model)
        self._states, self.frames = states, len(states["qpos"])
        self.fps = 1.0 / (float(model.opt.timestep) * decimation)
        self.failure = self._fail_again(decimation) or [
            "simulated again on the CPU it does not fail; training said: " + message
        ]
        self.show(0)

    def show(self, step: int) -> list[str]:
        """See `Film.show`; positions that are not finite do not change `data`."""
        state = {field: values[step : step + 1] for field, values in self._states.items()}
        if np.isfinite(state["qpos"]).all():
            self._set_state(step)
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_camlight(self.model, self.data)
        failed = step == self.frames - 1
        largest = [
            f"|{field}| {np.abs(state[field]).max():.3g}"
            for field in ("qpos", "qvel", "act", "ctrl")
            if field in state and state[field].size
        ]
        return [
            f"step {step + 1} of {self.frames}, {state['time'].item():.3f} s"
            + (", in which it failed" if failed else ""),
            "largest " + "   ".join(largest),
            *(f"not finite: {name}" for name in self._not_finite(state)),
            *(self.failure if failed else ()),
        ]

    def _set_state(self, step: int) -> None:
        mujoco.mj_resetData(self.model, self.data)
        for field, values in self._states.items():
            shape = np.shape(getattr(self.data, field))
            setattr(self.data, field, values[step].reshape(shape))

    def _fail_again(self, decimation: int) -> list[str]:
        """Simulate the last step as training did; lines that describe its failure."""
        self._set_state(self.frames - 1)
        for substep in range(decimation):
            mujoco.mj_step(self.model, self.data)
            warnings = [
                str(mujoco.mju_warningText(kind, int(warning.lastinfo))).strip()
                for kind, warning in enumerate(self.data.warning)
                if warning.number
            ]
            if warnings:
                return [f"physics step {substep + 1}: {text}" for text in warnings]
        state = {name: getattr(self.data, name) for name in ("qpos", "qvel", "act")}
        return [f"then not finite: {name}" for name in self._not_finite(state)]

    def _not_finite(self, state: dict[str, np.ndarray]) -> list[str]:
        """Names of the values that are not finite, each with its joint or actuator."""
        names = []
        for field, values in state.items():
            for index in np.flatnonzero(~np.isfinite(values)).tolist():
                owner = f"entry {index}"
                if field in ("qpos", "qvel", "qacc_warmstart"):
                    starts = self.model.jnt_qposadr if field == "qpos" else self.model.jnt_dofadr
                    joint = int(np.searchsorted(starts, index, side="right")) - 1
                    owner = f"joint {self.model.joint(joint).name}"
                elif field == "ctrl":
                    owner = f"actuator {self.model.actuator(index).name}"
                names.append(f"{field} of {owner}")
        return list(dict.fromkeys(names))


def record_film(film: Film, path: Path, speed: float) -> None:
    """Write an MP4 file of a film with its descriptions; raises the errors of `video.record`."""
    frames_a_picture = speed * film.fps / _FPS
    # A millionth of a frame, so that rounding does not lose the last one.
    moving = int((film.frames - 1) / frames_a_picture + 1e-6)
    shown, lines = -1, [""]
    with Canvas(film.model, *_SIZE) as canvas, writing_video(path, _SIZE, _FPS) as write:
        for picture in range(moving + max(1, round(film.end_seconds * _FPS))):
            frame = min(int(picture * frames_a_picture + 1e-6), film.frames - 1)
            if frame != shown:
                shown, lines = frame, film.show(frame)
            write(canvas.render(film.data, speed / _FPS, lines))


class FilmPage(PageServer):
    """Serves a page that plays a film, or shows one of its frames."""

    def __init__(self, film: Film, *, host: str, port: int, speed: float) -> None:
        """Start the server, see `PageServer`."""
        super().__init__(host, port, film.title)
        gui = self.server.gui
        self._film, self._last = film, film.frames - 1
        self._scene = ViserMujocoScene(self.server, film.model, 1)
        self._scene.create_scene_gui(camera_distance=3.0 * robot_radius(film.model))
        self._text = gui.add_markdown("")
        # A slider needs two values, and the step in which a simulation fails may be the first.
        ends: Any = {"min": 0, "max": max(1, self._last), "step": 1, "initial_value": 0}
        self._slider = gui.add_slider("Frame", **ends, disabled=self._last == 0)
        self._playing = gui.add_checkbox("Play", initial_value=True)
        self._loop = gui.add_checkbox("Loop", initial_value=True)
        speed = min(max(_SLOWEST, speed), _FASTEST)
        ends = {"min": _SLOWEST, "max": _FASTEST, "step": _SLOWEST, "initial_value": speed}
        self._speed = gui.add_slider("Speed", **ends)
        self._slider.on_update(self._pause)  # once a person chooses a frame

    def run(self) -> None:
        """Play until interrupted, while a page is open."""
        frame, shown, last_time = 0.0, -1, time.perf_counter()
        while True:
            now = time.perf_counter()
            passed, last_time = now - last_time, now
            if not self._playing.value:
                chosen = self._slider.value
                frame = frame if chosen == min(int(frame), self._last) else float(chosen)
            elif self.server.get_clients():
                frame = self.next_frame(frame, passed)
                # viser's setters are not seen as such
                self._slider.value = min(int(frame), self._last)  # type: ignore[misc]
            if min(int(frame), self._last) != shown:
                shown = min(int(frame), self._last)
                self._text.content = "  \n".join(self._film.show(shown))
                self._scene.update_from_mjdata(self._film.data)
            time.sleep(max(0.0, now + 1.0 / _FPS - time.perf_counter()))

    def next_frame(self, frame: float, passed: float) -> float:
        """The frame, with its fraction, `passed` seconds after another; may be after the last one.

        Without Loop, it stops at the end.
        """
        frames_a_second: float = self._speed.value * self._film.fps
        end = self._last + self._film.end_seconds * frames_a_second
        following = (frame if frame < end else 0.0) + frames_a_second * passed
        if following < end:
            return following
        self._playing.value = self._loop.value  # type: ignore[misc]
        return end

    def _pause(self, event: viser.GuiEvent[viser.GuiSliderHandle[int]]) -> None:
        if event.client is not None:
            self._playing.value = False  # type: ignore[misc]
