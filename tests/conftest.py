"""Pytest puts this folder on the path for its conftest: tests import `tiny_task` from it."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from engine_models import MIXED, compile_xml

from simtrain.sim import EngineCfg, make_engine

# ``nohup`` and background jobs ignore signals that tests send; what they start would, too.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda number, frame: None)

# The tests' tensors are small, and xdist's workers share the cores.
torch.set_num_threads(1)


SLOW = ("end_to_end", "view", "docs")
"""Folders and files whose tests take long."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with slow files, so that no worker is left alone with one of them at the end."""
    items.sort(key=lambda item: not any(name in item.path.parts for name in SLOW))


@pytest.fixture(autouse=True, scope="module")
def _visible_gpus() -> Iterator[None]:
    """Let GPUs be visible again after a command that ran in the process of the tests."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    yield
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    if before is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = before


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Start every test from the same random numbers."""
    torch.manual_seed(0)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, with no other tasks than those that ship."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SIMTRAIN_TASKS", raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def fast_compilation() -> Iterator[None]:
    """Compile Warp's CPU kernels without optimizing them, by one test process for all of them."""
    import warp

    before = warp.config.optimization_level
    warp.config.optimization_level = 0
    warp.init()
    with (Path(warp.config.kernel_cache_dir) / "simtrain-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        engine = make_engine(EngineCfg("warp"), compile_xml(MIXED), 1)
        engine.expand("body_mass")
        engine.set_const()
        engine.step()
    yield
    warp.config.optimization_level = before


@pytest.fixture(scope="session")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a cart-pole, trained by the command; tests that change a file copy it first."""
    from simtrain.cli.train import train

    root = tmp_path_factory.mktemp("trained")
    flags = "--gpu-ids None --cpu-threads 1 --num-envs 8 --max-iterations 2 --save-interval 1"
    reward = ["--env.rewards.upright.weight", "3.0"]
    assert train(["cartpole-balance", *flags.split(), *reward, "--log-root", str(root)]) == 0
    (run,) = root.glob("*/*")
    return run
