"""A tape: what a CUDA graph does, on the CPU.

While a function runs, every operation of PyTorch is noted with its arguments and results, and every
sequence of Warp's launches. Replaying does these again, into the same memory, and nothing of what
the function does on the host. Waiting for the device is refused, as CUDA refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from waiting import RefuseWaiting

from simtrain.env.env import Env
from simtrain.training.graphs.cuda import RefusedError, describe


class Tape:
    """Stands in for `simtrain.training.graphs.cuda.CudaGraphs`."""

    def __init__(self, env: Env | None = None) -> None:
        """`env`, if given, simulates by Warp on the CPU; it becomes as one on CUDA."""
        self._recorder: _Recorder | None = None
        self.captures = self.replays = 0
        if env is not None:
            # On CUDA the draws of resets come from the device's generator alone.
            env._reset_seed = None
            sim: Any = env.sim
            # Nor does the host know there whether a mask selects any.
            sim.reads_masks = False
            graphs = sim.graphs
            run = graphs.run

            def noted(key: Any, launches: Callable[[], None]) -> None:
                run(key, launches)
                if self._recorder is not None:
                    self._recorder.note(lambda: run(key, launches))

            graphs.run = noted

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Record `function`, which also runs; see `GraphBackend.capture`."""
        self._recorder = _Recorder()
        self.captures += 1
        try:
            with self._recorder:
                function()
        except Exception as error:
            raise RefusedError(describe(error)) from error
        finally:
            steps, self._recorder = self._recorder.steps, None

        def replay() -> None:
            self.replays += 1
            with torch.inference_mode():
                for step in steps:
                    step()

        return replay

    def without_waiting(self) -> AbstractContextManager[Any]:
        """See `GraphBackend.without_waiting`."""
        return RefuseWaiting()


class _Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Callable[[], None]] = []

    def note(self, step: Callable[[], None]) -> None:
        self.steps.append(step)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in ("_local_scalar_dense", "item"):
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **kwargs)
        if func.overloadpacket.__name__ == "lift_fresh":
            return result  # a constant of the host
        given = {_memory(t) for t in _tensors((args, kwargs))}
        # Of these, what has memory of its own is written again; the others are views or arguments.
        new = [_memory(t) not in given for t in _tensors(result)]
        kept = _tensors(result)

        def again() -> None:
            fresh = _tensors(func(*args, **kwargs))
            for is_new, old, value in zip(new, kept, fresh, strict=True):
                if is_new:
                    old.copy_(value)

        if any(new) or func._schema.is_mutable:
            self.note(again)
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
