"""A thread that works on the newest of what it is given, so that training does not wait."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


class NewestItemWorker(Generic[ItemT]):
    """Works on one item at a time; of items that come meanwhile the newest waits alone.

    An exception in the thread is raised by the next call.
    """

    def __init__(
        self,
        work: Callable[[ItemT], bool],
        name: str,
        *,
        prepare: Callable[[], None] = lambda: None,
        retry_seconds: float = 0.0,
    ) -> None:
        """Start the thread, which calls `prepare` and then `work` with each item.

        An item for which `work` returns False is tried again after a pause, unless a newer waits.
        """
        self._work = work
        self._prepare = prepare
        self._retry_seconds = retry_seconds
        self._changed = threading.Condition()
        self._next: ItemT | None = None
        self._busy = False
        self._closing = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
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

    def close(self, *, drop: bool = False) -> None:
        """Work on what waits, once more if need be, or drop it; then end the thread."""
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

    def _run(self) -> None:
        try:
            self._prepare()
            self._work_on_items()
        except BaseException as error:  # noqa: BLE001 - raised again by the calls above
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _work_on_items(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._next is not None or self._closing)
                if self._next is None:
                    return
                item, self._next, self._busy = self._next, None, True
            if not self._work(item):
                self._retry_later(item)

    def _retry_later(self, item: ItemT) -> None:
        """Let an item wait for its next try, unless a newer one waits or the thread is to end."""
        with self._changed:
            if self._next is None and not self._closing:
                self._next = item
                self._changed.wait_for(
                    lambda: self._closing or self._next is not item, self._retry_seconds
                )
