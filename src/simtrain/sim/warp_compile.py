"""Reports that Warp compiles kernels, which happens once per machine and takes minutes."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import warp as wp

_POLL_S, _REPORT_EVERY_S = 0.5, 15.0


@contextmanager
def compilation_announced(report: Callable[[str], None]) -> Iterator[None]:
    """Report while new kernels appear in Warp's cache within, and how long compiling took."""
    wp.init()
    done = threading.Event()
    watcher = threading.Thread(target=_watch_cache, args=(done, report), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch_cache(done: threading.Event, report: Callable[[str], None]) -> None:
    cache = Path(wp.config.kernel_cache_dir)
    before = set(cache.glob("*/*"))  # a folder a module, with a binary a kind of device in it
    start = time.monotonic()
    last_report: float | None = None
    while not done.wait(_POLL_S):
        now = time.monotonic()
        if last_report is None and set(cache.glob("*/*")) - before:
            report("compiling kernels, once per machine")
            last_report = now
        elif last_report is not None and now - last_report >= _REPORT_EVERY_S:
            report(f"still compiling kernels, for {now - start:.0f} s now")
            last_report = now
    if last_report is not None:
        report(f"compiled the kernels in {time.monotonic() - start:.0f} s")
