"""The page's controls: checkpoints, commands and rewards, without a browser."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rover import rover, rover_env
from viser import GuiEvent

from simtrain import CommandTermCfg, mdp
from simtrain.env.env import Env
from simtrain.errors import ConfigError
from simtrain.view.panels import Checkpoints, CommandPanel, PolicyPanel, RewardPanel
from simtrain.view.playback import Playback
from simtrain.view.server import PageServer


@pytest.fixture(scope="module")
def gui() -> Iterator[object]:
    with closing(PageServer("127.0.0.1", 0, "controls")) as page:
        yield page.server.gui


def _panel(gui, **changes) -> tuple[Env, CommandPanel]:
    env = rover_env(2, **changes)
    env.reset()
    (name,) = env.commands.terms
    return env, CommandPanel(gui, env, name)


def _set(panel, handle, value) -> None:
    """As a person on the page does, and the viewer's loop next."""
    handle.value = value
    for callback in handle._impl.update_cb:
        asyncio.run(callback(GuiEvent(SimpleNamespace(), 0, handle)))
    panel.drive()


def test_sliders_follow_the_command_and_drive_on_from_it_once_they_are_moved(gui):
    env, panel = _panel(gui)
    env.command("velocity").copy_(torch.tensor([[0.5, 0.1, 0.2], [-0.4, 0.2, -0.35]]))
    panel.show(1)
    assert [slider.value for slider in panel._sliders] == pytest.approx([-0.4, 0.2, -0.35])
    _set(panel, panel._drive, True)
    assert env.command("velocity").tolist() == [pytest.approx([-0.4, 0.2, -0.35])] * 2
    asyncio.run(panel._stop())
    panel.drive()
    panel.show(1)
    assert env.command("velocity").abs().max() < 1e-6
    _set(panel, panel._drive, False)
    env.command("velocity").copy_(torch.tensor([0.5, 0.1, 0.2]).expand(2, 3))
    panel.show(1)
    _set(panel, panel._sliders[2], -0.7)  # the others stay at the command
    assert panel._drive.value
    assert env.command("velocity")[0].tolist() == pytest.approx([0.5, 0.1, -0.7], abs=0.008)


def test_a_goal_in_space_has_no_stop_and_sliders_stay_within_its_bounds(gui):
    bounds = {"x": (0.3, 0.5), "y": (-0.2, 0.2), "z": (0.2, 0.4)}
    goal = CommandTermCfg(mdp.UniformPositionCommand, (9.0, 9.0), **bounds)
    before = len(gui._gui_input_handle_from_uuid)
    speed = {"actor": {"speed": rover().observations["actor"]["speed"]}}
    env, panel = _panel(gui, commands={"goal": goal}, observations=speed)
    assert len(gui._gui_input_handle_from_uuid) == before + 4  # Drive and three sliders
    env.command("goal").copy_(torch.tensor([0.4, 0.1, 0.9]).expand(2, 3))
    panel.show(0)
    assert [slider.value for slider in panel._sliders] == pytest.approx([0.4, 0.1, 0.4])


@pytest.mark.parametrize(("value", "range_"), [(1.0, (0.98, 1.02)), (-3.127, (-3.15, -3.11))])
def test_the_axis_of_a_constant_reward_has_labels_that_differ(gui, value, range_):
    playback = Playback(rover_env(), lambda obs, fresh: torch.ones(1, 1))
    panel = RewardPanel(gui, playback)
    playback.step()
    step = playback.history.pop()
    for i in range(20):
        playback.history.append(step._replace(time_s=i, rewards=step.rewards * 0 + [value, i % 2]))
    for name, expected in (("speed", {"range": pytest.approx(range_)}), ("alive", {})):
        panel._choice.value = name
        panel.show(0)
        assert panel._one.scales["y"] == expected


def test_the_newest_checkpoint_acts_until_another_is_chosen(gui, tmp_path):
    loaded: list[str] = []

    def write(name: str, text: str = "whole") -> Path:
        (tmp_path / name).write_text(text)
        return tmp_path / name

    def load(path: Path) -> str:
        if path.read_text() == "damaged":
            raise ConfigError(f"{path.name} <is> damaged")
        loaded.append(path.name)
        return f"rover, {path.stem}"

    checkpoints = Checkpoints(
        lambda: sorted(tmp_path.iterdir()), load, write("model_1.pt"), follow=True
    )
    panel = PolicyPanel(gui, checkpoints)
    panel.update()
    assert loaded == []
    write("model_2.pt")
    panel.update()
    panel.update()
    assert loaded == ["model_2.pt"]
    panel._choice.value = "model_1.pt"
    write("model_3.pt", "damaged")
    panel.update()
    assert loaded == ["model_2.pt", "model_1.pt"]
    assert panel._choice.options == ("newest", "model_3.pt", "model_2.pt", "model_1.pt")
    (tmp_path / "model_1.pt").unlink()
    panel.update()
    assert (panel._choice.value, loaded[-1]) == ("model_1.pt", "model_1.pt")
    panel._choice.value = "newest"
    panel.update()
    assert panel._failure.visible
    assert "not shown: model_3.pt &lt;is&gt; damaged" in panel._failure.content
    write("model_3.pt")
    panel.update()
    assert loaded[-1] == "model_3.pt"
    assert not panel._failure.visible
