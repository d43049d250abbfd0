"""Evaluation during training and beside it: real runs, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from job import TWO_RANKS, Job, make_tasks

from simtrain.cli.evaluate import evaluate
from simtrain.cli.train import train
from simtrain.config.metric_tags import metric_tags
from simtrain.config.tasks import discover

TASK = "cartpole-balance"
FLAGS = f"""
    {TASK} --gpu-ids None --cpu-threads 1 --num-envs 8 --num-steps-per-env 8 --max-iterations 5
    --save-interval 5 --env.episode-length-s 1.0 --logger none
""".split()
EVALUATION = ("--eval-interval", "2", "--eval-episodes", "3")
ENDLESS = ("--max-iterations", "1000000", "--save-interval", "1000000", "--logger", "none")

pytestmark = pytest.mark.timeout(300)


def metrics(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Runs of one seed: without evaluation, with it, and with it in a process of its own."""
    found = {}
    for name, more in (
        ("without", ()),
        ("during", EVALUATION),
        ("beside", (*EVALUATION, "--eval-device", "cpu")),
    ):
        root = tmp_path_factory.mktemp(name)
        assert train([*FLAGS, *more, "--log-root", str(root)]) == 0
        (found[name],) = root.glob("*/*")
    return found


@pytest.mark.parametrize("evaluated", ["during", "beside"])
def test_training_is_the_same_to_the_bit_with_and_without_evaluation(runs, evaluated):
    def of_training(line):
        timed = ("wall_s", "Perf/", "Eval/")
        return {tag: value for tag, value in line.items() if not tag.startswith(timed)}

    plain, other = metrics(runs["without"]), metrics(runs[evaluated])
    assert [of_training(line) for line in other] == [of_training(line) for line in plain]
    first, second = (
        torch.load(runs[r] / "model_5.pt", weights_only=True) for r in ("without", evaluated)
    )
    for part in ("actor_state_dict", "critic_state_dict"):
        for name, tensor in first[part].items():
            assert torch.equal(tensor, second[part][name]), name


def test_the_policy_is_evaluated_at_intervals_and_at_the_end(runs):
    lines = metrics(runs["during"])
    evaluated = [line["Eval/iteration"] for line in lines if "Eval/iteration" in line]
    assert evaluated == [2.0, 4.0, 5.0]
    assert [line["iteration"] for line in lines if "Eval/mean_return" in line] == [2, 4, 5]
    assert lines[-1]["Eval/mean_episode_length"] == 20.0
    assert lines[-1]["Eval/failure_rate"] == 0.0
    assert 0.0 < lines[-1]["Eval/mean_return"] <= 1.0
    assert 0.0 <= lines[-1]["Eval/time_upright"] <= 1.0
    assert not any(tag.startswith("Eval/") for line in metrics(runs["without"]) for tag in line)


def test_an_evaluator_beside_training_finds_the_same_for_the_last_policy(runs):
    def of_evaluation(name):
        return {t: v for t, v in metrics(runs[name])[-1].items() if t.startswith("Eval/")}

    assert of_evaluation("beside") == of_evaluation("during")


@pytest.mark.parametrize("name", ["during", "beside"])
def test_the_best_policy_is_kept_as_a_checkpoint(runs, name):
    best = torch.load(runs[name] / "best.pt", weights_only=True)
    returns = {
        line["Eval/iteration"]: line["Eval/mean_return"]
        for line in metrics(runs[name])
        if "Eval/iteration" in line
    }
    assert best["iter"] == max(returns, key=returns.__getitem__)
    assert len(best["infos"].pop("config_sha256")) == 64
    assert best["infos"] == {
        "task": TASK,
        "env_steps": best["iter"] * 64,
        "eval_mean_return": max(returns.values()),
    }
    assert set(best) == set(torch.load(runs[name] / "model_5.pt", weights_only=True))


