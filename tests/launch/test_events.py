"""Which ranks the command finds late, by the heartbeats that it gets; its clock is the test's."""

from types import SimpleNamespace

import pytest

from simtrain.launch import events
from simtrain.launch.events import Heartbeat, RankWatch
from simtrain.launch.plan import Devices, Job
from simtrain.launch.rank import Progress

JOB = Job(("localhost",), (Devices("cpu", 2, ""),), collective_timeout=600.0)


class Watched:
    """A watch and what it said; `beats` are sent every second."""

    def __init__(self, monkeypatch) -> None:
        self.seconds = 0.0
        self.said: list[str] = []
        monkeypatch.setattr(events, "time", SimpleNamespace(monotonic=lambda: self.seconds))
        self.watch = RankWatch(JOB, self.said.append)

    def run(self, seconds: int, *beats: Heartbeat) -> bool:
        """Whether the job is to end after so many seconds."""
        ends = False
        for _ in range(seconds):
            for beat in beats:
                self.watch.hear(beat)
            self.seconds += 1.0
            ends = self.watch.check({}, ())
        return ends


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def beat(rank: int, iteration: int | None, *, waits: int = 7, is_waiting: bool = False):
    return Heartbeat(rank, "cpu", Progress(iteration, waits, is_waiting), "task.py:5 in reward")


def test_a_rank_that_others_wait_for_is_told_of_after_a_minute_and_ends_the_job(watched):
    beats = beat(0, 3, is_waiting=True), beat(1, 3)
    assert not watched.run(60, *beats)
    assert watched.said == []
    assert not watched.run(500, *beats)
    assert watched.said == [
        "warning: rank 1 on cpu has kept the others waiting for 61 s, and is in iteration 3, "
        "at task.py:5 in reward; after 600 s the job ends (--collective-timeout)"
    ]
    assert watched.run(50, *beats)


def test_a_rank_that_is_heard_again_is_told_of_once_more_and_then_no_more(watched):
    beats = beat(0, 3), beat(1, 3)
    watched.run(5, *beats)
    watched.run(100, beats[0])
    assert watched.said[0].startswith("warning: rank 1 on cpu has not answered for 61 s, and was")
    watched.run(1000, *beats)
    assert watched.said[1:] == ["rank 1 on cpu went on"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [((0, 1), "every rank has waited for the others"), ((0,), "rank 1 on cpu has not started")],
)
def test_ranks_that_do_not_connect_get_advice_and_end_the_job(ranks, text, watched):
    assert watched.run(1000, *(beat(rank, 0, is_waiting=True) for rank in ranks))
    (warning,) = watched.said
    assert warning.startswith(f"warning: {text} for 61 s; after 600 s")
    assert warning.endswith(events.ADVICE)


@pytest.mark.parametrize(
    "beats",
    [
        [(beat(0, None), beat(1, None, is_waiting=True))],
        [(beat(0, 3), beat(1, 3))],
        [(beat(0, 3, waits=i, is_waiting=True), beat(1, 3)) for i in range(20)],
    ],
    ids=["rank 0 evaluates alone", "a long rollout", "one waits often"],
)
def test_a_rank_that_takes_its_time_is_not_late(beats, watched):
    for both in beats:
        assert not watched.run(1000 // len(beats), *both)
    assert watched.said == []


def test_a_command_that_was_stopped_itself_blames_no_rank(watched):
    watched.run(5, beat(0, 3), beat(1, 3))
    watched.seconds += 1000.0
    assert not watched.run(1)
    assert watched.said == []
