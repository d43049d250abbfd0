"""Ctrl-C and termination of the real `train` command: saved, with its exit code, no traceback."""

import signal
import subprocess
import sys

import pytest
import torch

COMMAND = f"""
    {sys.executable} -m simtrain.cli.train cartpole-balance --gpu-ids None --cpu-threads 1
    --num-envs 8 --num-steps-per-env 8 --max-iterations 1000000 --logger none
""".split()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_training_after_saving(number, code, tmp_path):
    process = subprocess.Popen(
        COMMAND, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        first = process.stdout.readline()
        assert first.startswith("iteration")
        process.send_signal(number)
        out, err = process.communicate(timeout=100)
    finally:
        process.kill()
    assert process.returncode == code
    assert err == ""
    (run,) = (tmp_path / "logs" / "cartpole-balance").iterdir()
    iterations = sum(line.startswith("iteration") for line in [first, *out.splitlines()])
    assert sorted(path.name for path in run.iterdir()) == [
        "config.yaml", "metrics.jsonl", f"model_{iterations}.pt", "resume.pt"
    ]  # fmt: skip
    saved = torch.load(run / f"model_{iterations}.pt", weights_only=True)
    assert saved["iter"] == iterations == len((run / "metrics.jsonl").read_text().splitlines())
    assert f"stopped by {number.name}; the policy so far is saved" in out
    assert f"model_{iterations}.pt" in out
    assert f"to go on:   uv run train cartpole-balance --resume {run.relative_to(tmp_path)}" in out
