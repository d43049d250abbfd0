"""How soon a task is learned: what runs cost until then, medians, the file and the comparison."""

import json
import math
from pathlib import Path

from made_up import make_run
from refusal import refused

from simtrain.benchmark.until import (
    Evaluated,
    SeedResult,
    UntilResults,
    read_seed,
    read_until,
    shown,
)
from simtrain.training.features.conditions import Comparison, StopCondition

CONDITION = StopCondition(
    ((Comparison("Eval/error", "<", 0.2), Comparison("Eval/failure_rate", "<", 0.1)),)
)


def seed(number: int, steps: int, *, reached: bool = True) -> SeedResult:
    evaluations = (
        Evaluated(1, steps // 2, steps / 20, {"error": 0.9}),
        Evaluated(2, steps, steps / 10, {"error": 0.1}),
    )
    return SeedResult(number, f"logs/{number}", None, 1 if reached else None, evaluations)


def results(*seeds: SeedResult, members: int = 1) -> UntilResults:
    return UntilResults("walk", "error<0.2", members, seeds, {"machine": {"device": "abacus"}})


def evaluation(error: float, iteration: int, **more: float) -> dict[str, float]:
    tags = {"Eval/error": error, "Eval/failure_rate": 0.0, "Eval/iteration": iteration}
    return {**tags, **{f"Perf/time/{name}": value for name, value in more.items()}}


def test_a_seed_that_never_got_there_counts_as_infinitely_long():
    two, three = results(seed(0, 100), seed(1, 300)), [seed(0, 100), seed(1, 300)]
    assert two.median("env_steps") == 200.0
    assert results(*three, seed(2, 50, reached=False)).median("env_steps") == 300.0
    assert results(*three, seed(2, 50)).median("seconds") == 10.0
    lost = results(seed(0, 100), seed(1, 300, reached=False), seed(2, 300, reached=False))
    assert (lost.reached, lost.median("seconds")) == (1, math.inf)
    assert shown("seconds", lost.median("seconds")) == "not reached"
    assert json.loads(lost.as_json())["median"] == {"env_steps": None, "seconds": None}


def test_a_file_gives_back_what_was_written_unless_it_is_foreign_or_damaged(tmp_path):
    path = tmp_path / "until.json"
    wanted = results(seed(0, 100), seed(1, 200, reached=False), members=4)
    path.write_text(wanted.as_json())
    assert read_until(path) == wanted
    whole = json.loads(path.read_text())
    row = whole["seeds"][0]
    for content, message in (
        ({**whole, "format": "simtrain-benchmark-1"}, "was not written by this version's"),
        ({**whole, "members": "two"}, "is damaged"),
        ({**whole, "seeds": [{}]}, "is damaged: it lacks 'evaluations'"),
        ({**whole, "seeds": [{**row, "evaluations": []}]}, "is damaged"),
        ({**whole, "seeds": [{**row, "reached_at": 2}]}, "is damaged"),
    ):
        path.write_text(json.dumps(content))
        with refused(message, tmp_path):
            read_until(path)


def test_comparing_gives_the_ratios_of_the_medians():
    now, before = results(seed(0, 100), seed(1, 300)), results(seed(0, 400))
    assert now.ratios(before) == {"env_steps": 0.5, "seconds": 0.5}
    lost = results(seed(0, 100, reached=False))
    assert lost.ratios(before)["seconds"] == math.inf
    assert now.ratios(lost)["seconds"] == 0.0
    assert math.isnan(lost.ratios(lost)["seconds"])
    # A population is compared with the best of as many trainings, at equal steps in total. Of two
    # groups of two, it took 2 * 100 and 2 * 400 steps until the first of each was done.
    alone = results(seed(0, 100), seed(1, 300), seed(2, 500), seed(3, 400), seed(4, 1))
    population = results(seed(0, 250), members=2)
    assert population.ratios(alone)["env_steps"] == 250 / 500
    assert alone.ratios(population)["env_steps"] == 500 / 250
    assert math.isnan(results(seed(0, 9), members=8).ratios(alone)["env_steps"])


def test_a_run_is_read_up_to_its_budget_and_its_time_is_without_evaluations(tmp_path):
    lines = [
        {"Perf/time/physics": 2.0, "Perf/time/evaluation": 0.0},
        evaluation(0.5, 2, physics=2.0, evaluation=7.0),
        {"Perf/time/physics": 2.0, "Perf/time/evaluation": 7.0},
        {"Perf/time/physics": 2.0},
        evaluation(0.1, 4, physics=2.0, evaluation=0.0),  # beside training
        evaluation(0.3, 6, physics=2.0, evaluation=7.0),
    ]
    run = make_run(tmp_path / "run", lines, seed=7)
    found, is_over = read_seed(run, CONDITION, 100)
    assert is_over
    assert (found.seed, found.reached_at, len(found.evaluations)) == (7, 1, 3)
    values = {"error": 0.1, "failure_rate": 0.0}
    assert found.end == Evaluated(4, 40, 8.0, values)
    within, is_over = read_seed(run, CONDITION, 3)
    assert (within.reached, within.end.iteration, is_over) == (False, 2, True)
    assert read_seed(run, CONDITION, 1) == (None, True)
    more, is_over = read_seed(run, StopCondition(()), 100)
    assert (more.reached, is_over) == (False, False)
    (run / "metrics.jsonl").write_text("")
    assert read_seed(run, CONDITION, 100) == (None, False)


def test_of_a_population_the_best_member_is_judged(tmp_path):
    def exchange(iteration: int, *scores: float | None) -> str:
        members = [{"member": i, "score": score} for i, score in enumerate(scores)]
        counts = {"iteration": iteration, "env_steps": 20 * iteration, "wall_s": 2.5 * iteration}
        return json.dumps({**counts, "members": members}) + "\n"

    run = make_run(tmp_path / "run", [{}, {}])
    for i, errors in enumerate(((0.1, 0.9), (0.5, 0.15))):
        lines = [evaluation(error, n) for n, error in enumerate(errors, start=1)]
        make_run(run / "members" / str(i), lines, seed=0)
    (run / "population.jsonl").write_text(exchange(1, None, 3.0) + exchange(2, 1.0, 2.0))
    found, is_over = read_seed(Path(run), CONDITION, 100)
    assert [one.values["error"] for one in found.evaluations] == [0.5, 0.15]
    assert (found.end.iteration, found.end.env_steps, found.end.seconds) == (2, 40, 5.0)
    assert is_over
