import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.timeout(500)
def test_runs_that_are_killed_go_on_as_if_nothing_had_happened(tmp_path):
    """Two ranks, SIGKILL at random moments: the metrics are those of an uninterrupted run."""
    program = Path(__file__).with_name("kills.py")
    result = subprocess.run(
        [sys.executable, str(program), str(tmp_path), "8"],
        capture_output=True, text=True, timeout=480, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    states = Counter(result.stdout.splitlines())
    assert states.total() == 8
    assert states["during a save"] >= 1
