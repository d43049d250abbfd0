"""Uses the warp engine, and every shipped task, on a stand-in CUDA driver in many ways.

A program of its own, for the driver changes its process (`test_warp_driver.py` runs it). Prints, by
scenario, what went wrong in it.
"""

import gc
import json
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from cuda_driver import Capture, Driver
from warp_driver import install

DRIVER: Driver = install()  # before simtrain uses Warp

from engine_models import CARTPOLE, compile_xml  # noqa: E402

from simtrain.config.tasks import discover  # noqa: E402
from simtrain.env.env import Env  # noqa: E402
from simtrain.sim import EngineCfg  # noqa: E402
from simtrain.sim.cuda_graphs import CudaGraphs, Graphs, RefusedError  # noqa: E402
from simtrain.sim.engine import Rays  # noqa: E402
from simtrain.sim.warp_engine import WarpEngine  # noqa: E402

CPU = torch.device("cpu")  # stands for the GPU
BACKEND = CudaGraphs(CPU)
BAD_DAY = "the driver has a bad day"
SOME = torch.tensor([True, False, True])
RAYS = Rays(torch.rand(3, 5, 3), torch.rand(3, 5, 3), torch.zeros(3, 5), (-1,) * 5, (0, 2))
ALL = ["('cast', 0)", "('set_const', 7)", "('step', 1, True)", "('step', 2)", "forward", "reset"]
MOST_KERNELS = {"cartpole": 433, "dmc": 880, "go1": 184, "g1": 200, "yam": 311}
"""Of a control step on rough ground, by the robot's name; loops of the solver are one node each."""


def step(engine: WarpEngine) -> None:
    """All that happens in an environment step."""
    engine.step(refresh=False, accelerations=True)
    engine.step(2)
    engine.reset(SOME)
    engine.write("qvel", 0.1, SOME, slice(0, 1))
    engine.write("body_mass", 1.1, SOME)
    engine.set_const(SOME)
    engine.forward()
    engine.cast(RAYS)


def stepped(steps: int = 3) -> WarpEngine:
    """An engine, whose sequences are graphs after three steps."""
    # With sizes of buffers, which a probe would find.
    engine = WarpEngine(EngineCfg("warp", CPU), compile_xml(CARTPOLE), 3, None, 8, 40)
    engine.reads_masks = False  # as on a GPU
    for name in ("qpos", "qvel", "ctrl", "sensordata", "qacc"):
        engine.bind(name)
    engine.expand("body_mass")
    for _ in range(steps):
        step(engine)
    return engine


def captured(engine: WarpEngine) -> list[str]:
    """The engine's sequences that are graphs."""
    return sorted(map(str, (key for key, replay in engine.graphs._graphs.items() if replay)))


def in_a_graph(engine: Any, function: Callable[[], object]) -> Graphs:
    """What `function` launches, with the engine's physics, in PyTorch's graph."""

    def joined() -> object:
        with engine.in_torch_graph() as kept:
            function()
        return kept

    return BACKEND.capture(joined)


def refusal(engine: WarpEngine) -> str:
    """Why a step cannot be in a graph."""
    try:
        in_a_graph(engine, partial(step, engine))
    except RefusedError as error:
        return str(error)
    raise AssertionError("not refused")


def physics_is_replayed_from_the_third_step_on() -> None:
    engine = stepped()
    before = DRIVER.launches.copy()
    step(engine)
    assert captured(engine) == ALL
    assert dict(DRIVER.launches - before) == {}


def after_a_late_expand_other_graphs_are_captured() -> None:
    engine = stepped()
    gc.collect()
    graphs = len(DRIVER.graphs)
    engine.expand("geom_friction")
    assert captured(engine) == []
    for _ in range(3):
        step(engine)
    gc.collect()
    assert captured(engine) == ALL
    assert engine.graphs.enabled
    assert len(DRIVER.graphs) == graphs  # those of before are gone


def a_whole_step_is_captured_with_the_loops_of_the_solver() -> None:
    engine = stepped()
    graphs = in_a_graph(engine, partial(step, engine))
    (graph,) = graphs.graphs
    nodes = Counter(graph.capture.nodes)
    assert nodes["while"] == 3  # one step, and a decimation of 2
    assert nodes["kernel"] > 50
    assert nodes["alloc"] == nodes["free"] > 0
    assert not {"h2d", "d2h"} & nodes.keys()
    graphs.replay()
    step(engine)  # by its own graphs
    assert graph.replays == 1
    kept: Any = graphs.kept[0]
    assert len(kept.module_execs) > 10
    number = graph.capture.graph
    graphs.close()
    assert number not in DRIVER.graphs


def engines_of_training_and_evaluation_capture_in_one_process() -> None:
    training = stepped()
    graphs = in_a_graph(training, partial(step, training))
    evaluation = stepped()
    assert captured(training) == captured(evaluation) == ALL
    graphs.replay()
    step(evaluation)
    del evaluation
    gc.collect()
    step(training)
    graphs.close()
    in_a_graph(training, partial(step, training)).close()
    assert training.graphs.enabled


