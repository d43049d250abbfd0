"""The warp engine on a CUDA driver that refuses what CUDA refuses; see `warp_driver.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simtrain.config.tasks import discover

pytestmark = pytest.mark.timeout(900)

HERE = Path(__file__).parent
ALL = ["('cast', 0)", "('set_const', 7)", "('step', 1, True)", "('step', 2)", "forward", "reset"]


def _run(program: str) -> dict[str, Any]:
    """What a program beside this file printed last."""
    paths = os.pathsep.join(map(str, (HERE, HERE.parent)))
    finished = subprocess.run(
        [sys.executable, str(HERE / program)],
        env={**os.environ, "PYTHONPATH": paths},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    result: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    return result


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What `warp_program.py` found, by scenario."""
    return _run("warp_program.py")


def test_no_rule_of_a_capture_is_broken(found) -> None:
    broken = {name: rules for name, result in found.items() if (rules := result["broken rules"])}
    assert broken == {}
    assert len(found) == 9


def test_from_the_third_step_on_physics_is_replayed(found) -> None:
    assert found["engine"]["captured"] == ALL
    assert found["engine"]["launched later"] == {}


def test_after_a_late_expand_other_graphs_are_captured(found) -> None:
    late = found["late expand"]
    assert late["dropped"] == []
    assert late["captured"] == ALL
    assert late["enabled"]
    assert late["more graphs"] == 0  # those of before are gone


def test_a_whole_step_is_captured_with_the_loops_of_the_solver(found) -> None:
    step = found["whole step"]
    assert step["nodes"]["while"] == 3  # one step, and a decimation of 2
    assert step["nodes"]["kernel"] > 50
    assert step["nodes"]["alloc"] == step["nodes"]["free"] > 0
    assert not {"h2d", "d2h"} & step["nodes"].keys()
    assert step["replays"] == 1
    assert step["modules kept"] > 10
    assert not step["alive"]  # once it is closed


def test_engines_of_training_and_evaluation_capture_in_one_process(found) -> None:
    assert found["two engines"] == {"captured": [ALL, ALL], "enabled": True, "broken rules": []}


@pytest.mark.parametrize("scenario", ["failure", "invalidated"])
def test_after_a_failure_within_a_loop_captures_succeed_again(found, scenario: str) -> None:
    failed = found[scenario]
    assert failed["refusal"] == "the driver has a bad day"
    assert failed["own"]
    assert failed["nodes"] > 50
    assert failed["captures that Warp is in"] == 0


def test_an_engine_that_cannot_capture_says_so_once_and_is_in_no_graph(found) -> None:
    failed = found["own failure"]
    text = "physics on cuda:0 runs without graphs"
    assert failed["warned"] == [f"{text}, and slower: the driver has a bad day"]
    assert not failed["enabled"]
    assert failed["refusal"] == text


def test_a_capture_whose_id_changes_is_refused_by_name_and_physics_keeps_its_graphs(found) -> None:
    changed = found["capture id"]
    assert changed["refusal"].startswith("the driver gave PyTorch's capture another id")
    assert changed["captured"] == ALL
    assert changed["enabled"]


def test_captures_that_are_dropped_leave_nothing_behind(found) -> None:
    first, *others = found["leftovers"]["counts"]
    assert others == [first, first]


MOST_KERNELS = {"cartpole": 500, "go1": 215, "g1": 290, "yam": 330}
"""Of a control step, by the robot's name; loops of the solver count as one node each."""


def test_a_control_step_of_every_task_is_captured_and_waits_for_nothing() -> None:
    """Nor does it recompute the costly part of ``mj_setConst``, which is done once a rollout."""
    steps = _run("tasks_program.py")
    assert steps.keys() == discover().tasks.keys()
    for task, step in steps.items():
        assert step["enabled"], task
        assert step["broken rules"] == [], task
        assert step["waits"] == [], task
        assert not {"h2d", "d2h"} & step["nodes"].keys(), task
        assert step["nodes"]["kernel"] <= MOST_KERNELS[task.split("-")[0]], task
        costly = [kernel for kernel in step["kernels"] if "A_diag" in kernel or "acc0" in kernel]
        assert costly == [], task
