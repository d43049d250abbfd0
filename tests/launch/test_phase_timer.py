"""Stopwatches give every moment to one phase."""

from __future__ import annotations

from simtrain.launch.phase_timer import NO_TIMER, CpuTimer


def test_a_phase_lasts_until_the_next_begins():
    timer = CpuTimer(iter([0.0, 1.0, 4.0, 4.5, 10.0, 11.0, 13.0]).__next__)
    assert timer.take("before") == []
    timer.begin("a")
    timer.begin("b")
    timer.begin("a")
    assert timer.take("c") == [("before", 1.0), ("a", 3.0), ("b", 0.5), ("a", 5.5)]
    timer.begin("d")
    assert timer.take("e") == [("c", 1.0), ("d", 2.0)]
    NO_TIMER.begin("a")
    assert NO_TIMER.take("b") == []


def test_a_paused_timer_notes_no_phase():
    timer = CpuTimer()
    timer.take("rollout")
    with timer.paused():
        timer.begin("captured")
    assert [phase for phase, _ in timer.take("update")] == ["rollout"]
