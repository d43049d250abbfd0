"""Says when Warp compiles kernels, which happens once per machine and takes minutes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import warp as wp

_LOOK_EVERY_S = 0.5
_SAY_EVERY_S = 15.0


@contextmanager
def compilation_announced(say: Callable[[str], None]) -> Iterator[None]:
    """Say through `say` that kernels are being compiled, if they are, and how long it took.

    Warp has no way to ask beforehand whether its cache holds what a model needs, but new kernels
    appear in the cache while they are compiled.
    """
    wp.init()
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(done, say), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(done: threading.Event, say: Callable[[str], None]) -> None:
    cache = Path(wp.config.kernel_cache_dir)
    before = _entries(cache)
    start = time.monotonic()
    said: float | None = None
    while not done.wait(_LOOK_EVERY_S):
        now = time.monotonic()
        if said is None and _entries(cache) - before:
            say("compiling kernels, once per machine")
            said = now
        elif said is not None and now - said >= _SAY_EVERY_S:
            say(f"still compiling kernels, for {now - start:.0f} s now")
            said = now
    if said is not None:
        say(f"compiled the kernels in {time.monotonic() - start:.0f} s")


def _entries(cache: Path) -> set[str]:
    """The files in the cache's folders: one folder a module, one binary in it a kind of device."""
    return {str(path) for path in cache.glob("*/*")}
