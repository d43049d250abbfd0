"""Runs of two ranks that were killed between the parts of a save, see `killed_ranks.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from killed_ranks import SCENARIOS
from test_two_ranks import timeless

from simtrain.training.resumption import open_run

# What such a save leaves is read right is shown without ranks, too (`test_checkpoint_files.py`).
pytestmark = pytest.mark.slow
EXPECTED = {
    "whole": [],
    # Nothing after the first kill; then the parts of two attempts make a state, for they are equal.
    "in the first save": [1],
    "again and again in the same": [1, 1, 1, 1, 2],
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory) -> tuple[Path, dict[str, list[int]]]:
    """The runs, and the iterations from which each went on."""
    folder = tmp_path_factory.mktemp("killed")
    program = Path(__file__).with_name("killed_ranks.py")
    result = subprocess.run(
        [sys.executable, str(program), str(folder)], check=True, stdout=subprocess.PIPE, text=True
    )
    return folder, json.loads(result.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_save_that_a_kill_cuts_off_is_never_taken_for_a_state_and_costs_no_other(killed, name):
    folder, went_on_from = killed
    run = folder / name
    assert timeless(run / "metrics.jsonl") == timeless(folder / "whole" / "metrics.jsonl")
    assert [row["iteration"] for row in timeless(run / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert open_run(run).iteration == 5
    assert went_on_from[name] == EXPECTED[name]
    assert sorted(path.name for path in run.glob("resume*")) == [
        *("resume.previous.pt", "resume.previous.rank1.pt", "resume.pt", "resume.rank1.pt")
    ]
