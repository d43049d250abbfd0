"""Reports of runs: learning curves as a PNG, and as a web page of one file with tables."""

import base64
import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from simtrain.config.metric_tags import LENGTH, RETURN, SPEED, STEP_REWARD
from simtrain.errors import ConfigError
from simtrain.files import written_whole
from simtrain.plot.curves import EVALUATED, Group, differences, group_runs, number
from simtrain.run.directory import check_file, make_folder
from simtrain.run.logged import Axis, Run, last, members_of, read_run

PICTURE, PAGE = "report.png", "report.html"
_AXES: dict[Axis, str] = {"env_steps": "environment steps", "wall_s": "wall time"}
_NONE = "\N{EN DASH}"
Columns = dict[str, tuple[str, Callable[[np.ndarray], Any]]]
"""Title of a column -> the tag, and what of its values counts."""
_SUMMARIES: Columns = {
    "reward/step": (STEP_REWARD, last),
    "return": (RETURN, last),
    "best return": (RETURN, np.max),
    "episode length": (LENGTH, last),
    "evaluated return": (EVALUATED, last),
    "best evaluated": (EVALUATED, np.max),
    "steps/s (median)": (SPEED, np.median),
}
_OF_RUNS = ("best return", "episode length")  # in the table of runs alone


def write_report(
    runs: Sequence[Run],
    populations: Sequence[Path],
    picture: Path,
    page: Path,
    refresh: float | None = None,
) -> None:
    """Draw runs, of one or several tasks, into the PNG `picture` and the HTML file `page`.

    `populations` are the runs whose members are among them; the page has their pictures, too, and
    one that is alone gives the PNG. With `refresh` a browser reads the page anew after as many
    seconds.
    """
    make_folder(picture.parent, "--output")
    check_file(picture, "--output")
    check_file(page, "--output")

    from simtrain.plot.panels import as_file
    from simtrain.plot.population import draw_population
    from simtrain.plot.runs import draw_runs

    tasks = group_runs(runs)
    pictures = {run: as_file(draw_population(run)) for run in populations}
    html = make_page(tasks, [(run.resolve().name, png) for run, png in pictures.items()], refresh)
    is_one = len(populations) == 1 and len(members_of(populations[0])) == len(runs)
    png = pictures[populations[0]] if is_one else as_file(draw_runs(tasks, "env_steps"))
    contents = {picture: png, page: html.encode()}
    try:
        for path, content in contents.items():
            with written_whole(path) as file:
                file.write(content)
    except OSError as error:
        raise ConfigError(f"--output {path} cannot be written: {error.strerror}") from error


def draw_finished(run: Path, say: Callable[[str], None]) -> None:
    """Leave the picture of a run, or of a population, in its directory; if that fails, say so."""
    try:
        from simtrain.plot.panels import as_file
        from simtrain.plot.population import draw_population
        from simtrain.plot.runs import draw_runs

        if members_of(run):
            figure = draw_population(run)
        else:
            figure = draw_runs(group_runs([read_run(run)]), "env_steps")
        with written_whole(run / PICTURE) as file:
            file.write(as_file(figure))
    except Exception as error:  # noqa: BLE001 - a picture is no reason for a training to fail
        say(f"warning: {PICTURE} could not be drawn: {type(error).__name__}: {error}")


def make_page(
    tasks: dict[str, list[Group]],
    populations: Sequence[tuple[str, bytes]] = (),
    refresh: float | None = None,
) -> str:
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
    again = "" if refresh is None else f'<meta http-equiv="refresh" content="{refresh:g}">'
    title = escape(", ".join(tasks))
    return template.substitute(title=title, refresh=again, choices=choices, sections=sections)


