"""The web viewer's panels: playback, commands with their sliders, rewards.

Viser calls back in its own threads. Callbacks do not access the environment: they change controls,
or put requests into a queue, which the viewer's loop processes between two steps.
"""

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import viser
from viser import uplot

from simtrain.env.env import Env
from simtrain.errors import ConfigError
from simtrain.view.playback import HISTORY_S, Playback

Requests = SimpleQueue[Callable[[], None]]
_NEWEST, _ALL = "newest", "all terms"
_FAILURE = '<p style="margin: 0.5em 1em; font-size: 0.8em; color: #e03131">{}</p>'
_SPEEDS = {"1/8": 0.125, "1/4": 0.25, "1/2": 0.5, "1": 1.0, "2": 2.0, "4": 4.0}
_KEYS = ("IK", "JL", "UO")
"""Keys to raise and lower a command's entries: forward and backward, left and right, turning. Other
keys move the camera: viser has WASD, QE and the arrows."""
_COLORS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b",
    "#e377c2", "#7f7f7f", "#bcbd22", "#17becf", "#000000", "#ffbb78",
)  # fmt: skip


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of a run, which may still be training."""

    find: Callable[[], Sequence[Path]]
    """Finds the present checkpoints, the newest last."""
    load: Callable[[Path], str]
    """Loads another policy, in place; returns the page's title. ConfigError, and no change, if it
    cannot."""
    shown: Path
    """The checkpoint that acts at first."""
    follow: bool
    """Whether the newest checkpoint acts, from the beginning."""


class PolicyPanel:
    """The checkpoint that acts: the newest one, also of a running training, or a chosen one."""

    def __init__(self, gui: viser.GuiApi, checkpoints: Checkpoints) -> None:
        self._gui, self._checkpoints = gui, checkpoints
        self._tried = _version(checkpoints.shown)
        initial = _NEWEST if checkpoints.follow else checkpoints.shown.name
        hint = "The newest changes while the run trains."
        self._choice = gui.add_dropdown("Checkpoint", (initial,), initial_value=initial, hint=hint)
        self._failure = gui.add_html("", visible=False)

    def update(self) -> None:
        """Load the chosen checkpoint if it does not act yet or has changed since."""
        paths, choice = self._checkpoints.find(), self._choice.value
        by_name = {path.name: path for path in paths}
        # One that is gone stays chosen.
        options = tuple(dict.fromkeys((_NEWEST, *reversed(by_name), choice)))
        if options != self._choice.options:
            self._choice.options = options
        path = paths[-1] if paths and choice == _NEWEST else by_name.get(choice)
        if path is None or (version := _version(path)) in (None, self._tried):
            return
        self._tried = version
        try:
            self._gui.set_panel_label(self._checkpoints.load(path))
        except ConfigError as error:
            self._failure.content = _FAILURE.format(html.escape(f"not shown: {error}"))
        else:
            self._failure.content = ""
        self._failure.visible = bool(self._failure.content)


def _version(file: Path) -> tuple[Path, int, int] | None:
    """Differs between files, and changes when a file is written again; None without a file."""
    try:
        status = file.stat()
    except OSError:
        return None
    return file, status.st_mtime_ns, status.st_size


class PlaybackPanel:
    """Pause, single step, reset, speed, and the state of the shown environment."""

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
        speed.on_update(lambda _: setattr(playback, "speed", _SPEEDS[speed.value]))

    def show(self, index: int, real_time_factor: float) -> None:
        """Show the environment `index`; `real_time_factor` is the present speed."""
        env, playback = self._playback.env, self._playback
        seconds = int(env.episode_length_buf[index]) * env.step_dt
        speed = "paused" if playback.paused else f"{real_time_factor:.2f} x real time"
        self._status.content = (
            f"**episode** {seconds:.1f} s of {env.max_episode_length_s:g} s  \n"
            f"**return** {float(env.rewards.episode_sums[index].sum()):.2f}  \n"
            f"**last ended by** {playback.ended[index] or '-'}  \n"
            f"**speed** {speed}  "
        )

    def _toggle(self) -> None:
        paused = self._playback.paused = not self._playback.paused
        self._pause.label = "Play" if paused else "Pause"
        self._pause.icon = viser.Icon.PLAYER_PLAY if paused else viser.Icon.PLAYER_PAUSE
        self._step.disabled = not paused

    def _single_step(self) -> None:
        if self._playback.paused:
            self._playback.step()


class CommandPanel:
    """One command: its values in the shown environment. Sliders and, with `keys`, the keyboard can
    set it in all environments."""

    def __init__(self, gui: viser.GuiApi, env: Env, name: str, keys: bool = False) -> None:
        self._env, self._name, self._term = env, name, env.commands.terms[name]
        self._held: list[float] | None = None
        self._now = gui.add_markdown("")
        hint = "Let the sliders command, instead of the task."
        self._drive = gui.add_checkbox("Drive", initial_value=False, hint=hint)
        self._sliders: list[viser.GuiSliderHandle[float]] = []
        for label, *ends in zip(self._term.entries(), *self._term.bounds(), strict=True):
            low, high = (round(float(end), 4) for end in ends)  # float32 has no 0.7
            if low == high:  # a task that always commands the same
                low, high = low - 1.0, high + 1.0
            start = min(max(0.0, low), high)
            step = (high - low) / 200
            pair = _KEYS[len(self._sliders)] if keys and len(self._sliders) < len(_KEYS) else ""
            keyed = f"Keys: {pair[0]} for more, {pair[1]} for less." if pair else None
            slider = gui.add_slider(label, low, high, step=step, initial_value=start, hint=keyed)
            slider.on_update(self._on_slider)
            self._sliders.append(slider)
            key: Any
            for key, part in zip(pair, (0.1, -0.1), strict=False):
                pressed = gui.add_command(f"{label}: {'more' if part > 0 else 'less'}", hotkey=key)
                pressed.on_trigger(partial(self._on_key, slider, part * (high - low)))
        if self._term.stops_at_zero:
            hint = f"Command zero{' (key: H)' if keys else ''}."
            gui.add_button("Stop", icon=viser.Icon.HAND_STOP, hint=hint).on_click(self._stop)
            if keys:
                gui.add_command("Stop", hotkey="H").on_trigger(self._stop)

    def show(self, index: int) -> None:
        """Show the command of the environment `index`, also on sliders that do not drive."""
        values = self._term.command[index].tolist()
        self._now.content = f"**{self._name}** " + ", ".join(f"{value:+.2f}" for value in values)
        if not self._drive.value:
            self._move(values)

    def drive(self) -> None:
        """Set the command to the sliders' values, in place, or let the task set it again."""
        values = [slider.value for slider in self._sliders] if self._drive.value else None
        if values == self._held:
            return
        self._held = values
        if values is None:
            self._env.commands.release(self._name)
        else:
            self._env.commands.hold(self._name, values)

    async def _on_slider(self, event: viser.GuiEvent[Any]) -> None:
        if event.client is not None:  # else the program moved it
            self._drive.value = True  # type: ignore[misc]  # viser's setter is not seen as one

    async def _on_key(self, slider: viser.GuiSliderHandle[float], change: float, _: Any) -> None:
        self._drive.value = True  # type: ignore[misc]
        self._move([s.value + change * (s is slider) for s in self._sliders])

    async def _stop(self, _: Any = None) -> None:
        self._drive.value = True  # type: ignore[misc]
        self._move([0.0] * len(self._sliders))

    def _move(self, values: list[float]) -> None:
        """Move the sliders to these values, within their ranges and steps."""
        for slider, value in zip(self._sliders, values, strict=True):
            digits = max(0, math.ceil(-math.log10(slider.step)))
            value = min(max(round(value, digits), slider.min), slider.max)
            slider.value = value  # type: ignore[misc]


