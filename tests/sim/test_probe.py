from __future__ import annotations

import time

from engine_models import CARTPOLE, FALLING_BOX, compile_xml, quadruped

from simtrain.sim.probe import probe_sizes


def test_the_probe_leaves_room_for_a_box_on_its_face() -> None:
    sizes = probe_sizes(compile_xml(FALLING_BOX))
    assert sizes.max_contacts >= 4
    assert sizes.max_constraints >= 16
    assert sizes.max_contacts < 20


def test_the_probe_leaves_room_for_joint_limits_that_it_did_not_meet() -> None:
    sizes = probe_sizes(compile_xml(CARTPOLE))
    assert 1 <= sizes.max_constraints <= 16


def test_the_probe_is_quick_and_always_finds_the_same() -> None:
    model = quadruped()
    start = time.perf_counter()
    sizes = probe_sizes(model)
    assert time.perf_counter() - start < 5.0
    assert probe_sizes(model) == sizes
    assert sizes.max_contacts >= 8
