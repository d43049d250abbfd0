"""The script for a new GPU host, with a Python in its place that fails at every step."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from simtrain.cli.benchmark import benchmark
from simtrain.errors import ConfigError

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "gpu_day.sh"
PYTHON = r"""#!/bin/bash
case "$2" in
  *device_count*) echo "$GPUS" ;;
  *) printf '%s\t' "$@"; exit 3 ;;
esac
"""


def run(tmp_path: Path, gpus: int) -> subprocess.CompletedProcess[str]:
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    variables = {**os.environ, "PYTHON": str(python), "GPUS": str(gpus)}
    command = ["bash", str(SCRIPT), str(tmp_path / "day")]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_it_takes_25_minutes_at_most():
    limits = re.findall(r"^\s*(?:step|skill) (\d+)", SCRIPT.read_text(), re.MULTILINE)
    assert sum(map(int, limits)) <= 25 * 60


def test_all_steps_follow_though_each_fails_and_all_are_commands_that_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert run(tmp_path, gpus=2).returncode == 0
    folder = tmp_path / "day"
    steps = [line.split() for line in (folder / "summary.txt").read_text().splitlines()]
    assert len(steps) == 9
    assert {code for _, _, code, *_ in steps} == {"3"}
    for name, *_ in steps:
        _, module, *words = (folder / f"{name}.txt").read_text().removesuffix("\t").split("\t")
        if module == "pytest":
            assert [(ROOT / word).is_dir() for word in words if word.startswith("tests/")] == [True]
            continue
        assert (module, words[0]) == ("simtrain.cli.start", "benchmark")
        # Up to what is missing here: the GPU, and the results of the step before.
        with pytest.raises(ConfigError, match=r"--gpu-ids 0|--compare"):
            benchmark(words[1:])


def test_without_a_gpu_it_says_what_to_do_instead(tmp_path):
    result = run(tmp_path, gpus=0)
    assert (result.returncode, result.stdout) == (2, "")
    assert "no GPU is visible to torch" in result.stderr
    assert not (tmp_path / "day").exists()