def fail(*, invalidates: bool) -> None:
    """Fail at the second kernel of a loop's body; on a GPU that may end the capture too."""
    kernels = Counter[str]()

    def on_node(capture: Capture, kind: str) -> None:
        if capture.parent is not None and kind == "kernel":
            kernels[kind] += 1
            if kernels[kind] == 2:
                if invalidates:
                    DRIVER.invalidate(capture)
                raise RuntimeError(BAD_DAY)

    DRIVER.on_node = on_node


def go_well() -> None:
    DRIVER.on_node = lambda capture, kind: None


def after_a_failure_in_a_loop_captures_succeed(*, invalidates: bool = False) -> None:
    engine = stepped()
    fail(invalidates=invalidates)
    assert refusal(engine) == BAD_DAY
    go_well()
    gc.collect()
    assert not DRIVER.joined  # captures that Warp is in
    step(engine)  # by its own graphs, which are whole
    graphs = in_a_graph(engine, partial(step, engine))
    assert len(graphs.graphs[0].capture.nodes) > 50
    graphs.close()
    assert captured(engine) == ALL


def an_engine_that_cannot_capture_says_so_once_and_is_in_no_graph() -> None:
    engine = stepped(steps=1)
    fail(invalidates=False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        step(engine)
        step(engine)
    go_well()
    text = "physics on cuda:0 runs without graphs"
    assert [str(warning.message) for warning in warned] == [f"{text}, and slower: {BAD_DAY}"]
    assert not engine.graphs.enabled
    assert refusal(engine) == text


def a_capture_whose_id_changes_is_refused_and_physics_keeps_its_graphs() -> None:
    engine = stepped()
    DRIVER.renumbers = True
    assert refusal(engine).startswith("the driver gave PyTorch's capture another id")
    engine.expand("geom_friction")
    for _ in range(3):
        step(engine)
    DRIVER.renumbers = False
    # Physics alone draws no numbers, and has its memory from Warp.
    assert captured(engine) == ALL
    assert engine.graphs.enabled


def captures_that_are_dropped_leave_nothing_behind() -> None:
    engine = stepped()
    in_a_graph(engine, partial(step, engine)).close()
    counts = set()
    for _ in range(3):
        in_a_graph(engine, partial(step, engine)).close()
        gc.collect()
        counts.add((len(DRIVER.graphs), len(DRIVER.owned), len(DRIVER.memory)))
    assert len(counts) == 1


def a_control_step_is_captured_and_waits_for_nothing(task: str) -> None:
    """Nor does it recompute the costly part of ``mj_setConst``, which is done once a rollout."""
    cfg = discover().find(task).configuration()
    cfg.sim.max_contacts, cfg.sim.max_constraints = 64, 256  # a probe would find them
    env = Env(cfg, 4, EngineCfg("warp", CPU))
    env._reset_seed = None  # as on a GPU
    actions = torch.zeros(env.num_envs, env.num_actions)
    with torch.inference_mode():
        for _ in range(3):
            env.step(actions)
        DRIVER.waits.clear()
        env.step(actions)
        assert DRIVER.waits == []
        graphs = in_a_graph(env.sim, partial(env.step, actions))
        DRIVER.waits.clear()
        graphs.replay()
        env.step(actions)
        assert DRIVER.waits == []
    assert isinstance(env.sim, WarpEngine)
    assert env.sim.graphs.enabled
    (graph,) = graphs.graphs
    nodes, kernels = Counter(graph.capture.nodes), graph.capture.kernels
    graphs.close()
    assert not {"h2d", "d2h"} & nodes.keys()
    most = MOST_KERNELS[task.split("-")[0]]
    assert nodes["kernel"] <= most, f"{nodes['kernel']} kernels, at most {most} before"
    assert not [kernel for kernel in kernels if "A_diag" in kernel or "acc0" in kernel]


def main(names: Sequence[str]) -> None:
    """Run the scenarios of these names, or all."""
    scenarios: list[Callable[[], None]] = [
        physics_is_replayed_from_the_third_step_on,
        after_a_late_expand_other_graphs_are_captured,
        a_whole_step_is_captured_with_the_loops_of_the_solver,
        engines_of_training_and_evaluation_capture_in_one_process,
        after_a_failure_in_a_loop_captures_succeed,
        an_engine_that_cannot_capture_says_so_once_and_is_in_no_graph,
        a_capture_whose_id_changes_is_refused_and_physics_keeps_its_graphs,
        captures_that_are_dropped_leave_nothing_behind,
    ]
    named = {scenario.__name__: scenario for scenario in scenarios}
    invalidated = partial(after_a_failure_in_a_loop_captures_succeed, invalidates=True)
    named["after_an_invalidated_capture_captures_succeed"] = invalidated
    always = property(lambda self: False, lambda self, value: None)
    for task in sorted(discover().tasks):
        named[task] = partial(a_control_step_is_captured_and_waits_for_nothing, task)
    wrong = {}
    for name, scenario in named.items():
        if names and name not in names:
            continue
        broken = len(DRIVER.broken_rules)
        if name in discover().tasks:
            WarpEngine.reads_masks = always  # type: ignore[assignment] # as on a GPU
        try:
            scenario()
            gc.collect()
            assert DRIVER.broken_rules[broken:] == []
            wrong[name] = ""
        except Exception:  # noqa: BLE001 - whatever it is, it is reported
            wrong[name] = traceback.format_exc()
    print(json.dumps(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
