"""The `evaluate` command on a run of the cart-pole."""

from __future__ import annotations

import json
import re
import shutil

import pytest
from refusal import refused

from simtrain.cli.evaluate import evaluate

TASK = "cartpole-balance"
FEW = ("--episodes", "4", "--device", "cpu")
SHORT = (*FEW, "--env.episode-length-s", "1.0")


def results(capsys) -> list[dict]:
    return json.loads(capsys.readouterr().out)


def test_several_checkpoints_are_compared_in_one_table(trained_run, tmp_path, capsys):
    runs, path = [str(trained_run), str(trained_run / "model_1.pt")], tmp_path / "results.json"
    assert evaluate([*runs, "--json", str(path), *SHORT]) == 0
    assert len(json.loads(path.read_text())) == 2
    first, head, *rows = capsys.readouterr().out.splitlines()
    assert first == f"{TASK}: 4 episodes, seed 0, mujoco on cpu; means with 95 % intervals"
    assert head.split() == [
        "checkpoint", "iteration", "return", "length", "failures", "time_upright", "cart_distance"
    ]  # fmt: skip
    number = r"[\d.]+( ± [\d.]+)?"
    for row, iteration in zip(rows, (2, 1), strict=True):
        name = rf"{trained_run.name}/model_{iteration}\.pt"
        expected = rf"{name} +{iteration} +{number} +20 +0\.0 % \[0\.0, 49\.0\]"
        assert re.match(expected, row), row


def test_json_alone_goes_to_standard_output(trained_run, capsys):
    assert evaluate([str(trained_run), *SHORT, "--json"]) == 0
    (result,) = results(capsys)
    assert result["checkpoint"] == str(trained_run / "model_2.pt")
    assert (result["task"], result["iteration"], result["episodes"]) == (TASK, 2, 4)
    assert (result["engine"], result["device"], result["seed"]) == ("mujoco", "cpu", 0)
    returns = result["per_episode"]["return"]
    estimate = result["estimates"]["mean_return"]
    assert estimate["value"] == pytest.approx(sum(returns) / 4)
    assert estimate["low"] < estimate["value"] < estimate["high"]
    assert result["per_episode"]["length"] == [20.0] * 4
    assert result["per_episode"]["failed"] == [False] * 4


def test_the_seed_decides_and_one_episode_has_no_interval(trained_run, capsys):
    estimates = []
    for seed in ("1", "1", "2"):
        flags = ("--episodes", "1", "--device", "cpu", "--json", "--seed", seed, *SHORT[4:])
        assert evaluate([str(trained_run), *flags]) == 0
        (result,) = results(capsys)
        estimates.append(result["estimates"])
    first, again, other = estimates
    assert again == first
    assert other["mean_return"]["value"] != first["mean_return"]["value"]
    assert first["mean_return"]["low"] is first["mean_return"]["high"] is None


def test_overrides_change_the_task_that_a_policy_is_evaluated_in(trained_run, capsys):
    flags = ("--env.episode-length-s", "0.5", "--env.rewards.upright.weight", "0.0")
    assert evaluate([str(trained_run), *FEW, *flags, "--json"]) == 0
    (result,) = results(capsys)
    assert result["per_episode"]["length"] == [10.0] * 4
    assert result["per_episode"]["return"] == [0.0] * 4


def test_runs_that_differ_in_their_rewards_are_told(trained_run, tmp_path, capsys):
    other = shutil.copytree(trained_run, tmp_path / "other")
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("weight: 3.0", "weight: 2.0"))
    runs = [str(trained_run), str(other)]
    assert evaluate([*runs, *SHORT]) == 0
    assert capsys.readouterr().out.endswith("rewards: returns cannot be compared.\n")
    assert evaluate([*runs, *SHORT, "--env.rewards.upright.weight", "1.0"]) == 0
    assert "cannot be compared" not in capsys.readouterr().out


def test_runs_that_differ_in_their_commands_are_told(capsys):
    tasks = ["go1-velocity-flat", "g1-velocity-flat"]
    assert evaluate([*tasks, "--episodes", "2", "--env.episode-length-s", "0.1"]) == 0
    text = "The runs differ in their commands and rewards: figures cannot be compared.\n"
    assert capsys.readouterr().out.endswith(text)


MISTAKES = [
    ("", "name a run, a checkpoint or a task: `uv run simtrain evaluate <run>...`"),
    ("--episodes 3", "the run comes first: `uv run simtrain evaluate <run> --episodes 3`"),
    ("{tmp}/gone", "there is no run, checkpoint or task {tmp}/gone"),
    ("{run} --device gpu", "--device is 'gpu'; it must be auto, cpu, or cuda:0, cuda:1, ..."),
    ("{run} --device cuda:99", "--device cuda:99: "),
    ("{run} --episode 3", "there is no flag --episode (did you mean '--episodes'"),
    ("{run} --json {tmp}/gone/x", "cannot be written: {tmp}/gone is not a folder"),
    ("{run} --json /proc/x --episodes 1", "--json /proc/x cannot be written: No such file"),
    ("{run} --env.keyframe upp", "the model has no keyframe 'upp' (did you mean 'up'?)"),
    (
        "{run} --env.observations.actor.velocities.joints hinge",
        "the checkpoint is of another network, or of a task with other observations",
    ),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_is_told_in_one_line(command, message, trained_run, tmp_path):
    places = {"run": str(trained_run), "tmp": str(tmp_path)}
    with refused(message.format(**places), tmp_path):
        evaluate(command.format(**places).split())
