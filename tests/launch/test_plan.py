"""Which hosts, processes and devices ranks get, by flags and the GPUs of the hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from simtrain.cli.parse import parse_flags
from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.errors import ConfigError
from simtrain.launch import plan
from simtrain.launch.hosts import HostGpus, list_gpus
from simtrain.launch.launcher import choose_log_dir
from simtrain.launch.plan import Devices, plan_job, resolve_devices, resolve_evaluator

GPU = "GPU-8f6d2c3a-1111-2222-3333-444455556666"
MIG = "MIG-GPU-8f6d2c3a/1/0"


def host_gpus(visible: str | None, count: int) -> HostGpus:
    return HostGpus(visible, [f"uuid {number}" for number in range(count)])


@pytest.mark.parametrize(
    ("gpu_ids", "cpu_workers", "visible", "gpu_count", "devices"),
    [
        # no flag: the first GPU, or the CPU
        ("auto", 1, None, 2, Devices("cuda", 1, "0")),
        ("auto", 1, "5,7", 2, Devices("cuda", 1, "5")),
        ("auto", 1, None, 0, Devices("cpu", 1, "")),
        ("auto", 1, "", 0, Devices("cpu", 1, "")),
        # the CPU
        (None, 2, "0,1", 2, Devices("cpu", 2, "")),
        # indices into all GPUs, or into the variable
        ((1, 0), 1, None, 2, Devices("cuda", 2, "1,0")),
        ((1,), 1, " 4, 6 ", 2, Devices("cuda", 1, "6")),
        ("all", 1, None, 3, Devices("cuda", 3, "0,1,2")),
        # UUIDs and MIG names stay as they are
        ((1,), 1, f"{GPU},{MIG}", 2, Devices("cuda", 1, MIG)),
        ("all", 1, f"{GPU},{MIG}", 2, Devices("cuda", 2, f"{GPU},{MIG}")),
        # CUDA ignores what follows an entry that it cannot find
        ("all", 1, "0,9,1", 1, Devices("cuda", 1, "0")),
    ],
)
def test_devices(gpu_ids, cpu_workers, visible, gpu_count, devices):
    resolved = resolve_devices(gpu_ids, cpu_workers, host_gpus(visible, gpu_count))
    assert replace(resolved, uuids=()) == devices


@pytest.mark.parametrize(
    ("gpu_ids", "cpu_workers", "visible", "gpu_count", "message"),
    [
        ((2,), 1, "4,6", 2, r"the visible GPUs are 0 to 1 \(CUDA_VISIBLE_DEVICES=4,6\)"),
        ((4,), 1, "4", 1, r"--gpu-ids 4: the only visible GPU is 0 \(CUDA_VISIBLE_DEVICES=4\)"),
        ((-1,), 1, None, 2, "--gpu-ids -1: the visible GPUs are 0 to 1"),
        ((0, 0), 1, None, 2, "names GPU 0 2 times; .* the visible GPUs are 0 to 1"),
        ((0,), 1, None, 0, "no GPU is visible; --gpu-ids None trains on the CPU"),
        ("all", 1, None, 0, "--gpu-ids all: no GPU is visible"),
        ((), 1, None, 2, "--gpu-ids needs one or more numbers"),
        ((0,), 2, None, 1, "--cpu-workers 2 .* the only visible GPU is 0; add --gpu-ids None"),
    ],
)
def test_mistakes_say_what_is_visible(gpu_ids, cpu_workers, visible, gpu_count, message):
    with pytest.raises(ConfigError, match=message):
        resolve_devices(gpu_ids, cpu_workers, host_gpus(visible, gpu_count))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_gpu_that_pytorch_cannot_use_is_a_mistake_for_every_rank():
    with pytest.raises(ConfigError, match=r"^PyTorch cannot use the GPU: .* \(--gpu-ids None "):
        Devices("cuda", 2, "0,1").use(1)


@pytest.mark.parametrize("used_before", [False, True])
def test_a_process_that_can_no_longer_choose_its_gpu_is_refused(used_before, monkeypatch):
    """CUDA reads ``CUDA_VISIBLE_DEVICES`` once."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    uuids = [f"uuid {number}" for number in range(4)]
    frozen = os.environ["CUDA_VISIBLE_DEVICES"]
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)

    def visible() -> list[str]:
        variable = frozen if used_before else os.environ["CUDA_VISIBLE_DEVICES"]
        return [uuids[int(number)] for number in variable.split(",")]

    monkeypatch.setattr(plan, "visible_gpus", visible)
    devices = resolve_devices((3,), 1, HostGpus(None, uuids))
    if used_before:
        with pytest.raises(ConfigError, match="this process used CUDA before"):
            devices.use(0)
    else:
        assert devices.use(0) == torch.device("cuda:0")
        # A benchmark's smaller jobs are of the same GPUs.
        most = resolve_devices((2, 1, 0), 1, HostGpus(None, uuids))
        assert most.first(2).use(1) == torch.device("cuda:1")
        assert visible() == ["uuid 2", "uuid 1"]


DRIVER = """
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) {
    return strcmp(getenv("CUDA_DEVICE_ORDER"), getenv("EXPECTED_ORDER")) ? 100 : 0;
}
int cuDeviceGetCount(int *count) { *count = atoi(getenv("CUDA_VISIBLE_DEVICES")); return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetUuid(char *uuid, int device) { memset(uuid, 16 + device, 16); return 0; }
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="compiles a driver without GPUs")
@pytest.mark.parametrize(("order", "expected"), [(None, "PCI_BUS_ID"), ("FASTEST_FIRST",) * 2])
def test_another_process_lists_the_gpus_and_numbers_them_as_nvidia_smi_does(
    order, expected, tmp_path, monkeypatch
):
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(command, input=DRIVER, text=True, check=True)
    monkeypatch.setattr("simtrain.launch.hosts._DRIVER", str(tmp_path / "libcuda.so.1"))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")
    monkeypatch.delenv("CUDA_DEVICE_ORDER")
    if order is not None:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    monkeypatch.setenv("EXPECTED_ORDER", expected)
    for count in (0, 2):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(count))
        assert list_gpus() == ["10" * 16, "11" * 16][:count]
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(
    ("eval_device", "devices"),
    [
        (None, None),
        ("cpu", Devices("cpu", 1, "")),
        ("cuda:1", Devices("cuda", 1, "6", ("uuid 1",))),
    ],
)
def test_the_device_of_the_evaluator(eval_device, devices):
    assert resolve_evaluator(eval_device, host_gpus("4,6", 2)) == devices


def test_an_evaluators_gpu_that_is_not_there_is_a_mistake():
    there = r"the visible GPUs are 0 to 1 \(CUDA_VISIBLE_DEVICES=4,6\)"
    message = f"^--eval-device cuda:2: {there}; --eval-device cpu evaluates on the CPU$"
    with pytest.raises(ConfigError, match=message):
        resolve_evaluator("cuda:2", host_gpus("4,6", 2))


def test_members_on_several_hosts_have_no_evaluator_on_a_gpu_of_the_first_host():
    flags = configure("--hosts", "a", "b", "--gpu-ids", "0")
    with pytest.raises(ConfigError, match="--eval-device cuda:1 is a GPU of the first host"):
        plan_job(flags, eval_device="cuda:1", population=2)


def configure(*flags: str) -> TrainConfig:
    return parse_flags("train", default_config("cartpole-balance"), flags)


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
    gpus = [host_gpus(*host) for host in hosts]
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
