"""The thread that works on the newest item."""

from __future__ import annotations

import threading

import pytest

from simtrain.training.features.background import NewestItemWorker


class Work:
    """Notes the items; waits for a permit at each, and fails at some of them at first."""

    def __init__(self, *, failures: int = 0, pause_s: float = 3600.0) -> None:
        self.items: list[int] = []
        self.started, self.permit = threading.Event(), threading.Event()
        self._failures, self._pause_s = failures, pause_s
        self.worker = NewestItemWorker(self._work, "test")

    def _work(self, items: NewestItemWorker[int]) -> None:
        for item in items:
            while self._fails_at(item) and items.pause(self._pause_s):
                pass

    def _fails_at(self, item: int) -> bool:
        self.items.append(item)
        self.started.set()
        assert self.permit.wait(60)
        self._failures -= 1
        return self._failures >= 0


def never() -> bool:
    return False


def test_of_items_that_wait_the_newest_is_worked_on():
    work = Work()
    assert work.worker.submit(1) is None
    assert work.started.wait(60)
    assert work.worker.submit(2) is None
    assert work.worker.submit(3) == 2
    assert not work.worker.wait(lambda: True, 60.0)
    assert not work.worker.wait(never, 0.0)
    work.permit.set()
    assert work.worker.wait(never, 60.0)
    work.worker.close()
    assert work.items == [1, 3]


def test_an_item_that_failed_is_tried_again_and_once_more_at_the_end():
    work = Work(failures=2, pause_s=0.01)
    work.permit.set()
    work.worker.submit(1)
    assert work.worker.wait(never, 60.0)
    work.worker.close()
    assert work.items == [1, 1, 1]

    work = Work(failures=99)
    work.permit.set()
    work.worker.submit(1)
    assert work.started.wait(60)
    work.worker.close()
    assert work.items in ([1], [1, 1])


def test_a_newer_item_takes_the_place_of_one_that_failed():
    work = Work(failures=1)
    work.permit.set()
    work.worker.submit(1)
    assert work.started.wait(60)
    work.worker.submit(2)
    assert work.worker.wait(never, 60.0)
    work.worker.close()
    assert work.items == [1, 2]


def test_an_exception_in_the_thread_is_raised_by_the_next_call():
    def fail(items: NewestItemWorker[int]) -> None:
        raise ValueError(f"broken {next(iter(items))}")

    worker = NewestItemWorker(fail, "test")
    worker.submit(1)
    for call in (lambda: worker.wait(never, 60.0), worker.close):
        with pytest.raises(ValueError, match="broken 1"):
            call()
