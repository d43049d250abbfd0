"""Signals that ask a run to stop, sent to the process of the tests itself."""

import os
import signal
import threading
import time
from signal import Signals

import pytest

from simtrain.launch.processes import STOP_SIGNALS, StopSignals

SECONDS = 20.0
"""How long a thread may take to act, on a machine that is busy."""


class Calls:
    """What was called, and a way to wait for it."""

    def __init__(self) -> None:
        self.signals: list[Signals] = []
        self.event = threading.Event()

    def __call__(self, *signals: Signals) -> None:
        self.signals += signals
        self.event.set()


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_the_first_signal_is_kept_and_acted_on_at_once_and_a_later_one_changes_nothing(number):
    called = Calls()
    with StopSignals(SECONDS, on_signal=called) as stop:
        assert not stop()
        send(number)
        assert called.event.wait(SECONDS)
        send(signal.SIGTERM)
        time.sleep(0.1)
        assert (stop(), stop.received) == (True, number)
    assert called.signals == [number]


def test_a_run_that_does_not_end_in_time_is_ended_with_the_first_signal():
    expired = Calls()
    with StopSignals(0.05, on_expiry=expired):
        send(signal.SIGTERM)
        assert expired.event.wait(SECONDS)
    assert expired.signals == [signal.SIGTERM]


def test_a_run_that_ends_in_time_is_not_ended_later():
    called, expired = Calls(), Calls()
    with StopSignals(0.3, on_signal=called, on_expiry=expired) as stop:
        send(signal.SIGTERM)
        assert called.event.wait(SECONDS)
        stop.cancel_deadline()
        assert not expired.event.wait(0.6)


@pytest.mark.parametrize(
    ("number", "repeat_seconds", "is_second"),
    [(signal.SIGINT, SECONDS, False), (signal.SIGTERM, 0.0, False), (signal.SIGINT, 0.0, True)],
    ids=["passed on by a parent", "another signal", "a second interrupt"],
)
def test_only_a_second_interrupt_after_a_while_stops_at_once(number, repeat_seconds, is_second):
    first, second = Calls(), Calls()
    seconds = {"repeat_seconds": repeat_seconds}
    with StopSignals(SECONDS, on_signal=first, on_second_interrupt=second, **seconds):
        send(signal.SIGINT)
        assert first.event.wait(SECONDS)
        send(number)
        assert second.event.wait(SECONDS if is_second else 0.1) == is_second


def test_a_signal_that_another_process_received_counts_like_ones_own():
    called = Calls()
    with StopSignals(SECONDS, on_signal=called) as stop:
        stop.receive(Signals.SIGTERM)
        assert stop.received == signal.SIGTERM
        assert called.event.wait(SECONDS)
    assert called.signals == [signal.SIGTERM]


def test_afterwards_signals_are_handled_as_before():
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with StopSignals(SECONDS):
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_sighup_that_is_ignored_stays_so():
    """As ``nohup`` starts a command."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignals(SECONDS) as stop:
            send(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert not stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_where_it_is_to_raise_the_second_interrupt_does():
    with StopSignals(SECONDS, repeat_seconds=0.0, raises=True) as stop:
        send(signal.SIGINT)
        while not stop():
            time.sleep(0.01)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
