"""Pictures and pages of runs: what is drawn, and what happens when that cannot be."""

from __future__ import annotations

import base64
import fcntl
import os
import re
import threading
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from made_up import make_run, returns
from matplotlib.figure import Figure

from simtrain.cli.report import report
from simtrain.errors import ConfigError
from simtrain.plot.curves import group_runs
from simtrain.plot.report import draw_finished, make_page
from simtrain.plot.runs import draw_runs
from simtrain.run.logged import read_run

PNG = b"\x89PNG\r\n\x1a\n"


def figure(*runs: Path) -> Figure:
    """The picture of the runs."""
    return draw_runs(group_runs([read_run(run) for run in runs]), "env_steps")


def _lines(seed: int) -> list[dict]:
    return [
        {
            "Train/mean_step_reward": 0.5 * i,
            "Train/mean_reward": i + seed, "Train/mean_episode_length": 5.0 * i,
            "Perf/total_fps": 1000.0, "Perf/collection_time": 0.5, "Perf/learning_time": 0.25,
            "Episode_Reward/up": 2.0 * i, "Episode_Reward/down": -1.0 * i,
            "Episode_Termination/time_out": 0.75, "Episode_Termination/fell": 0.25,
        }
        for i in (1, 2, 3)
    ]  # fmt: skip


def test_the_picture_shows_the_mean_over_seeds_with_its_range(tmp_path):
    runs = [make_run(tmp_path / str(s), _lines(s), seed=s) for s in (0, 2)]
    assert report([*map(str, runs)]) == 0
    assert (tmp_path / "report.png").read_bytes().startswith(PNG)
    assert report([*map(str, sorted(tmp_path.iterdir()))]) == 0  # the report is among <folder>/*
    panels = {ax.get_title(loc="left"): ax for ax in figure(*runs).axes}
    assert list(panels) == [
        "Reward per step", "Return", "Episode length (steps)", "Env steps per second",
        "Reward terms (per second)", "How episodes ended", "Seconds of an iteration",
    ]  # fmt: skip
    (line,) = panels["Return"].lines
    assert line.get_xdata().tolist() == [10, 20, 30]
    assert line.get_ydata().tolist() == [2.0, 3.0, 4.0]
    (shade,) = panels["Return"].collections
    assert shade.get_paths()[0].get_extents().extents.tolist() == [10, 1, 30, 5]
    assert panels["Return"].get_title(loc="right") == "4"
    (total,) = panels["Reward terms (per second)"].lines
    assert total.get_ydata().tolist() == [1.0, 2.0, 3.0]
    shares = [t.get_text() for t in panels["How episodes ended"].get_legend().get_texts()]
    assert shares == ["time_out  75 %", "fell  25 %"]
    times = [t.get_text() for t in panels["Seconds of an iteration"].get_legend().get_texts()]
    assert times == ["collection  0.5", "learning  0.25", "rest  0.25"]


def test_evaluations_are_drawn_beside_training(tmp_path):
    lines = _lines(0)
    lines[2] |= {"Eval/mean_return": 9.0, "Eval/error": 0.5, "Eval/iteration": 2}
    axes = figure(make_run(tmp_path / "a", lines)).axes
    training, evaluation = axes[1].lines
    assert training.get_ydata().tolist() == [1.0, 2.0, 3.0]
    assert (evaluation.get_xdata().tolist(), evaluation.get_ydata().tolist()) == ([20], [9.0])
    (error,) = next(ax for ax in axes if ax.get_title(loc="left") == "Eval error").lines
    assert (error.get_xdata().tolist(), error.get_ydata().tolist()) == ([20], [0.5])

    axes = figure(make_run(tmp_path / "b", [{"Eval/mean_return": 9.0, "Eval/iteration": 2}])).axes
    notes = [text.get_text() for ax in axes[:3] for text in ax.texts]
    assert notes == ["no whole episode yet"] * 2  # not across the evaluation's curve


