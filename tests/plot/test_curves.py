"""The numbers behind the curves, on made-up metrics."""

import math

import numpy as np
from made_up import make_run, returns

from simtrain.plot.curves import (
    MAX_POINTS,
    aggregate,
    differences,
    group_runs,
    number,
    usual_range,
)
from simtrain.run.logged import read_run
from simtrain.run.metric_tags import RETURN


def test_runs_are_grouped_by_task_and_settings_whatever_their_seed_and_length(tmp_path):
    runs = [
        read_run(make_run(tmp_path / name, returns(1.0), **config))
        for name, config in {
            "a": {"seed": 1, "max_iterations": 3, "run_name": "first"},
            "b": {"seed": 2, "max_iterations": 9, "logger": "none", "gpu_ids": None},
            "fast": {"ppo": {"learning_rate": 2e-3}},
            "run": {"task": "run"},
            "elsewhere": {"env": {"model": "/there/walker.xml",
                                  "rewards": {"upright": {"weight": 1.0, "params": {}}}}},
            "gpu": {"devices": ["cuda:0"]},
            "two-ranks": {"devices": ["cpu", "cpu"]},
        }.items()
    ]  # fmt: skip
    groups = group_runs(runs)
    assert list(groups) == ["walk", "run"]
    names = [[run.name for run in group.runs] for group in groups["walk"]]
    assert names == [["a", "b", "elsewhere"], ["fast"], ["gpu"], ["two-ranks"]]


def test_differences_are_told_by_flag_and_name_the_groups(tmp_path):
    weight = {
        "model": "walker.xml",
        "rewards": {"upright": {"weight": 2.0, "params": {"std": 0.1}}},
    }
    runs = [
        read_run(make_run(tmp_path / "a", returns(1.0))),
        read_run(make_run(tmp_path / "b", returns(1.0), seed=1)),
        read_run(make_run(tmp_path / "c", returns(1.0), env=weight)),
    ]
    assert differences(runs) == {
        "env.rewards.upright.weight": [1.0, 1.0, 2.0],
        "env.rewards.upright.std": [None, None, 0.1],
    }
    (groups,) = group_runs(runs).values()
    assert [group.label for group in groups] == [
        "upright.weight 1, upright.std \N{EN DASH} (2 runs)",
        "upright.weight 2, upright.std 0.1",
    ]
    assert groups[1].settings == {"upright.weight": "2", "upright.std": "0.1"}


def test_a_curve_is_the_mean_of_the_runs_that_came_so_far_and_their_range(tmp_path):
    long = read_run(make_run(tmp_path / "long", returns(1.0, 2.0, 3.0, 4.0)))
    short = read_run(make_run(tmp_path / "short", returns(3.0, 6.0), seed=1))
    curve = aggregate([long, short], [RETURN], "env_steps").get(RETURN)
    assert curve.x.tolist() == [10, 20, 30, 40]
    assert curve.mean.tolist() == [2.0, 4.0, 3.0, 4.0]
    assert curve.low.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert curve.high.tolist() == [3.0, 6.0, 3.0, 4.0]
    assert curve.count.tolist() == [2, 2, 1, 1]


def test_curves_of_several_tags_have_common_points(tmp_path):
    up, down = "Episode_Reward/up", "Episode_Reward/down"
    one = read_run(make_run(tmp_path / "one", [{up: 1.0}, {up: 2.0, down: -1.0}]))
    two = read_run(make_run(tmp_path / "two", [{up: 3.0, down: -2.0}, {up: 4.0, down: -3.0}]))
    curves = aggregate([one, two], [up, down, "absent"], "env_steps")
    assert all(curve.x.tolist() == [10, 20] for curve in curves.values())
    means = {tag: curve.mean.tolist() for tag, curve in curves.items()}
    assert means == {up: [2.0, 3.0], down: [-2.0, -2.0], "absent": [0.0, 0.0]}
    assert aggregate([one, two], ["absent"], "env_steps") == {}


def test_many_points_are_averaged_to_few(tmp_path):
    run = read_run(make_run(tmp_path / "a", returns(*map(float, range(2 * MAX_POINTS + 1)))))
    curve = aggregate([run], [RETURN], "env_steps")[RETURN]
    assert curve.x[:2].tolist() == [20, 50]  # each the mean of three
    assert curve.mean[:2].tolist() == [1.0, 4.0]
    assert len(curve.x) == math.ceil((2 * MAX_POINTS + 1) / 3)


def test_single_points_that_stick_out_are_not_in_the_usual_range_of_a_curve():
    def usual(*values: float) -> tuple[float, float]:
        return usual_range(np.array(values), np.array(values))

    rising = tuple(map(float, range(10)))
    assert usual(*rising) == (0.0, 9.0)
    assert usual(500.0, *rising) == (0.0, 17.0)  # room for as much again
    assert usual(*rising, 500.0) == (0.0, 500.0)  # how it ended is always shown
    assert usual(*rising[:5], -500.0, *rising[5:])[1] == 9.0
    assert usual(*[0.0] * 9, 1.0, 0.0) == (0.0, 1.0)  # all that there is
    assert usual(500.0, 1.0) == (1.0, 500.0)  # too few to tell


def test_numbers_are_short_and_those_at_ticks_exact():
    assert [number(value) for value in (1_500_000.0, 120_400.0, 0.01234, -0.000025)] == [
        "1.5M", "120k", "0.0123", "\u22122.5e\u22125",
    ]  # fmt: skip
    assert [number(0.94 + 0.0025 * i, 4) for i in range(3)] == ["0.94", "0.9425", "0.945"]
    assert number(0.000125, 4) == "0.000125"
