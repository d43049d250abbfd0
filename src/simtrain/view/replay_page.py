"""A page on which the last steps of a simulation that failed are seen, one by one or in motion."""

from __future__ import annotations

import time

import viser
from mjviser import ViserMujocoScene

from simtrain.view.renderer import robot_radius
from simtrain.view.replay import Replay
from simtrain.view.server import PageServer

_FRAME_S = 1.0 / 30.0
_REST_FRAMES = 45
"""For how long the last step stays before the first follows again."""


class ReplayPage:
    """Serves the page."""

    def __init__(self, replay: Replay, *, host: str, port: int, speed: float) -> None:
        """Start the server.

        Args:
            replay: the steps.
            host: address to listen on.
            port: port to listen on; 0 for any that is free.
            speed: simulated seconds a second.

        Raises:
            ConfigError: somebody else listens there.
        """
        self._replay = replay
        self._page = PageServer(host, port, "replay of a failure")
        server = self._page.viser
        self._frames_a_step = max(1, round(replay.dump.step_dt / speed / _FRAME_S))
        self._scene = ViserMujocoScene(server, replay.model, 1)
        self._scene.create_scene_gui(camera_distance=3.0 * robot_radius(replay.model))
        self._text = server.gui.add_markdown("")
        self._slider = server.gui.add_slider(
            # A slider needs two values, though a first step that fails is the only one.
            "Step", min=1, max=max(2, replay.dump.steps), step=1, initial_value=1,
            disabled=replay.dump.steps == 1,
        )  # fmt: skip
        self._moving = server.gui.add_checkbox("Play", initial_value=True)
        self._slider.on_update(self._hold)
        self._drawn = -1

    @property
    def url(self) -> str:
        """Where the page is."""
        return self._page.url

    def close(self) -> None:
        """Stop serving."""
        self._page.close()

    def run(self) -> None:
        """Show one step after the other, again and again, until interrupted."""
        frame = 0
        while True:
            last = self._slider.value >= self._replay.dump.steps
            frame += 1
            if self._moving.value and frame >= (_REST_FRAMES if last else self._frames_a_step):
                frame = 0
                # viser's setters are not seen as such
                self._slider.value = 1 if last else self._slider.value + 1  # type: ignore[misc]
            if self._slider.value - 1 != self._drawn:
                self._drawn = self._slider.value - 1
                self._text.content = "  \n".join(self._replay.show(self._drawn))
                self._scene.update_from_mjdata(self._replay.data)
            time.sleep(_FRAME_S)

    def _hold(self, event: viser.GuiEvent[viser.GuiSliderHandle[int]]) -> None:
        """Stop moving once a person chooses a step."""
        if event.client is not None:
            self._moving.value = False  # type: ignore[misc]