def test_means_over_episodes_are_pale_until_all_environments_have_finished_one(tmp_path):
    lines = [
        {"Train/mean_step_reward": 1.0, "Train/mean_reward": 1.0 * i, "Train/finished_envs": share}
        for i, share in enumerate((0.2, 0.6, 1.0, 1.0), 1)
    ]
    rewards, returns = figure(make_run(tmp_path / "a", lines)).axes[:2]
    assert [line.get_alpha() for line in rewards.lines] == [None]
    pale, complete = returns.lines
    assert (pale.get_alpha(), pale.get_ydata().tolist()) == (0.35, [1.0, 2.0, 3.0, 4.0])
    assert np.isnan(complete.get_ydata()).tolist() == [True, True, False, False]


def test_a_term_has_one_color_in_all_groups_of_a_task(tmp_path):
    def lines(up: float, down: float) -> list[dict]:
        return [{"Episode_Reward/up": up, "Episode_Reward/down": down}] * 2

    one = make_run(tmp_path / "one", lines(2.0, -1.0))
    two = make_run(tmp_path / "two", lines(1.0, -1.5), num_envs=9)
    rewards = [
        ax for ax in figure(one, two).axes if ax.get_title(loc="left").startswith("Reward terms")
    ]
    colors = [
        {text.get_text().split()[0]: handle.get_facecolor() for text, handle in
         zip(ax.get_legend().get_texts(), ax.get_legend().get_patches(), strict=False)}
        for ax in rewards
    ]  # fmt: skip
    assert list(colors[0]) == ["up", "down"]
    assert colors[0] == colors[1]


