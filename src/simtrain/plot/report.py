"""Reports of runs: learning curves as a PNG, and as a single-file web page with tables.

Imports matplotlib: training imports this module only when it draws.
"""

import base64
import math
import re
import statistics
from collections.abc import Callable, Sequence
from datetime import timedelta
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from simtrain.files import written_whole
from simtrain.plot.curves import COUNTS, EVALUATED, NONE, Group, differences, group_runs, number
from simtrain.plot.panels import as_file
from simtrain.plot.population import draw_population
from simtrain.plot.runs import draw_runs, evaluated_tags
from simtrain.run.directory import PICTURE
from simtrain.run.logged import Axis, Run, last, members_of, read_lineage, read_run
from simtrain.run.metric_tags import LENGTH, RETURN, SPEED, STEP_REWARD

_AXES: dict[Axis, str] = {"env_steps": "environment steps", "wall_s": "wall time"}
Summary = Callable[[np.ndarray], Any]
"""The value of a tag that counts, see `Run.summary`."""
_SUMMARIES: dict[str, tuple[str, Summary]] = {  # title of a column -> the tag and its summary
    "reward/step": (STEP_REWARD, last),
    "return": (RETURN, last),
    "best return": (RETURN, np.max),
    "episode length": (LENGTH, last),
    "evaluated return": (EVALUATED, last),
    "best evaluated": (EVALUATED, np.max),
    "steps/s (median)": (SPEED, np.median),
}
_OF_RUNS = ("best return", "episode length")  # in the table of runs alone


def draw_report(
    runs: Sequence[Run], populations: Sequence[Path], refresh: float | None = None
) -> tuple[bytes, bytes]:
    """A PNG file, and an HTML file about runs that needs no other file, no network and no script.

    They show one or several tasks. `populations` are those whose members are among the runs; the
    page shows their pictures too, and a single one replaces the PNG. With `refresh`, a browser
    loads the page again after this number of seconds.
    """
    tasks = group_runs(runs)
    populations = [run for run in populations if read_lineage(run)]  # others had no exchange yet
    pictures = {run.resolve().name: as_file(draw_population(run)) for run in populations}
    sections = [_section(task, groups) for task, groups in tasks.items()]
    for name, png in pictures.items():
        image = _image(f"The population {name}", "png", png)
        sections.append(f"<section><h3>The population {escape(name)}</h3>\n{image}</section>")
    page = Template(Path(__file__).with_name("report.template.html").read_text()).substitute(
        title=escape(", ".join(tasks)),
        refresh=f'<meta http-equiv="refresh" content="{refresh:g}">' if refresh else "",
        sections="\n".join(sections),
    )
    if len(populations) == 1 and len(members_of(populations[0])) == len(runs):
        return next(iter(pictures.values())), page.encode()
    return as_file(draw_runs(tasks, "env_steps")), page.encode()


def draw_finished(run: Path, say: Callable[[str], None]) -> None:
    """Write the picture of a run, or of a population, to its directory; report a failure."""
    try:
        if members_of(run):
            if not read_lineage(run):
                return
            figure = draw_population(run)
        else:
            figure = draw_runs(group_runs([read_run(run)]), "env_steps")
        with written_whole(run / PICTURE) as file:
            file.write(as_file(figure))
    except Exception as error:  # noqa: BLE001 - a picture is no reason for a training to fail
        say(f"warning: {PICTURE} could not be drawn: {type(error).__name__}: {error}")


def _image(title: str, kind: str, content: bytes, attributes: str = "") -> str:
    data = base64.b64encode(content).decode()
    return f'<img {attributes}alt="{escape(title)}" src="data:image/{kind};base64,{data}">'


def _section(task: str, groups: list[Group]) -> str:
    """A task's picture over each axis, of which the checked one is shown, and its tables."""
    parts = []
    for axis, name in _AXES.items():
        title = f"Learning curves of {task} over {name}"
        svg = as_file(draw_runs({task: groups}, axis), "svg")
        parts.append(_image(title, "svg+xml", svg, f'class="{axis}" '))
    metrics = {tag.removeprefix("Eval/"): (tag, last) for tag in evaluated_tags(groups)}
    runs = [run for group in groups for run in group.runs]
    columns = {
        title: column
        for title, column in (_SUMMARIES | metrics).items()
        if any(run.summary(*column) is not None for run in runs)
    }

    of_groups = {title: column for title, column in columns.items() if title not in _OF_RUNS}
    rows = [
        [*(group.settings.values() or [group.label]), len(group.runs)]
        + [_mean_and_spread(group.runs, *column) for column in of_groups.values()]
        for group in groups
    ]
    titles = [*(groups[0].settings or ["setting"]), "runs", *of_groups]
    parts.append("<h3>Means \N{PLUS-MINUS SIGN} standard deviations over runs</h3>")
    parts.append(_table(titles, rows, [group.color for group in groups]))

    different = differences([group.runs[0] for group in groups])
    if different and not groups[0].settings:  # they are too many for columns
        rows = [
            [flag, *(NONE if value is None else value for value in values)]
            for flag, values in different.items()
        ]
        parts.append("<h3>Settings that differ</h3>")
        parts.append(_table(["flag", *(group.label for group in groups)], rows))

    of_runs = {title: column for title, column in columns.items() if title in _SUMMARIES}
    rows = []
    for run in runs:
        iterations, steps, seconds = (float(run.columns[name][-1]) for name in COUNTS)
        counts = [number(iterations), number(steps), timedelta(seconds=round(seconds))]
        values = [_mean_and_spread([run], *column) for column in of_runs.values()]
        rows.append([run.name, run.config.get("seed"), *counts, *values, run.commit or NONE])
    titles = ["run", "seed", "iterations", "env steps", "wall time", *of_runs, "commit"]
    colors = [group.color for group in groups for _ in group.runs]
    parts += ["<h3>Runs</h3>", _table(titles, rows, colors)]
    return "\n".join(["<section>", *parts, "</section>"])


def _mean_and_spread(runs: Sequence[Run], tag: str, of: Summary) -> str:
    """The mean and, for several runs, the standard deviation with two digits."""
    summaries = [run.summary(tag, of) for run in runs]
    values = [value for value in summaries if value is not None]
    if len(values) < 2:
        return number(values[0]) if values else NONE
    mean, spread = statistics.fmean(values), statistics.stdev(values)
    if spread <= 1e-6 * abs(mean):
        return f"{number(mean)}\n\N{PLUS-MINUS SIGN} 0"
    digits = min(max(1 - math.floor(math.log10(spread)), 0), 5)
    return f"{mean:,.{digits}f}\n\N{PLUS-MINUS SIGN} {spread:,.{digits}f}"


def _table(titles: Sequence[str], rows: list[list[Any]], colors: Sequence[str] = ()) -> str:
    """An HTML table of titles, which may contain line breaks, and values; each row has a color."""
    head = [re.sub(r"([-_./])", r"\1<wbr>", escape(title)) for title in titles]
    cells = [[escape(str(value)).replace("\n", "<br>") for value in row] for row in rows]
    for row, color in zip(cells, colors, strict=False):
        row[0] = f'<span class="mark" style="background:{color}"></span>{row[0]}'
    lines = ["".join(f"<th>{title}</th>" for title in head)]
    lines += ["".join(f"<td>{cell}</td>" for cell in row) for row in cells]
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    return f'<div class="wide"><table>\n{body}\n</table></div>'
