"""The numbers behind the curves, on made-up metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest
from made_up import make_run, returns

from simtrain.config.metric_tags import RETURN, phase_tags
from simtrain.errors import ConfigError
from simtrain.plot.curves import EVALUATED, MAX_POINTS, aggregate, differences, group_runs
from simtrain.run.logged import REST, NothingLoggedError, last, read_run


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
        "upright.weight 1, std \N{EN DASH} (2 runs)",
        "upright.weight 2, std 0.1",
    ]
    assert groups[1].settings == {"upright.weight": "2", "std": "0.1"}


def test_short_names_are_as_long_as_they_must_be(tmp_path):
    def network(actor: int, critic: int) -> dict:
        return {"actor": {"dims": actor}, "critic": {"dims": critic}, "gamma": actor / 10}

    runs = [read_run(make_run(tmp_path / str(i), returns(1.0), ppo=network(i, i))) for i in (1, 2)]
    (groups,) = group_runs(runs).values()
    assert groups[0].label == "actor.dims 1, critic.dims 1, gamma 0.1"


def test_a_curve_is_the_mean_of_the_runs_that_came_so_far_and_their_range(tmp_path):
    long = read_run(make_run(tmp_path / "long", returns(1.0, 2.0, 3.0, 4.0)))
    short = read_run(make_run(tmp_path / "short", returns(3.0, 6.0), seed=1))
    curve = aggregate([long, short], [RETURN], "env_steps").get(RETURN)
    assert curve.x.tolist() == [10, 20, 30, 40]
    assert curve.mean.tolist() == [2.0, 4.0, 3.0, 4.0]
    assert curve.low.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert curve.high.tolist() == [3.0, 6.0, 3.0, 4.0]
    assert curve.count.tolist() == [2, 2, 1, 1]


def test_runs_of_different_speed_are_compared_at_the_same_seconds(tmp_path):
    one = read_run(make_run(tmp_path / "one", returns(1.0, 2.0, 3.0)))
    lines = [{RETURN: 10.0, "wall_s": 1.0}, {RETURN: 20.0, "wall_s": 3.0}]
    slow = read_run(make_run(tmp_path / "slow", lines, seed=1))
    curve = aggregate([one, slow], [RETURN], "wall_s").get(RETURN)
    assert curve.x.tolist() == [1.0, 2.0, 3.0]
    assert curve.mean.tolist() == [5.5, 8.5, 11.5]


def test_nulls_and_absent_tags_leave_gaps_not_zeros(tmp_path):
    run = read_run(make_run(tmp_path / "a", [{}, *returns(None, 2.0, None, 4.0)]))
    x, y = run.series(RETURN, "env_steps")
    assert (x.tolist(), y.tolist()) == ([30, 50], [2.0, 4.0])
    assert [run.summary(RETURN, of) for of in (last, np.max, np.median)] == [4.0, 4.0, 3.0]
    assert run.summary("Train/mean_episode_length", last) is None
    none_yet = read_run(make_run(tmp_path / "b", [{"Train/finished_envs": 0.0}] * 2))
    assert none_yet.summary(RETURN, last) is None
    assert aggregate([run], ["Train/mean_episode_length"], "env_steps") == {}


@pytest.mark.parametrize(
    "tail", ['{"iteration": 3, "env_', '{"iteration": 3}', "\0\0\0", "[]", "7"]
)
def test_a_run_in_progress_may_end_in_the_middle_of_a_line(tail, tmp_path):
    path = make_run(tmp_path / "a", returns(1.0, 2.0))
    with (path / "metrics.jsonl").open("a") as file:
        file.write(tail)
    assert read_run(path).columns["iteration"].tolist() == [1, 2]


def test_what_a_resumed_run_did_again_counts_once(tmp_path):
    lines = returns(1.0, 2.0, 3.0, -2.5, -3.5)
    lines[3] |= {"iteration": 2, "env_steps": 20, "wall_s": 2.0}
    lines[4] |= {"iteration": 3, "env_steps": 30, "wall_s": 3.0}
    run = read_run(make_run(tmp_path / "a", lines))
    assert run.series(RETURN, "env_steps")[1].tolist() == [1.0, -2.5, -3.5]


def test_an_evaluation_stands_where_the_policy_was_that_it_evaluated(tmp_path):
    lines = returns(1.0, 2.0, 3.0, 4.0)
    lines[2] |= {EVALUATED: 7.0, "Eval/iteration": 1}
    lines[3] |= {EVALUATED: 8.0, "Eval/iteration": 4}
    run = read_run(make_run(tmp_path / "a", lines))
    x, y = run.series(EVALUATED, "env_steps")
    assert (x.tolist(), y.tolist()) == ([10, 40], [7.0, 8.0])
    assert run.series(EVALUATED, "wall_s")[0].tolist() == [3.0, 4.0]


def test_curves_of_several_tags_have_common_points(tmp_path):
    up, down = "Episode_Reward/up", "Episode_Reward/down"
    one = read_run(make_run(tmp_path / "one", [{up: 1.0}, {up: 2.0, down: -1.0}]))
    two = read_run(make_run(tmp_path / "two", [{up: 3.0, down: -2.0}, {up: 4.0, down: -3.0}]))
    curves = aggregate([one, two], [up, down, "absent"], "env_steps")
    assert all(curve.x.tolist() == [10, 20] for curve in curves.values())
    assert {tag: curve.mean.tolist() for tag, curve in curves.items()} == {
        up: [2.0, 3.0],
        down: [-2.0, -2.0],
        "absent": [0.0, 0.0],
    }
    assert aggregate([one, two], ["absent"], "env_steps") == {}


def test_what_an_iteration_took_beside_its_phases_is_the_rest(tmp_path):
    lines = [
        {"Perf/collection_time": 0.5, "Perf/learning_time": 0.25},
        {"Perf/collection_time": 0.5, "Perf/learning_time": 0.25, "Perf/evaluation_time": 0.25},
        {"Perf/collection_time": 1.5, "Perf/learning_time": 0.25},
    ]
    run = read_run(make_run(tmp_path / "a", lines))
    assert run.columns[REST].tolist() == [0.25, 0.0, 0.0]
    assert run.columns["Perf/evaluation_time"].tolist() == [0.0, 0.25, 0.0]


def test_phases_that_were_timed_leave_no_rest(tmp_path):
    lines = [
        {"Perf/collection_time": 0.5, "Perf/time/physics": 0.75, "Perf/time/saving": 0.0},
        {"Perf/collection_time": 0.5, "Perf/time/physics": 0.5},
    ]
    columns = read_run(make_run(tmp_path / "a", lines)).columns
    assert REST not in columns
    assert columns["Perf/time/saving"].tolist() == [0.0, 0.0]
    timed = ["Perf/time/physics", "Perf/time/saving"]
    assert phase_tags(["Train/mean_reward", "Perf/collection_time", *timed]) == timed
    assert phase_tags(["Perf/total_fps", "Perf/collection_time"]) == ["Perf/collection_time"]


def test_many_points_are_averaged_to_few(tmp_path):
    run = read_run(make_run(tmp_path / "a", returns(*map(float, range(2 * MAX_POINTS + 1)))))
    curve = aggregate([run], [RETURN], "env_steps")[RETURN]
    assert curve.x[:2].tolist() == [20, 50]  # each the mean of three
    assert curve.mean[:2].tolist() == [1.0, 4.0]
    assert len(curve.x) == math.ceil((2 * MAX_POINTS + 1) / 3)
    np.testing.assert_array_equal(curve.low, curve.high)


def test_what_is_no_run_is_told(tmp_path):
    with pytest.raises(ConfigError, match="there is no run"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"no run directory: it has no config.yaml$"):
        read_run(tmp_path)
    run = make_run(tmp_path / "walk" / "a", [])
    with pytest.raises(NothingLoggedError, match="no complete iteration yet"):
        read_run(run)
    with pytest.raises(ConfigError, match=f"there are runs below it, such as {run}"):
        read_run(tmp_path)
    with pytest.raises(ConfigError, match=f"is a file; name its run directory, {run}"):
        read_run(run / "metrics.jsonl")
    (run / "metrics.jsonl").unlink()
    with pytest.raises(NothingLoggedError, match="no complete iteration yet"):
        read_run(run)
    (run / "config.yaml").write_text("[1, 2")
    with pytest.raises(ConfigError, match="is damaged"):
        read_run(run)