class _Page(HTMLParser):
    """What an HTML page refers to, and the cells of its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.sources: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.sources += [v for name, v in attributes if name in ("src", "href") and v]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag in ("td", "th", "span", "wbr", "br") and self.rows and self.rows[-1]:
            self.rows[-1][-1] += data.strip()


def test_the_page_needs_nothing_else_and_tells_numbers_and_differences(tmp_path, capsys):
    runs = [
        make_run(tmp_path / "logs" / "a", _lines(0)),
        make_run(tmp_path / "logs" / "b", _lines(5), ppo={"learning_rate": 2e-3}),
        make_run(tmp_path / "logs" / "jump", _lines(0), task="<jump>"),
        make_run(tmp_path / "logs" / "fresh", []),
    ]
    page = tmp_path / "new" / "folder" / "page.html"
    assert report([*map(str, runs), "--output", str(page)]) == 0
    assert "left out, the run" in capsys.readouterr().err
    assert sorted(path.name for path in page.parent.iterdir()) == ["page.html", "page.png"]
    text = page.read_text()
    assert "&lt;jump&gt;" in text
    assert "<jump>" not in text
    assert not re.search(r"(src|href)=\"(?!data:)|url\(|@import|<script", text)
    told = _Page(text)
    assert len(told.sources) == 4  # two tasks, over steps and over time
    for source in told.sources:
        kind, _, data = source.partition(";base64,")
        assert kind == "data:image/svg+xml"
        assert b"<svg" in base64.b64decode(data)
    settings, runs_of_walk = _table(told.rows[:3]), _table(told.rows[3:6])
    assert [row["learning-rate"] for row in settings] == ["0.001", "0.002"]
    assert [row["reward/step"] for row in settings] == ["1.5", "1.5"]
    assert [row["run"] for row in runs_of_walk] == ["a", "b"]
    assert [row["return"] for row in runs_of_walk] == ["3", "8"]
    assert [row["env steps"] for row in runs_of_walk] == ["30", "30"]


def _table(rows: list[list[str]]) -> list[dict[str, str]]:
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def test_settings_have_means_and_standard_deviations_over_their_runs(tmp_path):
    def lines(seed: int) -> list[dict]:
        return [{**line, "Eval/error": 0.1 * seed, "Eval/iteration": 1} for line in _lines(seed)]

    runs = [
        make_run(tmp_path / f"{gamma}-{s}", lines(s), seed=s, ppo={"gamma": gamma})
        for gamma in (0.9, 0.99)
        for s in (1, 3)
    ]
    text = make_page(group_runs([read_run(run) for run in runs]))
    row = _table(_Page(text).rows[:3])[1]
    assert (row["gamma"], row["runs"]) == ("0.99", "2")
    assert row["reward/step"] == "1.5\N{PLUS-MINUS SIGN} 0"
    assert (row["return"], row["error"]) == (
        "5.0\N{PLUS-MINUS SIGN} 1.4",
        "0.20\N{PLUS-MINUS SIGN} 0.14",
    )


def test_many_settings_that_differ_are_rows_of_a_table_of_their_own(tmp_path):
    runs = [
        read_run(make_run(tmp_path / str(i), _lines(0), ppo={f"s{k}": i for k in range(5)}))
        for i in (1, 2)
    ]
    rows = _Page(make_page(group_runs(runs))).rows
    assert [row for row in rows if row[0] == "ppo.s3"] == [["ppo.s3", "1", "2"]]


def test_a_report_follows_a_run_until_that_is_not_trained_any_more(tmp_path, monkeypatch):
    run, page = make_run(tmp_path / "a", _lines(0)), tmp_path / "a" / "report.html"
    monkeypatch.setattr("simtrain.cli.report._SECONDS", 0.05)
    refreshed: list[bool] = []

    def train_on(descriptor: int) -> None:
        while not page.exists() or not page.read_text():
            time.sleep(0.01)
        refreshed.append('http-equiv="refresh" content="0.05"' in page.read_text())
        os.close(descriptor)

    descriptor = os.open(run / "metrics.jsonl", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    threading.Thread(target=train_on, args=(descriptor,), daemon=True).start()
    assert report([str(run), "--watch"]) == 0
    assert refreshed == [True]
    assert "refresh" not in page.read_text()


@pytest.mark.parametrize(
    "lines",
    [
        [{}],
        [{"Train/mean_reward": None, "Perf/total_fps": 0.0}],
        _lines(0)[:1],
        [{"Episode_Reward/term": float(i % 7) - 3.0} for i in range(500)],
        [{f"Episode_Reward/a_long_name_{k}": 1.0 * k for k in range(20)}] * 3,
        returns(1e12, -1e12),
    ],
    ids=["nothing", "null", "one", "many", "twenty terms", "large"],
)
def test_whatever_was_logged_can_be_drawn(lines, tmp_path):
    said: list[str] = []
    run = make_run(tmp_path / "a $x$", lines, task="a_{b")
    draw_finished(run, said.append)
    assert said == []
    assert (run / "report.png").read_bytes().startswith(PNG)


def test_a_picture_that_cannot_be_drawn_is_a_warning_only(tmp_path):
    said: list[str] = []
    run = make_run(tmp_path / "a", _lines(0))
    (run / "report.png").mkdir()
    draw_finished(run, said.append)
    (warning,) = said
    assert warning.startswith("warning: report.png could not be drawn: IsADirectoryError")
    assert sorted(p.name for p in run.iterdir()) == ["config.yaml", "metrics.jsonl", "report.png"]


def test_mistakes_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "a", _lines(0))
    make_run(tmp_path / "empty", [])
    Path("file").touch()
    for arguments, message in {
        "": "name one or more run directories",
        "nowhere": "there is no run nowhere",
        "empty": "no complete iteration yet",
        "a --output file/below": "--output file/below cannot be made: .*/file is not a folder",
        "a --output /proc/report": "--output .* cannot be written",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(message).replace(r"\.\*", ".*")):
            report(arguments.split())
    assert sorted(path.name for path in run.iterdir()) == ["config.yaml", "metrics.jsonl"]
