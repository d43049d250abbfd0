"""The real `benchmark --until`: seeds one after the other, stopped, gone on with, and compared."""

from __future__ import annotations

import json

import pytest
from job import BENCHMARK, Job, make_tasks

from simtrain.cli.benchmark import benchmark
from simtrain.errors import ConfigError
from simtrain.run.logged import read_lineage

TASK = "user-pendulum"
SMALL = ["--gpu-ids", "None", "--cpu-threads", "1", "--eval-episodes", "2", "--logger", "none"]
UNTIL = ["--until", "mean_episode_length>9 and fell<0.5"]
COMMAND = [TASK, *UNTIL, "--seeds", "2", *SMALL, "--eval-interval", "150"]


@pytest.fixture
def here(here):
    make_tasks(here)
    return here


@pytest.mark.slow
def test_seeds_train_one_after_the_other_and_the_same_command_goes_on(here, capfd, monkeypatch):
    job = Job(here, *COMMAND, program=BENCHMARK)
    job.wait_for(" steps/s ")
    job.interrupt()
    assert job.wait() == 130
    assert "stopped; the same command goes on" in job.output
    assert "Traceback" not in job.output
    (run,) = here.glob(f"logs/{TASK}/*_benchmark_seed-0")
    assert not (here / "benchmark.json").exists()

    assert benchmark(COMMAND) == 0
    told = capfd.readouterr()
    assert "seed 0 (1 of 2): going on" in told.err
    assert "seed 1 (2 of 2): training" in told.err
    assert f"{TASK} until mean_episode_length>9 and failure_rate<0.5" in told.out
    assert len(list(here.glob(f"logs/{TASK}/*"))) == 2
    content = json.loads((here / "benchmark.json").read_text())
    assert [(s["seed"], s["reached_at"]) for s in content["seeds"]] == [(0, 0), (1, 0)]
    assert content["seeds"][0]["run"] == str(run.relative_to(here))
    for seed in content["seeds"]:
        (one,) = seed["evaluations"]
        assert (one["iteration"], one["env_steps"]) == (150, 150 * 4 * 8)
        assert one["values"] == {"mean_episode_length": 10.0, "failure_rate": 0.0}
    assert content["median"]["env_steps"] == 150 * 4 * 8
    assert {"device", "cores", "threads"} == set(content["machine"])
    assert (here / "benchmark.png").read_bytes().startswith(b"\x89PNG")

    monkeypatch.setattr(
        "simtrain.benchmark.until.run_job", lambda *_: pytest.fail("it trains again")
    )
    named = [*COMMAND, "--run-name", "benchmark", "--json", "after.json"]
    compared = [*named, "--compare", "benchmark.json"]
    assert benchmark(compared) == 0
    told = capfd.readouterr()
    assert "seed 1 (2 of 2): trained before, in logs/" in told.err
    assert "no median grew by more than 10 % (--tolerance)" in told.out
    assert json.loads((here / "after.json").read_text())["seeds"] == content["seeds"]

    faster = [
        {**s, "evaluations": [{**s["evaluations"][0], "env_steps": 10}]} for s in content["seeds"]
    ]
    (here / "benchmark.json").write_text(json.dumps({**content, "seeds": faster}))
    assert benchmark(compared) == 1
    assert "slower: env steps of user-pendulum" in capfd.readouterr().err
    with pytest.raises(
        ConfigError, match=r"other settings \(--ppo.gamma: 0.99 in the run, 0.9 now"
    ):
        benchmark([*named, "--ppo.gamma", "0.9"])
    with pytest.raises(ConfigError, match="is of user-pendulum until mean_episode_length>9 and"):
        benchmark([*compared, "--until", "fell<0.5"])


@pytest.mark.slow
def test_a_population_ends_with_the_exchange_whose_best_member_fulfils_the_condition(here):
    flags = ["--population", "2", "--population-interval", "3", "--seeds", "1"]
    job = Job(here, TASK, *UNTIL, *flags, *SMALL, program=BENCHMARK)
    assert job.wait() == 0, job.output
    content = json.loads((here / "benchmark.json").read_text())
    assert (content["members"], content["reached"]) == (2, 1)
    (one,) = content["seeds"][0]["evaluations"]
    assert (one["iteration"], one["env_steps"]) == (3, 2 * 3 * 4 * 8)
    (run,) = here.glob(f"logs/{TASK}/*")
    (last,) = read_lineage(run)
    assert all(member["parent"] == member["member"] for member in last["members"])
    assert "the winner is member" in job.output
    assert (run / "best.pt").exists()
