"""Captures a control step of every shipped task on a stand-in CUDA driver; prints its nodes.

A program of its own, for the driver changes its process (`test_warp_driver.py` runs it).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import torch
from cuda_driver import Driver
from warp_driver import install

DRIVER: Driver = install()  # before simtrain uses Warp

from simtrain.config.tasks import discover  # noqa: E402
from simtrain.env.env import Env  # noqa: E402
from simtrain.sim import EngineCfg  # noqa: E402
from simtrain.sim.cuda_graphs import CudaGraphs  # noqa: E402
from simtrain.sim.warp_engine import WarpEngine  # noqa: E402

CPU = torch.device("cpu")  # stands for the GPU
WarpEngine.reads_masks = property(lambda self: False, lambda self, value: None)  # type: ignore


def capture(task: str) -> dict[str, Any]:
    """The nodes of a captured step, and what broke a rule or waited in steps outside of graphs."""
    broken = len(DRIVER.broken_rules)
    cfg = discover().find(task).configuration()
    cfg.sim.max_contacts, cfg.sim.max_constraints = 64, 256  # a probe would find them
    env = Env(cfg, 4, EngineCfg("warp", CPU))
    env._reset_seed = None  # as on a GPU
    actions = torch.zeros(env.num_envs, env.num_actions)

    def step() -> object:
        with env.sim.in_torch_graph() as kept:
            env.step(actions)
        return kept

    with torch.inference_mode():
        for _ in range(3):
            env.step(actions)
        DRIVER.waits.clear()
        env.step(actions)
        waits = list(DRIVER.waits)
        graphs = CudaGraphs(CPU).capture(step)
        DRIVER.waits.clear()
        graphs.replay()
        env.step(actions)
    (graph,) = graphs.graphs
    nodes, kernels = Counter(graph.capture.nodes), Counter(graph.capture.kernels)
    graphs.close()
    return {
        "nodes": nodes,
        "kernels": kernels,
        "waits": waits + DRIVER.waits,
        "broken rules": DRIVER.broken_rules[broken:],
        "enabled": env.sim.graphs.enabled,
    }


if __name__ == "__main__":
    print(json.dumps({task: capture(task) for task in sys.argv[1:] or sorted(discover().tasks)}))
