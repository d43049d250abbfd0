"""Learning curves as a web page of one file: the pictures inside, and tables beside them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import timedelta
from html import escape
from typing import Any

from simtrain.run.curves import (
    EVALUATED,
    LENGTH,
    RETURN,
    SPEED,
    Axis,
    Group,
    differences,
)
from simtrain.run.plots import draw, group_color, number

_AXES: dict[Axis, str] = {"env_steps": "environment steps", "wall_s": "wall time"}

_NONE = "\N{EN DASH}"

# Which picture of a task is shown follows from the checked axis alone, without a script.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1500px; margin: 0 auto;
  padding: 1.5rem; }}
img {{ width: 100%; }}
#env_steps:checked ~ main .wall_s, #wall_s:checked ~ main .env_steps {{ display: none; }}
label {{ margin-right: 1.2rem; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 0.6rem 0 1.6rem; }}
th, td {{ padding: 0.25rem 0.9rem 0.25rem 0; text-align: right; border-bottom: 1px solid #ddd;
  font-variant-numeric: tabular-nums; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
h3 {{ margin: 1.2rem 0 0; font-size: 1rem; }}
section {{ margin-bottom: 3rem; }}
.mark {{ display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.5em; }}
</style>
</head>
<body>
<span>Curves over</span>
{choices}
<main>
{sections}
</main>
</body>
</html>
"""


def make_page(tasks: dict[str, list[Group]]) -> str:
    """An HTML page about all `tasks` that needs no other file and no network."""
    choices = "\n".join(
        f'<input type="radio" name="axis" id="{axis}"{" checked" if axis == "env_steps" else ""}>'
        f'<label for="{axis}">{name}</label>'
        for axis, name in _AXES.items()
    )
    sections = "\n".join(_section(task, groups) for task, groups in tasks.items())
    return _PAGE.format(title=escape(", ".join(tasks)), choices=choices, sections=sections)


def _section(task: str, groups: list[Group]) -> str:
    pictures = []
    for axis, name in _AXES.items():
        svg = base64.b64encode(draw({task: groups}, axis, "svg")).decode()
        pictures.append(
            f'<img class="{axis}" alt="Learning curves of {escape(task)} over {name}" '
            f'src="data:image/svg+xml;base64,{svg}">'
        )
    different = differences([group.runs[0] for group in groups])
    tables = f"<h3>Runs</h3>\n{_runs_table(groups)}"
    if different:
        tables += f"\n<h3>Settings that differ</h3>\n{_differences_table(groups, different)}"
    return f"<section>\n{chr(10).join(pictures)}\n{tables}\n</section>"


def _runs_table(groups: list[Group]) -> str:
    runs = [(i, run) for i, group in enumerate(groups) for run in group.runs]
    evaluated = any(run.last(EVALUATED) is not None for _, run in runs)
    titles = ["run", "seed", "iterations", "environment steps", "wall time", "steps/s (median)",
              "return", "best return", "episode length"]  # fmt: skip
    if evaluated:
        titles += ["evaluated return", "best evaluated"]
    rows = []
    for i, run in runs:
        cells = [
            _mark(i) + escape(run.name),
            escape(str(run.config.get("seed"))),
            f"{run.columns['iteration'][-1]:,.0f}",
            f"{run.columns['env_steps'][-1]:,.0f}",
            str(timedelta(seconds=round(float(run.columns["wall_s"][-1])))),
            _cell(run.median(SPEED)),
            _cell(run.last(RETURN)),
            _cell(run.best(RETURN)),
            _cell(run.last(LENGTH)),
        ]
        if evaluated:
            cells += [_cell(run.last(EVALUATED)), _cell(run.best(EVALUATED))]
        rows.append([*cells, escape(run.commit or _NONE)])
    return _table([*titles, "commit"], rows)


def _differences_table(groups: list[Group], different: dict[str, list[Any]]) -> str:
    titles = ["flag", *(_mark(i) + escape(group.label) for i, group in enumerate(groups))]
    rows = [
        [escape(flag), *(_NONE if v is None else escape(str(v)) for v in values)]
        for flag, values in different.items()
    ]
    return _table(titles, rows)


def _cell(value: float | None) -> str:
    return _NONE if value is None else number(value)


def _mark(group: int) -> str:
    return f'<span class="mark" style="background:{group_color(group)}"></span>'


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    head = "".join(f"<th>{title}</th>" for title in titles)
    body = "\n".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'
