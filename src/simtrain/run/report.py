"""Reports of runs: learning curves as a PNG and as a web page of one file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from simtrain.errors import ConfigError
from simtrain.run.curves import Run, group_runs, read_run
from simtrain.run.directory import make_folder, written_whole

PICTURE, PAGE = "report.png", "report.html"


def write_report(runs: Sequence[Run], picture: Path, page: Path) -> None:
    """Draw runs, of one or several tasks, into the PNG `picture` and the HTML file `page`.

    Raises:
        ConfigError: the files cannot be written.
    """
    for path in (picture, page):
        if path.is_dir():
            raise ConfigError(f"--output {path} cannot be written: it is a folder")
    make_folder(picture.parent, "--output")

    from simtrain.run.page import make_page
    from simtrain.run.plots import draw

    tasks = group_runs(runs)
    contents = {picture: draw(tasks, "env_steps", "png"), page: make_page(tasks).encode()}
    try:
        for path, content in contents.items():
            with written_whole(path) as file:
                file.write(content)
    except OSError as error:
        raise ConfigError(f"--output {path} cannot be written: {error.strerror}") from error


def draw_finished(run: Path, say: Callable[[str], None]) -> None:
    """Leave the picture of a run's curves in its directory; if that fails, only say so."""
    try:
        from simtrain.run.plots import draw

        content = draw(group_runs([read_run(run)]), "env_steps", "png")
        with written_whole(run / PICTURE) as file:
            file.write(content)
    except Exception as error:  # noqa: BLE001 - a picture is no reason for a training to fail
        say(f"warning: {PICTURE} could not be drawn: {type(error).__name__}: {error}")
