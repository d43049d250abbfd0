"""Pictures and pages of runs: what is drawn, and what happens when that cannot be."""

import base64
import fcntl
import json
import os
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from made_up import make_run, returns
from matplotlib.figure import Figure
from refusal import refused

from simtrain.cli.report import report
from simtrain.plot.curves import group_runs
from simtrain.plot.population import draw_population
from simtrain.plot.report import draw_finished
from simtrain.plot.runs import draw_runs
from simtrain.run.directory import LINEAGE
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
        "Reward terms (per second)", "Seconds of an iteration", "How episodes ended",
    ]  # fmt: skip
    (line,) = panels["Return"].lines
    assert line.get_xdata().tolist() == [10, 20, 30]
    assert line.get_ydata().tolist() == [2.0, 3.0, 4.0]
    (shade,) = panels["Return"].collections
    assert shade.get_paths()[0].get_extents().extents.tolist() == [10, 1, 30, 5]  # type: ignore[attr-defined]
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


def test_compared_runs_share_a_panel_for_each_part_and_all_panels_have_one_size(tmp_path):
    runs = [
        make_run(tmp_path / str(n), [{"Episode_Reward/up": up, "Episode_Reward/down": -0.5,
                 "Episode_Termination/fell": 0.25, "Loss/kl": 0.01}] * 3, num_envs=n)
        for n, up in ((1, 2.0), (2, 0.5))
    ]  # fmt: skip
    compared, alone = figure(*runs), figure(runs[0])
    panels = {ax.get_title(loc="left"): ax for ax in compared.axes}
    assert list(panels)[4:] == ["up", "down", "fell", "KL divergence"]
    assert [line.get_ydata()[-1] for line in panels["up"].lines] == [2.0, 0.5]
    assert [panels[name].get_title(loc="right") for name in ("up", "fell")] == [
        "reward/s",
        "of episodes",
    ]
    for picture in (compared, alone):
        sizes = [ax.get_position().bounds[2:] for ax in picture.axes]
        assert np.allclose(sizes, sizes[0])


def test_a_slow_first_iteration_and_an_early_batch_do_not_set_the_scale(tmp_path):
    lines = [
        {"Perf/physics_time": 0.1 + 0.01 * (i % 2), "Episode_Reward/up": 1.0 + 0.01 * i}
        for i in range(20)
    ]
    lines[0] = {"Perf/physics_time": 40.0, "Episode_Reward/up": -300.0}
    lines += lines[1:]
    runs = [make_run(tmp_path / str(n), lines, num_envs=n) for n in (1, 2)]
    for picture in (figure(runs[0]), figure(*runs)):
        tops = {ax.get_title(loc="left"): ax.get_ylim()[1] for ax in picture.axes}
        bottoms = {ax.get_title(loc="left"): ax.get_ylim()[0] for ax in picture.axes}
        for rewards in tops.keys() & {"Reward terms (per second)", "up"}:
            assert bottoms[rewards] > -3.0
            assert 1.1 < tops[rewards] < 3.0
        for seconds in tops.keys() & {"Seconds of an iteration", "physics"}:
            assert (bottoms[seconds], tops[seconds] < 4.0) == (0.0, True)


def test_the_numbers_beside_a_nearly_flat_curve_differ(tmp_path):
    run = make_run(tmp_path / "run", [{"Policy/mean_std": 0.5 - 1e-4 * i} for i in range(5)])
    panels = {ax.get_title(loc="left"): ax for ax in figure(run).axes}
    axis = panels["Action noise (std)"].yaxis
    low, high = axis.get_view_interval()
    numbers = [axis.get_major_formatter()(tick) for tick in axis.get_majorticklocs()
               if low <= tick <= high]  # fmt: skip
    assert len(numbers) == len({*numbers}) > 2


def test_a_member_that_is_lost_once_does_not_set_the_scale_of_fitness(tmp_path):
    run = make_run(tmp_path / "population", [], population_fitness="mean_return:max")
    lost = {"value": -400.0, "low": -401.0, "high": -399.0, "score": -400.0}
    with (run / LINEAGE).open("w") as file:
        for i in range(1, 9):
            good = {"value": 1.0 * i, "low": i - 1.0, "high": i + 1.0, "score": 1.0 * i}
            member = {"mutation": "none", "values": {"gamma": 0.9}}
            members = [
                {**member, "member": n, "parent": n, **(lost if (i, n) == (1, 1) else good)}
                for n in range(2)
            ]
            file.write(json.dumps({"iteration": i, "members": members}) + "\n")
    fitness = draw_population(run).axes[0]
    assert fitness.get_title(loc="left") == "Fitness: mean_return"
    assert fitness.get_ylim()[0] > -20.0


def cells(text: str) -> list[list[str]]:
    """The rows of all tables of an HTML page."""
    rows = re.findall(r"<tr>(.*)</tr>", text)
    plain = [re.sub(r"<br>|<wbr>|<span[^>]*></span>", "", row) for row in rows]
    return [re.findall(r"<t[dh]>(.*?)</t[dh]>", row) for row in plain]


def test_the_page_needs_nothing_else_and_tells_numbers_and_differences(tmp_path, capsys):
    runs = [
        *(make_run(tmp_path / "logs" / f"a{s}", _lines(s), seed=s) for s in (0, 2)),
        make_run(tmp_path / "logs" / "b", _lines(5), ppo={"learning_rate": 2e-3}),
        *(
            make_run(
                tmp_path / "logs" / f"jump{i}",
                _lines(0),
                task="<jump>",
                ppo={f"s{k}": i for k in range(5)},
            )
            for i in (1, 2)
        ),
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
    sources = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', text)
    assert len(sources) == 4  # two tasks, over steps and over time
    assert all(b"<svg" in base64.b64decode(source) for source in sources)
    (titles, one, two), (_, first, second, third) = cells(text)[:3], cells(text)[3:7]
    assert titles[:4] == ["learning-rate", "runs", "reward/step", "return"]
    assert one[:4] == ["0.001", "2", "1.5\N{PLUS-MINUS SIGN} 0", "4.0\N{PLUS-MINUS SIGN} 1.4"]
    assert two[:4] == ["0.002", "1", "1.5", "8"]
    assert first[:5] == ["a0", "0", "3", "30", "0:00:03"]
    assert [row[6] for row in (first, second, third)] == ["3", "5", "8"]
    assert ["ppo.s3", "1", "2"] in cells(text)  # five that differ are too many for columns


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
    picture = run / "report.png"
    assert picture.read_bytes().startswith(PNG)
    picture.unlink()
    picture.mkdir()
    draw_finished(run, said.append)  # what cannot be drawn is a warning only
    assert said[0].startswith("warning: report.png could not be drawn: IsADirectoryError")


def test_mistakes_are_told(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "a", _lines(0))
    make_run(tmp_path / "empty", [])
    Path("file").touch()
    for arguments, message in {
        "": "name one or more run directories",
        "empty": "no complete iteration yet",
        "a --output file/below": f"--output file/below cannot be made: {tmp_path}/file is not a",
    }.items():
        with refused(message, run):
            report(arguments.split())
