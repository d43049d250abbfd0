"""The thread that works on the newest item."""

from __future__ import annotations

import threading

import pytest

from simtrain.training.features.background import NewestItemWorker


class Work:
    """Notes the items; waits for a permit at each, and is not done with some of them at first."""

    def __init__(self, *, refuse: int = 0) -> None:
        self.items: list[int] = []
        self.started, self.permit = threading.Event(), threading.Event()
        self._refuse = refuse

    def __call__(self, item: int) -> bool:
        self.items.append(item)
        self.started.set()
        assert self.permit.wait(60)
        self._refuse -= 1
        return self._refuse < 0


def never() -> bool:
    return False


def test_of_items_that_wait_the_newest_is_worked_on():
    work = Work()
    worker = NewestItemWorker(work, "test")
    assert worker.submit(1) is None
    assert work.started.wait(60)
    assert worker.submit(2) is None
    assert worker.submit(3) == 2
    work.permit.set()
    assert worker.wait(never, 60.0)
    worker.close()
    assert work.items == [1, 3]


def test_an_item_that_is_not_done_is_tried_again_and_once_more_at_the_end():
    work = Work(refuse=2)
    work.permit.set()
    worker = NewestItemWorker(work, "test", retry_seconds=0.01)
    worker.submit(1)
    assert worker.wait(never, 60.0)
    worker.close()
    assert work.items == [1, 1, 1]

    work = Work(refuse=99)
    work.permit.set()
    worker = NewestItemWorker(work, "test", retry_seconds=3600.0)
    worker.submit(1)
    assert work.started.wait(60)
    worker.close()
    assert work.items in ([1], [1, 1])


def test_a_newer_item_takes_the_place_of_one_that_failed():
    work = Work(refuse=1)
    work.permit.set()
    worker = NewestItemWorker(work, "test", retry_seconds=3600.0)
    worker.submit(1)
    while not work.items:
        assert work.started.wait(60)
    worker.submit(2)
    assert worker.wait(never, 60.0)
    worker.close()
    assert work.items[-1] == 2


def test_waiting_ends_when_asked_to_and_after_its_time():
    work = Work()
    worker = NewestItemWorker(work, "test")
    worker.submit(1)
    assert not worker.wait(lambda: True, 60.0)
    assert not worker.wait(never, 0.0)
    work.permit.set()
    worker.close(drop=True)


def test_an_exception_in_the_thread_is_raised_by_the_next_call():
    def fail(item: int) -> bool:
        raise ValueError("broken")

    worker = NewestItemWorker(fail, "test")
    worker.submit(1)
    with pytest.raises(ValueError, match="broken"):
        worker.wait(never, 60.0)
    with pytest.raises(ValueError, match="broken"):
        worker.close()
