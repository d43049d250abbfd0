"""The warp engine on a CUDA driver that refuses what CUDA refuses; see `warp_program.py`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_engine_and_every_task_are_captured_waiting_for_nothing_and_breaking_no_rule() -> None:
    program = subprocess.run(
        [sys.executable, str(HERE / "warp_program.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (HERE, HERE.parent)))},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    scenarios = json.loads(program.stdout.splitlines()[-1])
    wrong = [f"{name}:\n{text}" for name, text in scenarios.items() if text]
    assert not wrong, "\n".join(wrong)
    assert len(scenarios) >= 20
