"""The last steps of a simulation that failed, one by one, as a video or on a page."""

import time
from pathlib import Path

import mujoco
import numpy as np
import viser
from mjviser import ViserMujocoScene

from simtrain.sim.mujoco_engine import ignore_warning
from simtrain.view.renderer import Canvas, robot_radius
from simtrain.view.server import PageServer
from simtrain.view.video import Size, writing_video

_LARGEST = ("qpos", "qvel", "act", "ctrl")
_FPS = 30.0
_LAST_STEP_VIDEO_S, _LAST_STEP_PAGE_S = 2.0, 1.5


class Replay:
    """A simulation, `data`, in one of the last steps before it failed; `failure` says how."""

    def __init__(
        self, model: mujoco.MjModel, states: dict[str, np.ndarray], decimation: int, message: str
    ) -> None:
        """Simulate the failure once more, and go to the first of the control steps.

        `states` are MuJoCo's fields before each, ``(steps, ...)``, `message` is the engine's.
        """
        mujoco.set_mju_user_warning(ignore_warning)  # `failure` has it
        self.model, self.data = model, mujoco.MjData(model)
        self._states, self.steps = states, len(states["qpos"])
        self.step_dt = float(model.opt.timestep) * decimation
        self.failure = self._fail_again(decimation) or [
            "simulated again on the CPU it does not fail; training said: " + message
        ]
        self.show(0)

    def show(self, step: int) -> list[str]:
        """Go to a step, in place, as far as its positions are finite; describe it in lines."""
        states = self._states
        if np.isfinite(states["qpos"][step]).all():
            self._set_state(step)
            mujoco.mj_kinematics(self.model, self.data)
            mujoco.mj_comPos(self.model, self.data)
            mujoco.mj_camlight(self.model, self.data)
        last = step == self.steps - 1
        title = f"step {step + 1} of {self.steps}, {states['time'][step].item():.3f} s"
        largest = [
            f"|{field}| {np.abs(values).max():.3g}"
            for field in _LARGEST
            if (values := states.get(field, np.empty(0))[step : step + 1]).size
        ]
        return [
            title + (", in which it failed" if last else ""),
            "largest " + "   ".join(largest),
            *(f"not finite: {name}" for name in self._not_finite(states, step)),
            *(self.failure if last else ()),
        ]

    def frames(self, speed: float) -> int:
        """How many frames a step is shown for, at so many simulated seconds a second."""
        return max(1, round(self.step_dt / speed * _FPS))

    def _set_state(self, step: int) -> None:
        mujoco.mj_resetData(self.model, self.data)
        for field, values in self._states.items():
            shape = np.shape(getattr(self.data, field))
            setattr(self.data, field, values[step].reshape(shape))

    def _fail_again(self, decimation: int) -> list[str]:
        """Simulate the last step as training did; how it fails, in lines."""
        self._set_state(self.steps - 1)
        for substep in range(decimation):
            mujoco.mj_step(self.model, self.data)
            warnings = [
                str(mujoco.mju_warningText(kind, int(warning.lastinfo))).strip()
                for kind, warning in enumerate(self.data.warning)
                if warning.number
            ]
            if warnings:
                return [f"physics step {substep + 1}: {text}" for text in warnings]
        state = {name: getattr(self.data, name)[None] for name in ("qpos", "qvel", "act")}
        return [f"then not finite: {name}" for name in self._not_finite(state, 0)]

    def _not_finite(self, states: dict[str, np.ndarray], step: int) -> list[str]:
        """Names of the values that are not finite, each with its joint or actuator."""
        found = [
            f"{field} of {self._owner(field, int(index))}"
            for field, values in states.items()
            for index in np.flatnonzero(~np.isfinite(values[step]))
        ]
        return list(dict.fromkeys(found))

    def _owner(self, field: str, index: int) -> str:
        model = self.model
        if field in ("qpos", "qvel", "qacc_warmstart"):
            starts = model.jnt_qposadr if field == "qpos" else model.jnt_dofadr
            joint = int(np.searchsorted(starts, index, side="right")) - 1
            return f"joint {model.joint(joint).name}"
        if field == "ctrl":
            return f"actuator {model.actuator(index).name}"
        return f"entry {index}"


def record_replay(replay: Replay, path: Path, speed: float, size: Size = (960, 540)) -> None:
    """Write an MP4 file of all steps with their descriptions; raises what `video.record` does."""
    frames = replay.frames(speed)
    last_frames = max(frames, round(_LAST_STEP_VIDEO_S * _FPS))
    with Canvas(replay.model, *size) as canvas, writing_video(path, size, _FPS) as write:
        for step in range(replay.steps):
            lines = replay.show(step)
            frame = canvas.render(replay.data, replay.step_dt, lines)
            for _ in range(last_frames if step == replay.steps - 1 else frames):
                write(frame)


class ReplayPage(PageServer):
    """Serves a page on which the steps are seen, one by one or in motion."""

    def __init__(self, replay: Replay, *, host: str, port: int, speed: float) -> None:
        """Start the server, see `PageServer`."""
        super().__init__(host, port, "replay of a failure")
        gui = self.server.gui
        self._replay, self._frames = replay, replay.frames(speed)
        self._scene = ViserMujocoScene(self.server, replay.model, 1)
        self._scene.create_scene_gui(camera_distance=3.0 * robot_radius(replay.model))
        self._text = gui.add_markdown("")
        self._slider = gui.add_slider(
            # A slider needs two values, though a first step that fails is the only one.
            "Step", min=1, max=max(2, replay.steps), step=1, initial_value=1,
            disabled=replay.steps == 1,
        )  # fmt: skip
        self._playing = gui.add_checkbox("Play", initial_value=True)
        self._slider.on_update(self._pause)  # once a person chooses a step

    def run(self) -> None:
        """Show one step after the other, again and again, until interrupted."""
        frame, shown = 0, -1
        while True:
            last = self._slider.value >= self._replay.steps
            frame += 1
            frames = _LAST_STEP_PAGE_S * _FPS if last else self._frames
            if self._playing.value and frame >= frames:
                frame = 0
                # viser's setters are not seen as such
                self._slider.value = 1 if last else self._slider.value + 1  # type: ignore[misc]
            if self._slider.value - 1 != shown:
                shown = self._slider.value - 1
                self._text.content = "  \n".join(self._replay.show(shown))
                self._scene.update_from_mjdata(self._replay.data)
            time.sleep(1.0 / _FPS)

    def _pause(self, event: viser.GuiEvent[viser.GuiSliderHandle[int]]) -> None:
        if event.client is not None:
            self._playing.value = False  # type: ignore[misc]
