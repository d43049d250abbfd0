"""Signals to the real `train` command with one rank: saved, with its exit code, no traceback."""

import re
import signal
import subprocess
import sys
import time
from functools import partial

import pytest
import torch
from job import ONE_RANK, metrics_of


@pytest.fixture
def start(start):
    """Starts a run without end."""
    return partial(start, "user-pendulum", *ONE_RANK, "--logger", "none", warm=True)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 0)],
)
def test_a_signal_stops_training_after_saving(number, code, start):
    job = start("--grace-seconds", "100")
    job.wait_for("\niteration")
    job.process.send_signal(number)
    assert job.wait() == code, job.output
    iterations = len(re.findall(r"^iteration +\d+/", job.output, re.MULTILINE))
    assert sorted(path.name for path in job.run.iterdir()) == [
        "config.yaml", "metrics.jsonl", f"model_{iterations}.pt", "report.png", "resume.pt"
    ]  # fmt: skip
    saved = torch.load(job.run / f"model_{iterations}.pt", weights_only=True)
    assert saved["iter"] == iterations == len(metrics_of(job.run))
    assert job.output.count(f"{number.name}: stopping after this iteration, within 100 s") == 1
    assert f"stopped by {number.name}; the policy so far is saved" in job.output
    relative = job.run.relative_to(job.folder)
    assert f"to resume:  uv run train user-pendulum --resume {relative}" in job.output
    assert "Traceback" not in job.output


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 1)])
def test_a_stuck_run_ends_after_its_grace_and_names_the_last_checkpoint(number, code, start):
    """It is stuck in its third iteration, in a call that no signal interrupts."""
    flags = ("--env.rewards.upright.stuck-after", "20", "--save-interval", "1")
    job = start(*flags, "--grace-seconds", "0.5")
    job.wait_for("\niteration       2/")
    job.process.send_signal(number)
    assert job.wait() == code, job.output
    run = job.run.relative_to(job.folder)
    assert job.output.splitlines()[-2:] == [
        f"error: told to stop by {number.name}, the run could not finish its iteration and save "
        f"within 0.5 s (--grace-seconds); the last checkpoint is {run}/model_2.pt",
        f"to resume: uv run train user-pendulum --resume {run}",
    ]


def test_ctrl_c_is_acknowledged_before_the_first_iteration_and_the_second_stops_at_once(start):
    job = start("--env.rewards.upright.stuck-after", "1")
    job.wait_for("the task says hello")
    job.interrupt()
    job.wait_for("SIGINT: stopping after this iteration, within 30 s (--grace-seconds); Ctrl-C")
    time.sleep(0.6)
    job.interrupt()
    assert job.wait() == 130, job.output
    assert job.output.splitlines()[-1] == (
        "stopped at once: the policy of this iteration is not saved; there is no checkpoint"
    )


@pytest.mark.parametrize("module", ["tyro", "torch._C"])
def test_ctrl_c_while_the_command_imports_ends_it_quietly(module, here):
    program = f"""
import os, signal, sys

def interrupt(event, arguments):
    if event == "import" and arguments[0] == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)

sys.addaudithook(interrupt)
sys.argv = ["train", "cartpole-balance"]
from simtrain.cli.start import train as main
main()
"""
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=400, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "")
    assert not list(here.iterdir())
