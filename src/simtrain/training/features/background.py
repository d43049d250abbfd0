"""A thread that works on the newest of what it is given, so that training does not wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class NewestItemWorker(Generic[ItemT]):
    """Works on one item at a time; of items that come meanwhile the newest waits alone.

    An exception in the thread is raised by the next call.
    """

    def __init__(self, work: Callable[[NewestItemWorker[ItemT]], None], name: str) -> None:
        """Start the thread, which calls `work` once, with this: the items, until `close`."""
        self._changed = threading.Condition()
        self._next: ItemT | None = None
        self._busy = self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()

    def submit(self, item: ItemT) -> ItemT | None:
        """Have an item worked on next; the one that it takes the place of, if one waited."""
        with self._changed:
            self._raise_error()
            dropped, self._next = self._next, item
            self._changed.notify_all()
            return dropped

    def wait(self, stop: Callable[[], bool], seconds: float) -> bool:
        """Whether all items were worked on within `seconds`, or until `stop` is true."""
        deadline = time.monotonic() + seconds
        with self._changed:
            while self._busy or self._next is not None:
                if stop() or time.monotonic() > deadline:
                    return False
                self._raise_error()
                self._changed.wait(0.2)
        return True

    def pause(self, seconds: float) -> bool:
        """Wait, in the thread, before an item is tried again; whether no newer one is there.

        `close` ends the pause, and there is none after it.
        """
        with self._changed:
            if self._closing:
                return False
            self._changed.wait_for(lambda: self._closing or self._next is not None, seconds)
            return self._next is None

    def close(self, *, drop: bool = False) -> None:
        """Have what waits worked on, or drop it; then end the thread."""
        with self._changed:
            self._closing = True
            if drop:
                self._next = None
            self._changed.notify_all()
        self._thread.join()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self, work: Callable[[NewestItemWorker[ItemT]], None]) -> None:
        try:
            work(self)
        except BaseException as error:  # noqa: BLE001 - raised again by the calls above
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def __iter__(self) -> Iterator[ItemT]:
        """The items, in the thread, which waits for each."""
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._next is not None or self._closing)
                if self._next is None:
                    return
                item, self._next, self._busy = self._next, None, True
            yield item