def _section(task: str, groups: list[Group]) -> str:
    """A picture of a task over each axis, of which the checked one is shown, and its tables."""
    from simtrain.plot.panels import as_file
    from simtrain.plot.runs import draw_runs, evaluated_tags

    parts = []
    for axis, name in _AXES.items():
        svg = base64.b64encode(as_file(draw_runs({task: groups}, axis), "svg")).decode()
        parts.append(
            f'<img class="{axis}" alt="Learning curves of {escape(task)} over {name}" '
            f'src="data:image/svg+xml;base64,{svg}">'
        )
    metrics = {tag.removeprefix("Eval/"): (tag, last) for tag in evaluated_tags(groups)}
    columns = _SUMMARIES | metrics
    runs = [run for group in groups for run in group.runs]
    columns = {
        title: (tag, of)
        for title, (tag, of) in columns.items()
        if any(run.summary(tag, of) is not None for run in runs)
    }
    parts += ["<h3>Means \N{PLUS-MINUS SIGN} standard deviations over runs</h3>"]
    parts.append(_groups_table(groups, columns))
    different = differences([group.runs[0] for group in groups])
    if different and not groups[0].settings:  # they are too many for columns
        titles = ["flag", *(group.label for group in groups)]
        rows = []
        for flag, values in different.items():
            rows.append([escape(flag), *(_NONE if v is None else escape(str(v)) for v in values)])
        parts += ["<h3>Settings that differ</h3>", _table(titles, rows)]
    of_runs = {title: column for title, column in columns.items() if title in _SUMMARIES}
    parts += ["<h3>Runs</h3>", _runs_table(groups, of_runs)]
    return "\n".join(["<section>", *parts, "</section>"])


def _groups_table(groups: list[Group], columns: Columns) -> str:
    """A row for each setting, with a column for each flag that differs."""
    names = list(groups[0].settings)
    columns = {name: of for name, of in columns.items() if name not in _OF_RUNS}
    rows = []
    for group in groups:
        settings = [escape(value) for value in group.settings.values()] or [escape(group.label)]
        row = [_mark(group) + settings[0], *settings[1:], str(len(group.runs))]
        for tag, of in columns.values():
            values = [run.summary(tag, of) for run in group.runs]
            known = [value for value in values if value is not None]
            row.append(_mean_and_spread(known) if known else _NONE)
        rows.append(row)
    return _table([*(names or ["setting"]), "runs", *columns], rows)


def _mean_and_spread(values: list[float]) -> str:
    """The mean and, of several values, the standard deviation, with two digits of that."""
    mean = statistics.fmean(values)
    if len(values) == 1:
        return number(mean)
    spread = statistics.stdev(values)
    if spread <= 1e-6 * abs(mean):
        return f"{number(mean)}<br>\N{PLUS-MINUS SIGN} 0"
    digits = min(max(1 - math.floor(math.log10(spread)), 0), 5)
    return f"{mean:,.{digits}f}<br>\N{PLUS-MINUS SIGN} {spread:,.{digits}f}"


def _runs_table(groups: list[Group], columns: Columns) -> str:
    rows = []
    for group in groups:
        for run in group.runs:
            row = [_mark(group) + escape(run.name), escape(str(run.config.get("seed")))]
            row += [number(run.columns[name][-1]) for name in ("iteration", "env_steps")]
            row.append(str(timedelta(seconds=round(float(run.columns["wall_s"][-1])))))
            values = [run.summary(tag, of) for tag, of in columns.values()]
            row += [_NONE if value is None else number(value) for value in values]
            rows.append([*row, escape(run.commit or _NONE)])
    titles = ["run", "seed", "iterations", "env steps", "wall time", *columns]
    return _table([*titles, "commit"], rows)


def _mark(group: Group) -> str:
    return f'<span class="mark" style="background:{group.color}"></span>'


def _table(titles: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of titles, which may be broken within, and of cells that are HTML already."""
    breakable = (re.sub(r"([-_./])", r"\1<wbr>", escape(title)) for title in titles)
    head = "".join(f"<th>{title}</th>" for title in breakable)
    body = "\n".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'
