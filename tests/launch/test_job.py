import subprocess
import sys

import pytest

from simtrain.cli.parse import parse_flags
from simtrain.config.tasks import discover
from simtrain.config.train import TrainConfig
from simtrain.errors import ConfigError
from simtrain.launch import plan
from simtrain.launch.hosts import HostGpus
from simtrain.launch.launcher import choose_log_dir
from simtrain.launch.plan import plan_job


def configure(*flags: str) -> TrainConfig:
    task = discover().find("cartpole-balance")
    return parse_flags("train", TrainConfig.of_task("cartpole-balance", task.make()), flags)


def test_one_rank_needs_no_other_process_and_two_do():
    job = plan_job(configure("--gpu-ids", "None", "--cpu-workers", "2"), seed=7)
    assert (job.hosts, job.world_size, job.seed, job.in_process) == (("localhost",), 2, 7, False)
    assert job.rank_names() == ["cpu", "cpu"]
    assert plan_job(configure("--gpu-ids", "None")).in_process


def test_with_several_ranks_the_command_leaves_warp_and_so_cuda_to_them(tmp_path):
    """Warp initializes CUDA, which does not survive the fork of the launcher."""
    program = """
import sys
import simtrain.training.job
from simtrain.cli.train import train

def launch_ranks(*args, **kwargs):
    sys.exit("warp" in sys.modules or "mujoco_warp" in sys.modules)

simtrain.training.job.launch_ranks = launch_ranks
train("cartpole-balance --gpu-ids None --cpu-workers 2 --engine warp".split())
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, timeout=400, check=True)


@pytest.mark.parametrize(
    ("gpu_ids", "hosts", "message"),
    [
        (("0", "1"), [(None, 2), ("5", 1)], "host node2: --gpu-ids 1: the only visible GPU is 0 "),
        (("auto",), [(None, 2), (None, 0)], "host node2 has no GPU and others have; name hosts "),
    ],
)
def test_the_host_of_a_wrong_gpu_is_named(gpu_ids, hosts, message, monkeypatch):
    gpus = [HostGpus(visible, ["uuid"] * count) for visible, count in hosts]
    monkeypatch.setattr(plan, "probe_hosts", lambda *args, **options: gpus)
    with pytest.raises(ConfigError, match=message):
        plan_job(configure("--hosts", "node1", "node2", "--gpu-ids", *gpu_ids))


@pytest.mark.parametrize(
    ("variable", "flag", "folder"),
    [
        (None, None, "{run}/torchrunx"),
        (None, "here", "here"),
        (None, "", ""),
        ("there", "here", "there"),
        ("", "here", ""),
    ],
)
def test_where_the_logs_of_ranks_go(variable, flag, folder, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHRUNX_LOG_DIR", raising=False)
    if variable is not None:
        monkeypatch.setenv("TORCHRUNX_LOG_DIR", variable)
    assert choose_log_dir(flag, tmp_path) == folder.format(run=tmp_path)