def test_evaluate_finds_what_training_found(runs, capsys):
    assert evaluate([str(runs["during"]), "--episodes", "3", "--device", "cpu", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    last = metrics(runs["during"])[-1]
    for name, estimate in result["estimates"].items():
        assert estimate["value"] == last[f"Eval/{name}"], name


def test_the_tags_of_a_run_are_known_beforehand(runs):
    logged = set().union(*metrics(runs["during"])) - {"iteration", "env_steps", "wall_s"}
    assert logged == set(metric_tags(discover().find(TASK).make(), overflow=False))


@pytest.mark.slow
def test_an_evaluator_beside_training_ends_it_too_and_judges_the_last_policy(tmp_path, capsys):
    flags = ["--max-iterations", "1000000", "--eval-interval", "1", "--eval-device", "cpu"]
    condition = ["--until", "fell<0.5", "--log-root", str(tmp_path)]
    assert train([*FLAGS, *flags, *condition]) == 0
    (run,) = tmp_path.glob("*/*")
    last = metrics(run)[-1]
    assert last["Eval/iteration"] == last["iteration"]
    assert (run / f"model_{last['iteration']}.pt").exists()
    assert "training ends: Eval/failure_rate is 0 (--until" in capsys.readouterr().out


@pytest.fixture
def start(tmp_path):
    """Starts a run on the user's task in a process; killed after the test."""
    jobs = []

    def start(*flags: str, warm: bool = False) -> Job:
        make_tasks(tmp_path)
        jobs.append(Job(tmp_path, "user-pendulum", *flags, warm=warm))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


def evaluators(job: Job) -> list[int]:
    """The processes that evaluate."""
    return [
        pid
        for pid in job.processes()
        if b"simtrain.training.features.evaluator_process"
        in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


@pytest.mark.slow
def test_two_ranks_end_together_when_the_evaluation_of_rank_0_says_so(start):
    conditions = ("--until", "Eval/iteration>=6 or mean_return>1e9")
    job = start(
        *TWO_RANKS, *ENDLESS, "--eval-interval", "3", "--eval-episodes", "3", *conditions
    )  # fmt: skip
    assert job.wait() == 0, job.output
    lines = metrics(job.run)
    assert len(lines) == 6
    assert ["Eval/iteration" in line for line in lines] == [False, False, True] * 2
    said = "training ends: Eval/iteration is 6"
    assert job.output.count(said) == 1
    assert torch.load(job.run / "model_6.pt", weights_only=True)["iter"] == 6
    opened = {path.name for path in (job.folder / "tasks").glob("opened-*")}
    assert opened == {"opened-0"}


@pytest.mark.slow
def test_a_killed_evaluator_is_told_once_and_training_goes_on(start):
    job = start(
        "--gpu-ids", "None", "--cpu-threads", "1", *ENDLESS, "--eval-interval", "1",
        "--eval-device", "cpu", "--until", "mean_return>1e9", warm=True,
    )  # fmt: skip
    job.wait_for("evaluation of iteration")
    (evaluator,) = evaluators(job)
    os.kill(evaluator, signal.SIGKILL)
    gone = "warning: the evaluator process is gone: it was killed by SIGKILL"
    job.wait_for(gone)
    iterations = job.output.count(" steps/s ")
    job.wait_until(lambda: job.output.count(" steps/s ") > iterations + 20)
    job.interrupt()
    assert job.wait() == 130, job.output
    assert job.output.count(gone) == 1
    assert 'without evaluation; --until "mean_return>1e+09" will not end it' in job.output
    assert (job.run / "best.pt").exists()


def test_a_killed_command_leaves_no_evaluator_behind(start):
    job = start(
        "--gpu-ids", "None", *ENDLESS, "--eval-interval", "1", "--eval-device", "cpu", warm=True
    )  # fmt: skip
    job.wait_until(lambda: bool(evaluators(job)))
    job.wait_for(" steps/s ")
    job.process.kill()
    deadline = time.monotonic() + 60.0
    while job.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    job.wait()
