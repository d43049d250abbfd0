"""Compiles and loads Warp's kernels: all that a sequence of launches needs, before it runs.

MuJoCo Warp makes a kernel when it is first launched, for the very model, in a module of its own. To
compile each when its launch comes takes minutes on a GPU's first run of a model, on one core. Here
the sequence runs once without effect to find its modules, which are then compiled side by side: in
threads, for Warp's compilers run outside of Python's lock. A module that is missed all the same is
compiled when it is launched.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from contextvars import ContextVar
from glob import glob
from typing import Any

import warp as wp

_MOST_WORKERS = 16  # each takes about half a GiB
_REPORT_EVERY_S = 10.0
_finding = threading.Lock()
_report: ContextVar[Callable[[str], None]] = ContextVar("report", default=lambda text: None)

Variant = tuple[wp.Module, int]
"""A module, and the number of threads in a block that it is compiled for."""


@contextmanager
def compilation_announced(report: Callable[[str], None]) -> Iterator[None]:
    """Within, report that kernels are compiled, and how many modules are ready."""
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def load_kernels(launches: Callable[[], None]) -> None:
    """Compile and load all modules that `launches` uses on Warp's current device.

    `launches` is called, and no kernel runs: only for arrays whose contents do not matter yet. It
    must not loop until a kernel has written something.
    """
    device, start = wp.get_device(), time.monotonic()
    # Large ones first, so that none is left alone at the end.
    variants = sorted(find_modules(launches), key=lambda variant: -len(variant[0].kernels))
    cores = len(os.sched_getaffinity(0))
    before, report, reported = _compiled(), _report.get(), -_REPORT_EVERY_S
    if device.is_cpu:
        # Warp finds out once what its files are named by. If two threads do, one file gets another
        # name, and the next process compiles it again.
        wp.get_cpu_kernel_cache_key()
    pool = ThreadPoolExecutor(max(1, min(cores, len(variants), _MOST_WORKERS)))
    try:
        loads = [pool.submit(wp.force_load, device, [module], size) for module, size in variants]
        for ready, load in enumerate(as_completed(loads), start=1):
            load.result()
            seconds = time.monotonic() - start
            if _compiled() > before and seconds - reported >= _REPORT_EVERY_S:
                text = f"{ready} of {len(loads)} modules after {seconds:.0f} s"
                report(f"compiling kernels, once per machine: {text}")
                reported = seconds
    finally:
        pool.shutdown(cancel_futures=True)
    if reported >= 0.0:
        seconds = time.monotonic() - start
        report(f"compiled the kernels, {len(variants)} modules, in {seconds:.0f} s")


def find_modules(launches: Callable[[], None]) -> list[Variant]:
    """The modules that `launches` would load, in order, while none of its kernels runs."""
    variants: dict[Variant, None] = {}
    thread = threading.get_ident()  # what others launch meanwhile runs
    with _finding:
        load, suggested_block_size = wp.Module.load, wp.get_suggested_block_size

        def note(module: wp.Module, device: Any, block_dim: int | None = None, **more: Any) -> Any:
            if threading.get_ident() != thread:
                return load(module, device, block_dim, **more)
            variants[module, block_dim or module.options["block_dim"]] = None
            return None  # which tells `wp.launch` that there is nothing to launch

        def suggest(kernel: wp.Kernel, device: Any = None) -> Any:
            if threading.get_ident() != thread or not wp.get_device(device).is_cuda:
                return suggested_block_size(kernel, device)
            kernel.module.load(device)
            return 256, 1

        wp.Module.load, wp.get_suggested_block_size = note, suggest
        try:
            launches()
        finally:
            wp.Module.load, wp.get_suggested_block_size = load, suggested_block_size
    return list(variants)


def _compiled() -> int:
    """How many files there are in Warp's cache: a folder a module, a binary a kind of device."""
    # Not pathlib, which would raise as folders in which modules are built come and go.
    return len(glob("*/*", root_dir=wp.config.kernel_cache_dir))  # noqa: PTH207
