"""What runs have logged, on made-up metrics."""

from __future__ import annotations

import numpy as np
import pytest
from made_up import make_run, returns

from simtrain.errors import ConfigError
from simtrain.plot.curves import EVALUATED
from simtrain.run.logged import REST, NothingLoggedError, last, read_run
from simtrain.run.metric_tags import RETURN, phase_tags


def test_nulls_and_absent_tags_leave_gaps_not_zeros(tmp_path):
    run = read_run(make_run(tmp_path / "a", [{}, *returns(None, 2.0, None, 4.0)]))
    x, y = run.series(RETURN, "env_steps")
    assert (x.tolist(), y.tolist()) == ([30, 50], [2.0, 4.0])
    assert [run.summary(RETURN, of) for of in (last, np.max, np.median)] == [4.0, 4.0, 3.0]
    assert run.summary("Train/mean_episode_length", last) is None
    none_yet = read_run(make_run(tmp_path / "b", [{"Train/finished_envs": 0.0}] * 2))
    assert none_yet.summary(RETURN, last) is None


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


def test_what_an_iteration_took_beside_its_phases_is_the_rest(tmp_path):
    lines = [
        {"Perf/collection_time": 0.5, "Perf/learning_time": 0.25},
        {"Perf/collection_time": 0.5, "Perf/learning_time": 0.25, "Perf/evaluation_time": 0.25},
        {"Perf/collection_time": 1.5, "Perf/learning_time": 0.25},
    ]
    columns = read_run(make_run(tmp_path / "a", lines)).columns
    assert columns[REST].tolist() == [0.25, 0.0, 0.0]
    assert columns["Perf/evaluation_time"].tolist() == [0.0, 0.25, 0.0]
    timed = {"Perf/time/physics": 0.75, "Perf/time/saving": 0.0}  # which leave no rest
    lines = [{"Perf/collection_time": 0.5, **timed}, {"Perf/time/physics": 0.5}]
    columns = read_run(make_run(tmp_path / "b", lines)).columns
    assert REST not in columns
    assert columns["Perf/time/saving"].tolist() == [0.0, 0.0]
    assert phase_tags(["Train/mean_reward", "Perf/collection_time", *timed]) == [*timed]


def test_what_is_no_run_is_an_error_that_says_why(tmp_path):
    run = make_run(tmp_path / "walk" / "a", [])
    for path, problem in {
        tmp_path / "nowhere": "there is no run",
        tmp_path / "walk" / "a" / "metrics.jsonl": f"is a file; name its run directory, {run}",
        tmp_path: f"it has no config.yaml; the newest run below it is {run}",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            read_run(path)
    with pytest.raises(NothingLoggedError, match="no complete iteration yet"):
        read_run(run)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(NothingLoggedError, match="no complete iteration yet"):
        read_run(run)
    (run / "config.yaml").write_text("[1, 2")
    with pytest.raises(ConfigError, match="is damaged"):
        read_run(run)
