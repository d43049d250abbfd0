"""How long it takes to compile all kernels that a task's physics launches on a GPU; needs no GPU.

  uv run python benchmarks/compile_for_gpu.py go1-velocity-flat --arch 90 --workers 2

That is what the first run of a task on a machine waits for. Prints the seconds of every module and
of all, and fails if one does not compile. The modules are found as the warp engine finds them,
but on Warp's CPU device, which MuJoCo Warp is made to take for a GPU.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from unittest import mock

import warp as wp

from simtrain.cli.parse import parse_flags, split_paths
from simtrain.cli.terminal import run_command
from simtrain.config.tasks import discover
from simtrain.env.model import compile_model
from simtrain.env.names import find_keyframe
from simtrain.sim import EngineCfg, warp_engine
from simtrain.sim.warp_compile import Variant, find_modules
from simtrain.sim.warp_engine import WarpEngine


@dataclass
class Options:
    """Compile what tasks launch on a GPU."""

    arch: int = 90
    """Compute capability of the GPU, times ten."""
    workers: int = len(os.sched_getaffinity(0))
    """Modules that are compiled at the same time."""
    deterministic: bool = False
    """Compile for `train --deterministic True`."""


def main() -> int:
    """Compile for the tasks that are named; the exit code."""
    tasks, rest = split_paths(sys.argv[1:])
    options = parse_flags("compile_for_gpu task...", Options(), rest)
    failed = 0
    for task in map(str, tasks):
        failed += compile_task(task, options)
    return 1 if failed else 0


def compile_task(task: str, options: Options) -> int:
    """Compile a task's modules, and print how long each took; how many failed."""
    modules: dict[wp.Module, list[int]] = {}
    for module, block_dim in task_modules(task, options.deterministic):
        modules.setdefault(module, []).append(block_dim)
    start, cpu = time.monotonic(), time.process_time()
    largest_first = sorted(modules, key=lambda module: -len(module.kernels))
    failed = 0
    with ThreadPoolExecutor(options.workers) as pool, tempfile.TemporaryDirectory() as folder:

        def build(module: wp.Module) -> tuple[float, str]:
            began = time.monotonic()
            try:
                for block_dim in modules[module]:
                    wp.set_module_options({"block_dim": block_dim}, module)
                    wp.compile_aot_module(module, arch=options.arch, module_dir=folder)
            except Exception as error:  # noqa: BLE001 - whatever the compiler says, to go on
                return time.monotonic() - began, f"FAILED: {error}"
            return time.monotonic() - began, ""

        for module, (seconds, error) in zip(
            largest_first, pool.map(build, largest_first), strict=True
        ):
            failed += bool(error)
            print(f"{seconds:7.1f} s  {module.name} {modules[module]} {error}", flush=True)
    print(
        f"{task}: {len(modules) - failed} of {len(modules)} modules for sm_{options.arch} by "
        f"{options.workers} workers in {time.monotonic() - start:.0f} s, "
        f"{time.process_time() - cpu:.0f} s of CPU"
    )
    return failed


class _FoundError(Exception):
    """Ends the construction of an engine when its modules are known."""


def task_modules(task: str, deterministic: bool) -> list[Variant]:
    """The modules that a task's physics launches on a GPU, with their block sizes."""
    cfg = discover().find(task).make()
    model = compile_model(cfg)
    found: list[Variant] = []

    def find(launches: Callable[[], None]) -> None:
        gpu = SimpleNamespace(is_cuda=True, is_cpu=False, sm_count=132)
        with mock.patch.object(wp, "get_device", return_value=gpu):
            found.extend(find_modules(launches))
        raise _FoundError

    wp.config.enable_cpu_blocks = True  # block sizes stay what they are on a GPU
    engine = EngineCfg("warp", "cpu", deterministic=deterministic)
    try:
        with mock.patch.object(warp_engine, "load_kernels", find):
            WarpEngine(engine, model, 64, find_keyframe(model, cfg.keyframe))
    except _FoundError:
        # What is launched without a block size has 1 on the CPU and 256 on a GPU.
        return list(dict.fromkeys((module, 256 if size == 1 else size) for module, size in found))
    raise AssertionError("the engine did not load its kernels")


if __name__ == "__main__":
    run_command(main)
