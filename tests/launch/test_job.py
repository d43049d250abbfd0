import subprocess
import sys

import pytest
import torch

from simtrain.cli.parse import parse_flags
from simtrain.cli.train import train
from simtrain.config.tasks import discover
from simtrain.config.train import TrainConfig
from simtrain.config.tree import as_plain, overlay
from simtrain.errors import ConfigError
from simtrain.launch import plan
from simtrain.launch.hosts import HostGpus
from simtrain.launch.launcher import choose_log_dir
from simtrain.launch.plan import plan_job


def configure(*flags: str) -> TrainConfig:
    task = discover().find("cartpole-balance")
    return parse_flags("train", TrainConfig.of_task("cartpole-balance", task.make()), flags)


@pytest.mark.parametrize(
    ("flags", "gpu_ids"),
    [((), "auto"), (("0", "1"), (0, 1)), (("all",), "all"), (("None",), None)],
)
def test_gpu_ids_as_users_type_them(flags, gpu_ids):
    assert configure(*(("--gpu-ids", *flags) if flags else ())).gpu_ids == gpu_ids


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
from simtrain.training.context import TrainingResult

def launch_ranks(*args, **kwargs):
    print("warp" in sys.modules, "mujoco_warp" in sys.modules)
    return TrainingResult(None, None)

simtrain.training.job.launch_ranks = launch_ranks
flags = "--gpu-ids None --cpu-workers 2 --engine warp"
train(["cartpole-balance", *flags.split()])
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr
    assert "False False" in result.stdout.splitlines()


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


def test_a_gpu_that_is_not_there_stops_the_command_before_it_starts(tmp_path):
    there = torch.cuda.device_count()
    with pytest.raises(ConfigError, match=f"--gpu-ids {there}: "):
        train(["cartpole-balance", "--gpu-ids", str(there), "--log-root", str(tmp_path / "logs")])
    assert not (tmp_path / "logs").exists()


def test_configurations_travel_as_plain_values():
    """Workers make them anew from the task's name and these values."""
    for name in discover().tasks:
        make = discover().find(name).make
        config = TrainConfig.of_task(name, make())
        config.gpu_ids, config.hosts = (0, 2), ("node1", "node2")
        config.num_envs, config.ppo.actor.hidden_dims = 3, (8,)
        for term in config.env.rewards.values():
            term.weight *= 2.0
        for term in config.env.events.values():
            term.params["position"] = (-1.0, 1.0)
        assert overlay(TrainConfig.of_task(name, make()), as_plain(config)) == config


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
