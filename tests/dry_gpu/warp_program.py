"""Uses the warp engine on a stand-in CUDA driver in many ways, and prints what came of each.

A program of its own, for the driver changes its process (`test_warp_driver.py` runs it).
"""

from __future__ import annotations

import gc
import json
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from cuda_driver import Capture, Driver
from warp_driver import install

DRIVER: Driver = install()  # before simtrain uses Warp

from engine_models import CARTPOLE, compile_xml  # noqa: E402

from simtrain.sim import EngineCfg  # noqa: E402
from simtrain.sim.cuda_graphs import CudaGraphs, RefusedError  # noqa: E402
from simtrain.sim.engine import Rays  # noqa: E402
from simtrain.sim.warp_engine import WarpEngine  # noqa: E402

CPU = torch.device("cpu")  # stands for the GPU
SOME = torch.tensor([True, False, True])
RAYS = Rays(torch.rand(3, 5, 3), torch.rand(3, 5, 3), torch.zeros(3, 5), (-1,) * 5, (0, 2))
SEQUENCES = {("cast", 0), ("step", 1, True), ("step", 2), "reset", "forward", "set_const"}


def make_engine(*, deterministic: bool = False) -> WarpEngine:
    """With sizes of buffers, which a probe would find."""
    cfg = EngineCfg("warp", CPU, deterministic=deterministic)
    engine = WarpEngine(cfg, compile_xml(CARTPOLE), 3, max_contacts=8, max_constraints=40)
    engine.reads_masks = False  # as on a GPU
    for name in ("qpos", "qvel", "ctrl", "sensordata", "qacc"):
        engine.bind(name)
    engine.expand("body_mass")
    return engine


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


def captured(engine: WarpEngine) -> list[str]:
    """The engine's sequences that are graphs."""
    return sorted(map(str, (key for key, replay in engine.graphs._graphs.items() if replay)))


def stepped() -> WarpEngine:
    """An engine whose sequences are graphs."""
    engine = make_engine()
    for _ in range(3):
        step(engine)
    return engine


BACKEND = CudaGraphs(CPU)


def in_a_graph(engine: WarpEngine) -> Any:
    """A step in PyTorch's graph, as rollouts have it."""

    def function() -> object:
        with engine.in_torch_graph() as kept:
            step(engine)
        return kept

    return BACKEND.capture(function)


def engine_graphs() -> dict[str, Any]:
    engine = stepped()
    before = DRIVER.launches.copy()
    step(engine)
    return {"captured": captured(engine), "launched later": dict(DRIVER.launches - before)}


def late_expand() -> dict[str, Any]:
    engine = stepped()
    gc.collect()
    graphs = len(DRIVER.graphs)
    engine.expand("geom_friction")
    dropped = captured(engine)
    for _ in range(3):
        step(engine)
    gc.collect()
    return {
        "dropped": dropped,
        "captured": captured(engine),
        "enabled": engine.graphs.enabled,
        "more graphs": len(DRIVER.graphs) - graphs,
    }


def whole_step() -> dict[str, Any]:
    engine = stepped()
    graphs = in_a_graph(engine)
    (graph,) = graphs.graphs
    nodes = Counter(graph.capture.nodes)
    graphs.replay()
    step(engine)  # by its own graphs
    kept = [item.module_execs for item in graphs.kept]
    number = graph.capture.graph
    graphs.close()
    return {
        "nodes": dict(nodes),
        "replays": graph.replays,
        "modules kept": len(kept[0]),
        "alive": number in DRIVER.graphs,
    }


def two_engines() -> dict[str, Any]:
    training = stepped()
    graphs = in_a_graph(training)
    evaluation = stepped()
    before = captured(training), captured(evaluation)
    graphs.replay()
    step(evaluation)
    del evaluation
    gc.collect()
    step(training)
    graphs.close()
    again = in_a_graph(training)
    again.close()
    return {"captured": before, "enabled": training.graphs.enabled}


def failing(kind: str, *, invalidates: bool) -> Callable[[Capture, str], None]:
    """Fails at the second such node of a loop's body; on a GPU that may end the capture too."""
    seen = [0]

    def on_node(capture: Capture, node: str) -> None:
        if capture.parent is not None and node == kind:
            seen[0] += 1
            if seen[0] == 2:
                if invalidates:
                    DRIVER.invalidate(capture)
                raise RuntimeError("the driver has a bad day")

    return on_node


def failure_in_a_loop(*, invalidates: bool) -> dict[str, Any]:
    engine = stepped()
    own = captured(engine)
    DRIVER.on_node = failing("kernel", invalidates=invalidates)
    try:
        in_a_graph(engine)
    except RefusedError as error:
        refusal = str(error)
    finally:
        DRIVER.on_node = lambda capture, kind: None
    gc.collect()
    inside = len(DRIVER.joined)
    step(engine)  # by its own graphs, which are whole
    graphs = in_a_graph(engine)
    nodes = len(graphs.graphs[0].capture.nodes)
    graphs.close()
    same = own == captured(engine)
    return {"refusal": refusal, "own": same, "nodes": nodes, "captures that Warp is in": inside}


def failure_of_the_engines_own() -> dict[str, Any]:
    engine = make_engine()
    step(engine)
    DRIVER.on_node = failing("kernel", invalidates=False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        step(engine)
        step(engine)
    DRIVER.on_node = lambda capture, kind: None
    try:
        in_a_graph(engine)
    except RefusedError as error:
        refusal = str(error)
    texts = [str(warning.message) for warning in warned]
    return {"warned": texts, "enabled": engine.graphs.enabled, "refusal": refusal}


def other_capture_id() -> dict[str, Any]:
    engine = stepped()
    DRIVER.renumbers = True
    try:
        in_a_graph(engine)
    except RefusedError as error:
        refusal = str(error)
    engine.expand("geom_friction")
    for _ in range(3):
        step(engine)
    DRIVER.renumbers = False
    # Physics alone draws no numbers, and has its memory from Warp.
    return {"refusal": refusal, "captured": captured(engine), "enabled": engine.graphs.enabled}


def nothing_is_left() -> dict[str, Any]:
    engine = stepped()
    in_a_graph(engine).close()
    counts = []
    for _ in range(3):
        in_a_graph(engine).close()
        gc.collect()
        counts.append([len(DRIVER.graphs), len(DRIVER.owned), len(DRIVER.memory)])
    return {"counts": counts}


def main() -> None:
    found: dict[str, Any] = {}
    scenarios: dict[str, Callable[[], dict[str, Any]]] = {
        "engine": engine_graphs,
        "late expand": late_expand,
        "whole step": whole_step,
        "two engines": two_engines,
        "failure": lambda: failure_in_a_loop(invalidates=False),
        "invalidated": lambda: failure_in_a_loop(invalidates=True),
        "own failure": failure_of_the_engines_own,
        "capture id": other_capture_id,
        "leftovers": nothing_is_left,
    }
    for name, scenario in scenarios.items():
        before = len(DRIVER.broken_rules)
        result = scenario()
        gc.collect()
        found[name] = {**result, "broken rules": DRIVER.broken_rules[before:]}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