class RewardPanel:
    """A live plot of the reward, of one term or of all terms, over the latest seconds."""

    def __init__(self, gui: viser.GuiApi, playback: Playback) -> None:
        self._playback, self._names = playback, playback.env.rewards.names
        options = ("total", *self._names, _ALL)
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
        time_s = np.array([step.time_s for step in history]) - history[-1].time_s
        rewards = np.array([step.rewards[index] for step in history], dtype=np.float64).T
        values = dict(zip(self._names, rewards, strict=True))
        if not self._all.visible:
            rewards = values.get(self._choice.value, rewards.sum(axis=0))[np.newaxis]
        plot = self._all if self._all.visible else self._one
        low, high = rewards.min(), rewards.max()
        middle = float(round((low + high) / 2, 2))
        # The labels of the axis have three decimals, and are to differ.
        flat = uplot.Scale(range=(middle - 0.02, middle + 0.02))
        scales = _scales(flat if high - low < 0.01 else None)
        if plot.scales != scales:
            plot.scales = scales
        plot.data = (time_s, *rewards)

    def _switch(self) -> None:
        self._all.visible = self._choice.value == _ALL
        self._one.visible = not self._all.visible


def _plot(gui: viser.GuiApi, names: tuple[str, ...], height: int) -> viser.GuiUplotHandle:
    """A plot over the latest seconds, with one line per name."""
    lines = [
        uplot.Series(label=name, stroke=_COLORS[i % len(_COLORS)], width=1.5)
        for i, name in enumerate(names)
    ]
    return gui.add_uplot(
        (np.zeros(2),) * (1 + len(names)),
        (uplot.Series(label="s"), *lines),
        scales=_scales(),
        legend=uplot.Legend(show=len(names) > 1),
        height=height,
    )


def _scales(y: uplot.Scale | None = None) -> dict[str, uplot.Scale]:
    return {"x": uplot.Scale(time=False, range=(-HISTORY_S, 0.0)), "y": y or uplot.Scale()}
