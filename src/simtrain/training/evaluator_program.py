"""What runs in the process that evaluates beside training: one policy after another, until the end.

``python -m simtrain.training.evaluator_program <descriptor of a connection> <parent's id>``

What takes seconds to import is imported only after the process is tied to the life of its parent.
"""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Literal

from simtrain.launch.processes import die_with_parent
from simtrain.launch.stop import ignore_stop_signals

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.training.evaluator import Evaluator

_NICENESS = 5


@dataclass(frozen=True)
class Start:
    """What the process needs to know before the first policy."""

    task: str
    values: dict[str, Any]
    """The run's configuration as mappings, lists and scalars."""
    kind: Literal["cuda", "cpu"]
    """What it computes on."""
    threads: int
    """CPU threads that it may use."""


def main() -> None:
    """Receive a `Start`, answer None when ready, then a policy's parameters by its evaluation.

    An error is answered by its text; then the process ends.
    """
    descriptor, parent = map(int, sys.argv[1:])
    die_with_parent(parent)
    ignore_stop_signals()  # they are for rank 0, which ends this process
    os.nice(_NICENESS)  # where they share a core, training comes first

    from simtrain.errors import ConfigError, SimulationError

    connection = Connection(descriptor)
    try:
        evaluator = _make_evaluator(connection.recv())
        connection.send(None)
        while True:
            connection.send(evaluator(_unpacked(connection.recv_bytes())))
    except EOFError:
        return
    except (ConfigError, SimulationError) as error:
        connection.send(str(error))


def _make_evaluator(start: Start) -> Evaluator:
    import torch

    from simtrain.config import TrainConfig, overlay
    from simtrain.env.model import evaluation_task
    from simtrain.registry import discover
    from simtrain.sim import choose_engine
    from simtrain.training.evaluator import Evaluator

    torch.set_num_threads(start.threads)
    # As for ranks: a task's functions may be in no module that this process could import.
    default = TrainConfig.of_task(start.task, discover().find(start.task).configuration())
    config = overlay(default, start.values)
    return Evaluator(
        evaluation_task(config.env),
        config.ppo.actor,
        config.eval_episodes,
        engine=choose_engine(
            config.engine if start.kind == "cuda" else "mujoco",
            "cuda:0" if start.kind == "cuda" else "cpu",
            start.threads,
        ),
    )


def _unpacked(data: bytes) -> dict[str, Tensor]:
    import torch

    state: dict[str, Tensor] = torch.load(io.BytesIO(data), weights_only=True)
    return state


if __name__ == "__main__":
    main()
