"""The web viewer's panels: playing and pausing, commands with their sliders, rewards.

Viser calls back from threads of its own. Nothing here touches the environment from them: callbacks
put requests into a queue, which the viewer's loop carries out between two steps.
"""

from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import viser
from viser import uplot

from simtrain.env.env import Env
from simtrain.view.playback import Playback

Request = Callable[[], None]
Requests = SimpleQueue[Request]
_SPEEDS = {"1/8": 0.125, "1/4": 0.25, "1/2": 0.5, "1": 1.0, "2": 2.0, "4": 4.0}
_COLORS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b",
    "#e377c2", "#7f7f7f", "#bcbd22", "#17becf", "#000000", "#ffbb78",
)  # fmt: skip


class PlaybackPanel:
    """Pause, single step, reset, speed, and what the shown environment is doing."""

    def __init__(self, gui: viser.GuiApi, playback: Playback, requests: Requests) -> None:
        self._playback = playback
        self._status = gui.add_markdown("")
        self._pause = gui.add_button("Pause", icon=viser.Icon.PLAYER_PAUSE)
        icon = viser.Icon.PLAYER_TRACK_NEXT
        self._step = gui.add_button("Step", icon=icon, hint="One control step.", disabled=True)
        hint = "New episodes in all environments."
        reset = gui.add_button("Reset", icon=viser.Icon.REFRESH, hint=hint)
        speed = gui.add_dropdown("Speed", options=tuple(_SPEEDS), initial_value="1")
        self._pause.on_click(lambda _: requests.put(self._toggle))
        self._step.on_click(lambda _: requests.put(self._single_step))
        reset.on_click(lambda _: requests.put(playback.reset))
        speed.on_update(lambda _: requests.put(lambda: self._set_speed(_SPEEDS[speed.value])))

    def show(self, index: int, real_time_factor: float) -> None:
        """Show the environment `index`; `real_time_factor` is the speed that is reached."""
        env, playback = self._playback.env, self._playback
        steps = int(env.episode_length_buf[index])
        rows = {
            "episode": f"{steps * env.step_dt:.1f} s of {env.max_episode_length_s:g} s",
            "return": f"{float(env.rewards.episode_sums[index].sum()):.2f}",
            "last ended by": playback.ended[index] or "-",
            "speed": "paused" if playback.paused else f"{real_time_factor:.2f} x real time",
        }
        self._status.content = "\n".join(f"**{name}** {value}  " for name, value in rows.items())

    def _toggle(self) -> None:
        paused = self._playback.paused = not self._playback.paused
        self._pause.label = "Play" if paused else "Pause"
        self._pause.icon = viser.Icon.PLAYER_PLAY if paused else viser.Icon.PLAYER_PAUSE
        self._step.disabled = not paused

    def _single_step(self) -> None:
        if self._playback.paused:
            self._playback.step()

    def _set_speed(self, speed: float) -> None:
        self._playback.speed = speed


class CommandPanel:
    """One command: its values in the shown environment, and sliders that drive it in all."""

    def __init__(self, gui: viser.GuiApi, env: Env, name: str, requests: Requests) -> None:
        self._env, self._name = env, name
        self._term = env.commands.terms[name]
        ends = zip(*(bound.tolist() for bound in self._term.bounds()), strict=True)
        self._now = gui.add_markdown("")
        hint = "Let the sliders command, instead of the task."
        self._drive = gui.add_checkbox("Drive", initial_value=False, hint=hint)
        self._sliders = [
            gui.add_slider(label, a, b, step=(b - a) / 200, initial_value=min(max(0.0, a), b))
            for label, (a, b) in zip(self._term.entries(), map(_slider_ends, ends), strict=True)
        ]
        zero = gui.add_button("Stop", icon=viser.Icon.HAND_STOP, hint="Command zero.")
        self._drive.on_update(_on_user_event(requests, self._follow_checkbox))
        zero.on_click(lambda _: requests.put(self._stop))
        for slider in self._sliders:
            slider.on_update(_on_user_event(requests, self._hold))

    def show(self, index: int) -> None:
        """Show the command of the environment `index`."""
        values = ", ".join(f"{value:+.2f}" for value in self._term.command[index].tolist())
        self._now.content = f"**{self._name}** {values}"

    def _follow_checkbox(self) -> None:
        if self._drive.value:
            self._hold()
        else:
            self._env.commands.release(self._name)

    def _hold(self) -> None:
        self._drive.value = True  # type: ignore[misc]  # viser's setter is not seen as one
        self._env.commands.hold(self._name, [slider.value for slider in self._sliders])

    def _stop(self) -> None:
        for slider in self._sliders:
            slider.value = min(max(0.0, slider.min), slider.max)  # type: ignore[misc]
        self._hold()


class RewardPanel:
    """A live plot of the reward, or of one term or all of them, over the latest seconds."""

    def __init__(self, gui: viser.GuiApi, playback: Playback) -> None:
        self._playback, self._names = playback, playback.env.rewards.names
        options = ("total", *self._names, "all terms")
        self._choice = gui.add_dropdown("Show", options=options, initial_value="total")
        self._one = _plot(gui, ("reward",), height=200)
        self._all = _plot(gui, self._names, height=260 + 16 * len(self._names))
        self._all.visible = False
        self._choice.on_update(lambda _: self._switch())

    def show(self, index: int) -> None:
        """Plot the rewards of the environment `index`."""
        history = tuple(self._playback.history)
        if len(history) < 2:
            return
        time_s = np.array([step.time_s for step in history])
        rewards = np.array([step.rewards[index] for step in history], dtype=np.float64)
        values = dict(zip(self._names, rewards.T, strict=True))
        if self._all.visible:
            self._all.data = (time_s, *rewards.T)
        else:
            self._one.data = (time_s, values.get(self._choice.value, rewards.sum(axis=1)))

    def _switch(self) -> None:
        every = self._choice.value == "all terms"
        self._one.visible, self._all.visible = not every, every


def _plot(gui: viser.GuiApi, names: tuple[str, ...], height: int) -> viser.GuiUplotHandle:
    """A plot over simulated seconds, of one line a name."""
    lines: list[Any] = [
        uplot.Series(label=name, stroke=_COLORS[i % len(_COLORS)], width=1.5)
        for i, name in enumerate(names)
    ]
    series = (uplot.Series(label="s"), *lines)
    scales, legend = {"x": uplot.Scale(time=False)}, uplot.Legend(show=len(names) > 1)
    data = (np.zeros(2),) * len(series)
    return gui.add_uplot(data, series, scales=scales, legend=legend, height=height)


def _on_user_event(requests: Requests, request: Request) -> Callable[[viser.GuiEvent[Any]], None]:
    """A callback that ignores changes which the program makes itself."""
    return lambda event: None if event.client is None else requests.put(request)


def _slider_ends(bounds: tuple[float, float]) -> tuple[float, float]:
    """The ends of a slider; wide enough to move where a task always commands the same."""
    low, high = round(bounds[0], 4), round(bounds[1], 4)  # float32 has no 0.7
    return (low, high) if high > low else (low - 1.0, low + 1.0)
