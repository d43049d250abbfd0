"""Evaluation during training and beside it: real runs, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from job import ONE_RANK, assert_same_networks, metrics_of

from simtrain.cli.evaluate import evaluate
from simtrain.cli.train import train
from simtrain.config.tasks import discover
from simtrain.config.train import TrainConfig
from simtrain.training.features.conditions import metric_tags

TASK = "cartpole-balance"
FLAGS = f"""
    {TASK} --gpu-ids None --cpu-threads 1 --num-envs 8 --num-steps-per-env 8 --max-iterations 5
    --save-interval 5 --env.episode-length-s 1.0 --logger none
""".split()
EVALUATION = ("--eval-interval", "2", "--eval-episodes", "3")
BESIDE = ("--eval-interval", "1", "--eval-device", "cpu")
ENDLESS = ("--max-iterations", "1000000", "--save-interval", "1000000", "--logger", "none")


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Runs of one seed: without evaluation, with it, and with it in a process of its own."""
    runs = {}
    for name, more in (
        ("without", ()),
        ("during", EVALUATION),
        ("beside", (*EVALUATION, "--eval-device", "cpu")),
    ):
        root = tmp_path_factory.mktemp(name)
        assert train([*FLAGS, *more, "--log-root", str(root)]) == 0
        (runs[name],) = root.glob("*/*")
    return runs


@pytest.mark.parametrize("evaluated", ["during", "beside"])
def test_training_is_the_same_to_the_bit_with_and_without_evaluation(runs, evaluated):
    def of_training(line):
        timed = ("wall_s", "Perf/", "Eval/")
        return {tag: value for tag, value in line.items() if not tag.startswith(timed)}

    plain, other = metrics_of(runs["without"]), metrics_of(runs[evaluated])
    assert [of_training(line) for line in other] == [of_training(line) for line in plain]
    assert not any(tag.startswith("Eval/") for line in plain for tag in line)
    assert_same_networks(runs["without"] / "model_5.pt", runs[evaluated] / "model_5.pt")


def test_the_policy_is_evaluated_at_intervals_and_at_the_end(runs, capsys):
    lines = metrics_of(runs["during"])
    evaluated = [line["Eval/iteration"] for line in lines if "Eval/iteration" in line]
    assert evaluated == [2.0, 4.0, 5.0]
    last = {tag: value for tag, value in lines[-1].items() if tag.startswith("Eval/")}
    assert last["Eval/mean_episode_length"] == 20.0
    assert last["Eval/failure_rate"] == 0.0
    assert 0.0 < last["Eval/mean_return"] <= 1.0
    logged = set().union(*lines) - {"iteration", "env_steps", "wall_s"}
    config = TrainConfig(task=TASK, engine="mujoco", env=discover().find(TASK).make())
    assert logged == set(metric_tags(config))

    beside = metrics_of(runs["beside"])[-1]
    assert {tag: value for tag, value in beside.items() if tag.startswith("Eval/")} == last
    assert evaluate([str(runs["during"]), "--episodes", "3", "--device", "cpu", "--json"]) == 0
    (result,) = json.loads(capsys.readouterr().out)
    for name, estimate in result["estimates"].items():
        assert estimate["value"] == last[f"Eval/{name}"], name


@pytest.mark.parametrize("name", ["during", "beside"])
def test_the_best_policy_is_kept_as_a_checkpoint(runs, name):
    best = torch.load(runs[name] / "best.pt", weights_only=True)
    evaluated = [line for line in metrics_of(runs[name]) if "Eval/iteration" in line]
    returns = {line["Eval/iteration"]: line["Eval/mean_return"] for line in evaluated}
    assert best["iter"] == max(returns, key=returns.__getitem__)
    assert len(best["infos"].pop("config_sha256")) == 64
    assert best["infos"] == {
        "task": TASK,
        "env_steps": best["iter"] * 64,
        "eval_mean_return": max(returns.values()),
    }
    assert set(best) == set(torch.load(runs[name] / "model_5.pt", weights_only=True))


EVALUATOR = "simtrain.training.features.evaluator_process"


@pytest.mark.slow
def test_a_killed_evaluator_is_told_once_and_training_goes_on(start):
    condition = ("--until", "mean_return>1e9")
    job = start("user-pendulum", *ONE_RANK, *ENDLESS, *BESIDE, *condition, warm=True)
    job.wait_for("evaluation of iteration")
    (evaluator,) = job.running(EVALUATOR)
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


@pytest.mark.slow
def test_a_killed_command_leaves_no_evaluator_behind(start):
    job = start("user-pendulum", *ONE_RANK, *ENDLESS, *BESIDE, warm=True)
    job.wait_until(lambda: bool(job.running(EVALUATOR)))
    job.wait_for(" steps/s ")
    job.process.kill()
    job.wait_for_end()
