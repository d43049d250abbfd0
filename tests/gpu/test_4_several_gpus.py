"""`tests/end_to_end/test_multi_rank*.py` with NCCL, on all GPUs there are."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
import torch

# Test modules of another folder share the helper.
sys.path.insert(0, str(Path(__file__).parents[1] / "end_to_end"))
from job import Job

GPUS = torch.cuda.device_count()
RUN = ("cartpole-balance", "--gpu-ids", "all", "--num-envs", "64", "--torchrunx-log-dir", "")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(GPUS < 2, reason="needs two GPUs"),
]


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


def test_all_gpus_train_together_and_stay_equal(start):
    job = start("--max-iterations", "20", "--save-interval", "5")
    assert job.wait(300.0) == 0, job.output
    assert f"{GPUS} ranks on cuda:0, cuda:1" in job.output
    last = json.loads((job.run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["env_steps"] == 20 * 64 * 32 * GPUS


def test_ctrl_c_saves_and_stops_all_gpus(start):
    job = start("--max-iterations", "1000000")
    job.wait_for(" steps/s ")
    job.interrupt()
    assert job.wait() == 130, job.output
    assert len(list(job.run.glob("model_*.pt"))) == 1


def test_a_killed_rank_ends_the_job_though_nccl_waits_for_it(start):
    job = start("--max-iterations", "1000000")
    job.wait_for(" steps/s ")
    os.kill(job.ranks()[-1], signal.SIGKILL)
    assert job.wait(30.0) == 1, job.output
    assert " was killed: Signal 9 (SIGKILL)" in job.output
