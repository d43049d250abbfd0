"""Populations of real ranks: exact after kills and stops, and equal to members by themselves."""

from __future__ import annotations

import base64
import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml

from simtrain.cli.report import report
from simtrain.plot.population import ancestors
from simtrain.run.checkpoint import read_checkpoint
from simtrain.run.logged import read_lineage, read_run
from simtrain.training.saved_policy import open_policy

ITERATIONS = 13  # of `members.py`
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """What `members.py` leaves: populations that were killed, stopped, or not."""
    here = tmp_path_factory.mktemp("populations")
    program = Path(__file__).with_name("members.py")
    result = subprocess.run(
        [sys.executable, str(program), str(here), "4"],
        capture_output=True, text=True, timeout=560, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    (here / "output").write_text(result.stdout)
    return here


def test_populations_that_are_killed_or_stopped_go_on_as_if_nothing_had_happened(folder):
    output = (folder / "output").read_text().splitlines()
    assert len([line for line in output if line.startswith("killed after")]) == 4
    assert any("during another" in line for line in output)
    assert output[-3:] == ["stopped", "seldom", "students"]


def test_members_of_two_ranks_learn_from_both_of_their_batches(folder):
    """That ranks of a member stay equal is checked at each save."""
    paths = [folder / "pairs" / "members" / str(i) / "model_4.pt" for i in range(2)]
    first, second = (read_checkpoint(path) for path in paths)
    assert first["infos"]["env_steps"] == 4 * 8 * 4 * 2
    assert first["infos"]["config_sha256"] != second["infos"]["config_sha256"]


def test_students_keep_their_teacher_while_their_networks_and_settings_evolve(folder):
    teacher = read_checkpoint(folder / "uninterrupted" / "best.pt")["actor_state_dict"]
    sizes, rates = set(), set()
    for member in (folder / "students" / "members").iterdir():
        content = read_checkpoint(member / f"model_{ITERATIONS}.pt")
        assert content["teacher_state_dict"].keys() == teacher.keys()
        for name, tensor in content["teacher_state_dict"].items():
            assert torch.equal(tensor, teacher[name])
        weights = [t for n, t in content["student_state_dict"].items() if n.endswith("weight")]
        sizes.add(sum(tensor.numel() for tensor in weights))
        columns = read_run(member).columns
        evolved = columns["Population/distillation.learning-rate"]
        assert columns["Loss/learning_rate"] == pytest.approx(evolved)
        rates.update(evolved)
    assert len(sizes) > 1
    assert len(rates) > 3


def test_a_report_shows_the_population_and_the_curves_of_its_members(folder, tmp_path, capsys):
    assert report([str(folder / "uninterrupted"), "--output", str(tmp_path)]) == 0
    assert not capsys.readouterr().err
    page = (tmp_path / "report.html").read_text()
    (picture,) = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    assert base64.b64decode(picture) == (tmp_path / "report.png").read_bytes()
    assert "The population uninterrupted" in page
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    head = next(i for i, row in enumerate(rows) if "iterations" in row)
    members = rows[head + 1 : head + 4]
    assert all(f"<td>{ITERATIONS}</td>" in member for member in members)


def test_the_lineage_says_who_was_replaced_by_whom(folder):
    exchanges = read_lineage(folder / "uninterrupted")
    assert [line["iteration"] for line in exchanges] == [2, 4, 6, 8, 10, 12, 13]
    assert all(one["parent"] == one["member"] for one in exchanges[-1]["members"])
    kinds = {one["mutation"] for exchange in exchanges for one in exchange["members"]}
    assert {"hyper_parameters", "none"} < kinds
    for exchange, following in itertools.pairwise(exchanges):
        for one, later in zip(exchange["members"], following["members"], strict=True):
            assert one["becomes"] == later["values"]
            if one["mutation"] != "hyper_parameters":
                assert one["becomes"] == exchange["members"][one["parent"]]["values"]


def test_every_member_has_metrics_of_every_iteration_with_its_numbers(folder):
    run = folder / "uninterrupted"
    exchanges = read_lineage(run)
    for member in range(3):
        lines = (run / "members" / str(member) / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["iteration"] for line in lines] == list(range(1, 14))
        columns = read_run(run / "members" / str(member)).columns
        for exchange in exchanges:
            row, then = exchange["iteration"] - 1, exchange["members"][member]
            assert columns["Eval/mean_return"][row] == pytest.approx(then["value"])
            assert columns["Population/ppo.gamma"][row] == then["values"]["ppo.gamma"]


def test_the_best_policy_has_a_configuration_of_its_own_and_can_be_used(folder):
    run = folder / "uninterrupted"
    best = read_checkpoint(run / "best.pt")
    scores = [one["score"] for exchange in read_lineage(run) for one in exchange["members"]]
    assert best["infos"]["mean_return:max"] == pytest.approx(max(scores))
    config = yaml.safe_load((run / "best.yaml").read_text())["config"]
    policy = open_policy(run)
    assert policy.checkpoint == run / "best.pt"
    assert list(policy.config.ppo.actor.hidden_dims) == config["ppo"]["actor"]["hidden_dims"]
    weight = best["actor_state_dict"]["mlp.0.weight"]
    assert weight.shape[0] == policy.config.ppo.actor.hidden_dims[0]


def test_ancestors_are_followed_through_those_that_were_copied():
    def exchange(*parents: int) -> dict:
        return {"members": [{"parent": parent} for parent in parents]}

    # Member 0 becomes 2 at first; then 1 becomes 0; nobody after that.
    assert ancestors([exchange(2, 1, 2), exchange(0, 0, 2), exchange(0, 1, 2)], 1) == [2, 0, 1]
