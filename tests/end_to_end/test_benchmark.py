"""The real `benchmark` command: what it writes, when comparing fails, and how it ends."""

from __future__ import annotations

import dataclasses
import json

import pytest
from job import BENCHMARK, Job
from refusal import refused

from simtrain.benchmark.figures import Case, Results, figures_of, read_results
from simtrain.cli.benchmark import benchmark

TASK = "cartpole-balance"
MEASURE = "simtrain.benchmark.ranks.measure_cases"
SMALL = ["--gpu-ids", "None", "--cpu-threads", "1", "--num-envs", "4"]
CASE = Case(TASK, "mujoco", "cpu", 1, 4, 1)


def made_up(training: float = 8.0) -> tuple:
    seconds = {"physics": 1.0, "env_step": 4.0, "rollout": 5.0, "update": 1.0, "training": training}
    return figures_of(CASE, 800, {layer: [value] for layer, value in seconds.items()})


@pytest.fixture
def measured(monkeypatch) -> None:
    """Let the command find the made-up figures, at once."""
    monkeypatch.setattr(MEASURE, lambda *_: (made_up(), "abacus"))


@pytest.mark.slow
def test_it_measures_every_layer_on_every_number_of_ranks_and_compares(here):
    # Nothing is as fast as before.
    old = [dataclasses.replace(f, steps_per_second=1e12, highest=1e12) for f in made_up()]
    (here / "old.json").write_text(Results(tuple(old), {}).as_json())
    flags = ("--ranks", "1", "2", "--repetitions", "2", "--json", "new.json")
    job = Job(here, TASK, *SMALL, *flags, "--compare", "old.json", program=BENCHMARK)
    assert job.wait() == 1, job.output
    assert job.output.count("slower: ") == 5
    assert (
        "slower: end to end of cartpole-balance, mujoco, cpu, 1 rank of 1 thread, 4 env"
        in job.output
    )
    assert job.output.count("measuring") == 2
    assert "Traceback" not in job.output
    for text in ("2 ranks", "scaling", "now/before", "results: new.json", "picture: new.png"):
        assert text in job.output

    content = json.loads((here / "new.json").read_text())
    assert [(f["ranks"], f["layer"]) for f in content["figures"]] == [
        (ranks, layer)
        for ranks in (1, 2)
        for layer in ("physics", "env_step", "rollout", "update", "training")
    ]
    assert content["repetitions"] == 2
    assert {"python", "mujoco", "torch"} <= set(content["versions"])
    for figure in content["figures"]:
        assert 0.0 < figure["lowest"] <= figure["steps_per_second"] <= figure["highest"]
    # Rollout and update are parts of an iteration.
    rates = {f["layer"]: f["highest"] for f in content["figures"] if f["ranks"] == 1}
    assert rates["training"] < min(rates["rollout"], rates["update"])
    assert (here / "new.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert len(read_results(here / "new.json").figures) == 10


def test_comparing_fails_if_a_figure_fell_by_more_than_the_tolerance(here, measured, capsys):
    # End to end took 8 s now: 0.875 of the rate of when it took 7 s.
    (here / "old.json").write_text(Results(made_up(training=7.0), {}).as_json())
    compared = [TASK, *SMALL, "--compare", "old.json"]
    assert benchmark(compared) == 1
    told = capsys.readouterr()
    assert "slower: end to end" in told.err
    assert "0.875" in told.out
    assert "bold" not in told.out
    assert benchmark([*compared, "--tolerance", "0.15"]) == 0
    assert "no figure fell by more than 15 %" in capsys.readouterr().out
    assert (here / "benchmark.json").exists()
    (here / "old.json").write_text(Results(made_up(training=9.0), {}).as_json())
    assert benchmark([*compared, "--tolerance", "0"]) == 0


def test_another_machine_is_told(here, measured, capsys):
    about = {
        "machine": {"device": "slide rule"},
        "repetitions": 5,
        "cuda_graphs": True,
        "versions": {"torch": "1.0", "sundial": "3"},
    }
    (here / "old.json").write_text(Results(made_up(), about).as_json())
    assert benchmark([TASK, *SMALL, "--compare", "old.json"]) == 0
    told = capsys.readouterr().err
    assert "warning: old.json has another machine: {'device': 'slide rule'}, now" in told
    assert "warning: old.json has another cuda_graphs: True, now False" in told
    assert "warning: old.json was measured with torch 1.0, now " in told
    assert "repetitions" not in told
    assert "sundial" not in told


MISTAKES = [
    ("cartpole-balanse", "no task 'cartpole-balanse' (did you mean 'cartpole-balance'"),
    (f"{TASK} --gpu-ids 99", "--gpu-ids 99: "),
    (f"{TASK} --json gone/new.json", "--json gone/new.json cannot be written: gone is not a"),
    (f"{TASK} --json new.png", "--json new.png would be overwritten by the picture"),
    (f"{TASK} --compare empty", "--compare empty is not JSON"),
    (f"{TASK} --compare old.json --json old.json", "--compare old.json would be overwritten"),
    (f"{TASK} --compare old.json", "--compare old.json has nothing that this benchmark measures"),
    (f"{TASK} --seeds 3", "--seeds 3 needs --until, a condition that ends training"),
    (f"{TASK} --until fell", "--until is 'fell'; it must be comparisons such as"),
    (f"{TASK} --until time_uprigh>0.9", "no metric 'time_uprigh' (did you mean 'time_upright'?)"),
    (f"{TASK} --until fell<0.1 --num-envs 8 9", "no flag"),
    (f"{TASK} --until fell<0.1 --resume latest", "--resume does not go with --until"),
    (f"{TASK} --until fell<0.1 --compare old.json", "was not written by this version's `benchmark"),
    (f"{TASK} cartpole-swingup --until fell<0.1", "--until needs one task, whose metrics it names"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_told_in_one_line_before_any_work(words, message, here, monkeypatch):
    monkeypatch.setattr(MEASURE, lambda *_: pytest.fail("it measures"))
    (here / "empty").touch()
    (here / "old.json").write_text(Results(made_up(), {}).as_json())
    flags = words.split() if "--gpu-ids" in words else [*words.split(), "--gpu-ids", "None"]
    with refused(message, here):
        benchmark(flags)


@pytest.mark.slow
def test_ctrl_c_ends_it_with_130_and_leaves_nothing(here):
    flags = ("--ranks", "2", "--repetitions", "100000")
    job = Job(here, TASK, *SMALL, *flags, program=BENCHMARK)
    job.wait_for("measuring")
    job.interrupt()
    assert job.wait() == 130
    assert "SIGINT: stopping" in job.output
    assert "Traceback" not in job.output
    assert [path.name for path in here.iterdir()] == ["out.txt"]
