"""Several ranks through the real command: with NCCL on all GPUs, or without two with Gloo."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

# Test modules of another folder share the helper.
sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from job import TWO_RANKS, Job

GPUS = torch.cuda.device_count()
RANKS = max(2, GPUS)
WHERE = ("--gpu-ids", "all") if GPUS > 1 else TWO_RANKS
RUN = ("cartpole-balance", *WHERE, "--num-envs", "64", "--torchrunx-log-dir", "")

pytestmark = [pytest.mark.timeout(400)]
if GPUS < 2:  # then these are the same ranks as those of end_to_end/test_multi_rank.py
    pytestmark.append(pytest.mark.slow)


@pytest.fixture
def start(tmp_path):
    """Starts a run on all GPUs; killed after the test."""
    jobs = []

    def start(*flags: str) -> Job:
        jobs.append(Job(tmp_path, *RUN, *flags))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


def test_all_ranks_train_together_and_stay_equal(start):
    job = start("--max-iterations", "20", "--save-interval", "5")
    assert job.wait(300.0) == 0, job.output
    assert f"{RANKS} ranks on {'cuda:0, cuda:1' if GPUS > 1 else 'cpu, cpu'}" in job.output
    last = json.loads((job.run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["env_steps"] == 20 * 64 * 32 * RANKS


def test_ctrl_c_saves_and_stops_all_ranks(start):
    job = start("--max-iterations", "1000000")
    job.wait_for(" steps/s ")
    job.interrupt()
    assert job.wait() == 130, job.output
    assert len(list(job.run.glob("model_*.pt"))) == 1


def test_a_killed_rank_ends_the_job_though_the_others_wait_for_it(start):
    job = start("--max-iterations", "1000000")
    job.wait_for(" steps/s ")
    os.kill(job.ranks()[-1], signal.SIGKILL)
    assert job.wait(30.0) == 1, job.output
    assert " was killed: Signal 9 (SIGKILL)" in job.output
