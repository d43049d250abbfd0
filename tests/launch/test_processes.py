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


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_run_that_does_not_end_in_time_is_ended_with_the_first_signal(is_cancelled):
    called, expired = Calls(), Calls()
    with StopSignals(0.3, on_signal=called, on_expiry=expired) as stop:
        send(signal.SIGTERM)
        assert called.event.wait(SECONDS)
        if is_cancelled:
            stop.cancel_deadline()
        assert expired.event.wait(0.6 if is_cancelled else SECONDS) != is_cancelled
    assert expired.signals == ([] if is_cancelled else [signal.SIGTERM])


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


@pytest.mark.parametrize("hangup", [signal.SIG_DFL, signal.SIG_IGN])
def test_afterwards_signals_are_handled_as_before_and_an_ignored_sighup_stays_so(hangup):
    """As ``nohup`` starts a command."""
    other = signal.signal(signal.SIGHUP, hangup)
    try:
        before = [signal.getsignal(number) for number in STOP_SIGNALS]
        with StopSignals(SECONDS) as stop:
            within = [signal.getsignal(number) for number in STOP_SIGNALS]
            changed = [old != new for old, new in zip(before, within, strict=True)]
            assert changed == [n != signal.SIGHUP or hangup == signal.SIG_DFL for n in STOP_SIGNALS]
            assert not stop()
        assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGHUP, other)


def test_where_it_is_to_raise_the_second_interrupt_does():
    with StopSignals(SECONDS, repeat_seconds=0.0, raises=True) as stop:
        send(signal.SIGINT)
        while not stop():
            time.sleep(0.01)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
