"""Reports of runs: learning curves as a PNG, and as a web page of one file with tables."""

import base64
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from simtrain.errors import ConfigError
from simtrain.files import written_whole
from simtrain.metric_tags import LENGTH, RETURN, SPEED, STEP_REWARD
from simtrain.run import curves
from simtrain.run.curves import Axis, Group, Run
from simtrain.run.directory import check_file, make_folder

PICTURE, PAGE = "report.png", "report.html"
_AXES: dict[Axis, str] = {"env_steps": "environment steps", "wall_s": "wall time"}
_NONE = "\N{EN DASH}"


def write_report(
    runs: Sequence[Run], populations: Sequence[Path], picture: Path, page: Path
) -> None:
    """Draw runs, of one or several tasks, into the PNG `picture` and the HTML file `page`.

    `populations` are the runs whose members are among them; the page has their pictures, too, and
    one that is alone gives the PNG.
    """
    make_folder(picture.parent, "--output")
    check_file(picture, "--output")
    check_file(page, "--output")

    from simtrain.run.plots import draw
    from simtrain.run.population_plot import draw_run

    tasks = curves.group_runs(runs)
    html = make_page(tasks, [(run.resolve().name, draw_run(run)) for run in populations])
    is_one = len(populations) == 1 and len(curves.members_of(populations[0])) == len(runs)
    png = draw_run(populations[0]) if is_one else draw(tasks, "env_steps", "png")
    contents = {picture: png, page: html.encode()}
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

        content = draw(curves.group_runs([curves.read_run(run)]), "env_steps", "png")
        with written_whole(run / PICTURE) as file:
            file.write(content)
    except Exception as error:  # noqa: BLE001 - a picture is no reason for a training to fail
        say(f"warning: {PICTURE} could not be drawn: {type(error).__name__}: {error}")


def make_page(tasks: dict[str, list[Group]], populations: Sequence[tuple[str, bytes]] = ()) -> str:
    """An HTML page about all `tasks` that needs no other file, no network and no script.

    `populations` are names and PNG pictures.
    """
    choices = "\n".join(
        f'<input type="radio" name="axis" id="{axis}"{" checked" if axis == "env_steps" else ""}>'
        f'<label for="{axis}">{name}</label>'
        for axis, name in _AXES.items()
    )
    sections = "\n".join(_section(task, groups) for task, groups in tasks.items())
    for name, picture in populations:
        data = base64.b64encode(picture).decode()
        title = f"The population {escape(name)}"
        sections += (
            f"\n<section><h3>{title}</h3>\n"
            f'<img alt="{title}" src="data:image/png;base64,{data}"></section>'
        )
    template = Template(Path(__file__).with_name("report.template.html").read_text())
    return template.substitute(title=escape(", ".join(tasks)), choices=choices, sections=sections)


def _section(task: str, groups: list[Group]) -> str:
    """A picture of a task over each axis, of which the checked one is shown, and its tables."""
    from simtrain.run.plots import draw

    parts = []
    for axis, name in _AXES.items():
        svg = base64.b64encode(draw({task: groups}, axis, "svg")).decode()
        parts.append(
            f'<img class="{axis}" alt="Learning curves of {escape(task)} over {name}" '
            f'src="data:image/svg+xml;base64,{svg}">'
        )
    parts += ["<h3>Runs</h3>", _runs_table(groups)]
    if different := curves.differences([group.runs[0] for group in groups]):
        titles = ["flag", *(_mark(group) + escape(group.label) for group in groups)]
        rows = []
        for flag, values in different.items():
            rows.append([escape(flag), *(_NONE if v is None else escape(str(v)) for v in values)])
        parts += ["<h3>Settings that differ</h3>", _table(titles, rows)]
    return "\n".join(["<section>", *parts, "</section>"])


def _runs_table(groups: list[Group]) -> str:
    runs = [(group, run) for group in groups for run in group.runs]
    summaries: dict[str, tuple[str, Callable[[np.ndarray], Any]]] = {
        "steps/s (median)": (SPEED, np.median),
        "reward/step": (STEP_REWARD, curves.last),
        "return": (RETURN, curves.last),
        "best return": (RETURN, np.max),
        "episode length": (LENGTH, curves.last),
    }
    if any(run.summary(curves.EVALUATED, curves.last) is not None for _, run in runs):
        summaries["evaluated return"] = (curves.EVALUATED, curves.last)
        summaries["best evaluated"] = (curves.EVALUATED, np.max)
    rows = []
    for group, run in runs:
        row = [_mark(group) + escape(run.name), escape(str(run.config.get("seed")))]
        row += [f"{run.columns[column][-1]:,.0f}" for column in ("iteration", "env_steps")]
        row.append(str(timedelta(seconds=round(float(run.columns["wall_s"][-1])))))
        values = [run.summary(tag, of) for tag, of in summaries.values()]
        row += [_NONE if value is None else curves.number(value) for value in values]
        rows.append([*row, escape(run.commit or _NONE)])
    titles = ["run", "seed", "iterations", "environment steps", "wall time", *summaries, "commit"]
    return _table(titles, rows)


def _mark(group: Group) -> str:
    return f'<span class="mark" style="background:{group.color}"></span>'


def _table(titles: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "\n".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'
