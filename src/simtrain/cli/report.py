"""``uv run simtrain report <run>...``: learning curves of runs as a picture and a web page."""

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simtrain.algorithms.cfg import Flag
from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.terminal import DONE, interruptible, write_file
from simtrain.errors import ConfigError

_SECONDS = 10.0


@dataclass
class ReportConfig:
    """Draw the learning curves of one or more runs; runs that differ only in their seed become one
    curve with its spread."""

    output: Path | None = None
    """Folder for report.png and report.html, or a name that ends with .png or .html for both; None
    for the run directory or, for several runs, their common folder."""
    watch: Flag = False
    """Draw again every ten seconds while one of the runs trains, and update an open page."""


def report(arguments: Sequence[str]) -> int:
    """Parse the command line and write the report; the exit code."""
    paths, flags = split_paths(arguments)
    config = parse_flags("simtrain report <run>...", ReportConfig(), flags)
    if not paths:
        raise ConfigError("name one or more run directories: `uv run simtrain report <run>...`")

    # Only now, so that help does not wait for NumPy and matplotlib.
    from simtrain.run.logged import NothingLoggedError
    from simtrain.run.metrics import is_trained

    while config.watch and any(map(is_trained, paths)):
        with interruptible():
            try:
                _write(paths, config.output, refresh=_SECONDS)
            except NothingLoggedError as error:
                print(f"{error}; waiting for it", file=sys.stderr)
            time.sleep(_SECONDS)
    for line in _write(paths, config.output):
        print(line)
    return DONE


def _write(paths: Sequence[Path], output: Path | None, refresh: float | None = None) -> list[str]:
    """Write the report of some runs; lines that say where it is."""
    from simtrain.plot.report import draw_report
    from simtrain.run.directory import PICTURE, check_file, make_folder, shown
    from simtrain.run.logged import NothingLoggedError, Run, members_of, read_run

    runs: dict[Path, Run] = {}
    empty: list[NothingLoggedError] = []
    populations = [path for path in paths if members_of(path)]
    for path in [run for given in paths for run in members_of(given) or [given]]:
        try:
            runs[path.resolve()] = read_run(path)
        except NothingLoggedError as error:
            empty.append(error)
    if not runs:
        raise empty[0]
    for run in (run for run in runs.values() if run.missing):
        text = f"metrics.jsonl is damaged: {run.missing} iterations are left out"
        print(f"warning: {run.path / text}", file=sys.stderr)
    for problem in empty:
        print(f"warning: left out, {problem}", file=sys.stderr)
    common = shown(Path(os.path.commonpath([path.resolve() for path in paths])))
    output = output or (paths[0] if len(paths) == 1 else common)
    if output.suffix in (".png", ".html") and not output.is_dir():
        picture, page = output.with_suffix(".png"), output.with_suffix(".html")
    else:
        picture, page = output / PICTURE, output / "report.html"
    make_folder(picture.parent, "--output")
    check_file(picture, "--output")
    check_file(page, "--output")
    with interruptible():
        png, html = draw_report(list(runs.values()), populations, refresh)
        write_file(picture, png, "--output")
        write_file(page, html, "--output")
    return [f"picture: {picture}", f"page:    {page}"]
