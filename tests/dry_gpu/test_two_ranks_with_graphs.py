"""Two ranks agree on graphs, one refuses or fails, and all end; see `ranks_program.py`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the ranks of each scenario reported."""
    places = (TESTS, TESTS / "dry_gpu")
    program = subprocess.run(
        [sys.executable, str(TESTS / "dry_gpu" / "ranks_program.py"), tmp_path_factory.mktemp("r")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=350,
    )
    result: dict[str, Any] = json.loads(program.stdout.splitlines()[-1])
    return result


def said(reports: list[dict[str, Any]]) -> list[str]:
    return [text for report in reports if "warning" in (text := report.get("said", ""))]


def counts(pair: dict[str, Any], name: str) -> list[Any]:
    return [report[name] for reports in pair["reports"] for report in reports if name in report]


def test_two_ranks_that_can_have_graphs_replay_them(pairs) -> None:
    graphs = pairs["graphs"]
    assert len(graphs["metrics"]) == 4
    assert counts(graphs, "captures") == [3, 3]  # two mini-batches and a step
    # Steps of three rollouts, two mini-batches in two epochs of four updates, and their checks.
    assert counts(graphs, "replays") == [3 * 4 + 4 + 4 * 2 * 2 + 2] * 2
    assert said(graphs["reports"][0]) == []


@pytest.mark.parametrize("name", ["graphs", "refuses", "benchmark"])
def test_no_graph_is_alive_when_the_process_group_goes(pairs, name: str) -> None:
    assert min(counts(pairs[name], "captures")) > 0
    assert counts(pairs[name], "alive") == [0, 0]
    assert pairs[name]["codes"] == [0, 0]


def test_where_one_rank_refuses_all_update_without_graphs_to_the_same_result(pairs) -> None:
    refuses = pairs["refuses"]
    assert refuses["metrics"] == pairs["graphs"]["metrics"]
    (warning,) = said(refuses["reports"][0])
    assert "rank 1: updates run without CUDA graphs, and slower: " in warning
    replays = counts(refuses, "replays")
    assert replays == [4 + 3 * 4] * 2  # steps, which no rank refuses


def test_a_rank_that_fails_while_it_captures_ends_with_the_error(pairs) -> None:
    breaks = pairs["breaks"]
    assert breaks["codes"][1] == 1
    assert breaks["reports"][1][-1]["failed"] == ["exception", "ZeroDivisionError: no graph today"]
