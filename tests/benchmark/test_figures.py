"""A benchmark's figures: what they say, their file, and comparing them with others."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from refusal import refused

from simtrain.benchmark.figures import LAYERS, Case, Results, figures_of, read_results
from simtrain.benchmark.pictures import draw_layers

CASE = Case("walk", "mujoco", "cpu", 1, 100, 1)
SECONDS = {"physics": [1.0, 2.0, 4.0], "env_step": [4.0] * 3, "rollout": [5.0] * 3}
SECONDS |= {"update": [1.0] * 3, "training": [8.0] * 3}


def results(case: Case = CASE, steps: int = 800) -> Results:
    return Results(figures_of(case, steps, SECONDS), {"machine": {"device": "abacus"}})


def test_figures_are_medians_with_their_range_and_fractions_of_bare_physics():
    figures = {figure.layer: figure for figure in results().figures}
    assert list(figures) == list(LAYERS)
    physics = figures["physics"]
    assert (physics.steps_per_second, physics.lowest, physics.highest) == (400.0, 200.0, 800.0)
    assert physics.spread == 0.75
    assert {name: figure.of_physics for name, figure in figures.items()} == {
        "physics": 1.0, "env_step": 0.5, "rollout": 0.4, "update": 2.0, "training": 0.25
    }  # fmt: skip


def test_scaling_is_what_a_rank_does_beside_others_as_a_fraction_of_one_alone():
    two = results(dataclasses.replace(CASE, ranks=2), steps=1200)
    both = Results((*results().figures, *two.figures), {})
    assert [both.scaling(figure) for figure in two.figures] == [0.75] * 5
    assert math.isnan(two.scaling(two.figures[0]))


def test_the_serial_part_is_what_more_threads_make_no_shorter():
    seconds = {n: {layer: [2.0 + 6.0 / n] for layer in LAYERS} for n in (1, 2, 4)}
    some = [figures_of(dataclasses.replace(CASE, threads=n), 10**6, seconds[n]) for n in seconds]
    all_of_them = Results(sum(some, ()), {})
    assert all_of_them.serial_part(some[0][0]) == pytest.approx(2.0, rel=1e-3)
    assert math.isnan(results().serial_part(results().figures[0]))
    headers = [[column.header for column in t.columns] for t in all_of_them.tables(None, 0.1)]
    assert ["serial µs" in names for names in headers] == [False, True, True]
    *_, panel = draw_layers(all_of_them).axes
    assert panel.get_title(loc="left") == "Speed-up by threads, 100 environments"
    assert list(panel.lines[0].get_xdata()) == [1, 2, 4]
    assert list(panel.lines[0].get_ydata()) == pytest.approx([1.0, 1.6, 8 / 3.5])


def test_a_file_gives_back_what_was_written_unless_it_is_foreign_or_damaged(tmp_path):
    content, path = json.loads(results().as_json()), tmp_path / "old.json"
    path.write_text(results().as_json())
    assert read_results(path) == results()
    row = content["figures"][0]
    for text, message in {
        "{": "is not JSON",
        "[]": "was not written by this version's `benchmark`",
        json.dumps({**content, "figures": [{}]}): "is damaged",
        json.dumps({**content, "figures": [{**row, "steps_per_second": 0}]}): "is damaged",
        json.dumps({**content, "figures": [{**row, "layer": "roof"}]}): "is damaged",
    }.items():
        path.write_text(text)
        with refused(message, tmp_path):
            read_results(path)
    with refused("cannot be read: No such file", tmp_path):
        read_results(Path("nowhere.json"))
