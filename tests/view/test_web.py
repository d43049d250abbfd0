"""The web viewer in a real browser: the real command serves, headless Chromium watches."""

import io
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from PIL import Image
from rover import playing

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
SOFTWARE_WEBGL = ("--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")
PATIENCE_S = 100.0  # a page takes seconds, and minutes where everything else runs beside it

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="the viewer is tested in Chromium: `apt-get install chromium`"
    ),
]


@dataclass
class Viewer:
    """The command, and a page that shows what it serves."""

    process: subprocess.Popen[str]
    page: object
    errors: list[str] = field(default_factory=list)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited for {what}; the page says:\n{self.text}"
            assert self.process.poll() is None, self.process.communicate()
            self.page.wait_for_timeout(100)  # type: ignore[attr-defined]

    @property
    def text(self) -> str:
        return self.page.locator("body").inner_text()  # type: ignore[attr-defined]

    def wait_for(self, pattern: str) -> re.Match[str]:
        self.wait(lambda: re.search(pattern, self.text), pattern)
        return re.search(pattern, self.text)

    def click(self, name: str) -> None:
        self.page.get_by_role("button", name=name, exact=True).click(timeout=1000 * PATIENCE_S)  # type: ignore[attr-defined]

    def press(self, slider: object, key: str) -> None:
        slider.focus()  # type: ignore[attr-defined]
        slider.press(key)  # type: ignore[attr-defined]

    def picture(self) -> np.ndarray:
        """The 3-D scene, left of the controls and below messages, ``(height, width, 3)``."""
        clip = {"x": 0, "y": 170, "width": 460, "height": 380}
        shot = self.page.screenshot(clip=clip, timeout=1000 * PATIENCE_S)  # type: ignore[attr-defined]
        return np.asarray(Image.open(io.BytesIO(shot)).convert("RGB")).astype(int)

    def moves(self) -> bool:
        """Whether the scene changes from one look to the next, by more than a fading colour."""
        first = self.picture()
        self.page.wait_for_timeout(500)  # type: ignore[attr-defined]
        return bool((np.abs(self.picture() - first).max(axis=-1) > 60).sum() > 30)


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    from playwright.sync_api import sync_playwright

    folder = tmp_path_factory.mktemp("viewer")
    with playing(folder, "--policy", "random") as process, sync_playwright() as playwright:
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert lines[0] == "viewer: web, because this machine has no display (--viewer)\n"
        match = re.match(r"watch rover at (http://127\.0\.0\.1:\d+)", lines[1])
        assert match, (lines, process.communicate())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SOFTWARE_WEBGL)
        page = browser.new_page(viewport={"width": 800, "height": 600})
        viewer = Viewer(process, page)
        page.on("pageerror", lambda error: viewer.errors.append(str(error)))
        page.on("console", lambda m: m.type == "error" and viewer.errors.append(m.text))
        page.goto(match[1], timeout=1000 * PATIENCE_S)
        yield viewer
        browser.close()


def test_the_robot_moves_until_paused_and_then_by_single_steps(viewer):
    viewer.wait_for(r"episode \d+\.\d s of 4 s")
    viewer.wait(viewer.moves, "the robot to move")
    viewer.click("Pause")
    viewer.wait_for("speed paused")
    viewer.wait(lambda: not viewer.moves(), "the robot to stand still")
    viewer.click("Reset")
    viewer.wait_for(r"episode 0\.0 s")
    for _ in range(5):
        viewer.click("Step")
    viewer.wait_for(r"episode 0\.1 s")
    viewer.click("Play")
    viewer.wait(viewer.moves, "the robot to move again")


def test_sliders_and_keys_drive_the_command_until_the_task_does_again(viewer):
    # What the page writes beside the name is the environment's own command.
    slider = viewer.page.get_by_role("slider", name="").first
    viewer.press(slider, "End")
    viewer.wait_for(r"velocity \+2\.00,")
    viewer.press(slider, "Home")
    viewer.wait_for(r"velocity -1\.00,")
    drive = viewer.page.get_by_role("checkbox").first
    assert drive.is_checked()
    viewer.click("Stop")
    viewer.wait_for(r"velocity \+0\.00, \+0\.00, \+0\.00")
    for key in "iiko":  # ahead is from -1 to 2: each key is a tenth of that
        viewer.page.keyboard.press(key)
    viewer.wait_for(r"velocity \+0\.30, \+0\.00, -0\.\d+")
    viewer.page.keyboard.press("h")
    viewer.wait_for(r"velocity \+0\.00, \+0\.00, \+0\.00")
    drive.uncheck()
    viewer.wait_for(r"velocity (?!.0\.00, .0\.00, .0\.00)")


def test_another_environment_can_be_chosen_and_rewards_are_plotted_by_term(viewer):
    viewer.click("Pause")
    first = viewer.wait_for(r"velocity (.*)")[1]
    viewer.page.get_by_role("tab", name="Scene").click()
    viewer.press(viewer.page.get_by_role("slider").first, "End")
    viewer.page.get_by_role("tab", name="Play").click()
    viewer.wait(lambda: viewer.wait_for(r"velocity (.*)")[1] != first, "another command")
    viewer.click("Play")
    viewer.wait(lambda: viewer.page.locator(".uplot").count() == 1, "the plot of the total")
    viewer.page.get_by_label("Show", exact=True).first.click()
    viewer.page.get_by_role("option", name="all terms").click()
    viewer.wait_for(r"Show[\s\S]*speed[\s\S]*alive")
    assert viewer.errors == []  # on the console, in all tests
