"""A tape: what a CUDA graph does, on the CPU.

While a function runs, every operation of PyTorch is noted with its arguments and results, and every
sequence of Warp's launches. Replaying does these again, into the same memory, and nothing of what
the function does on the host. Waiting for the device is refused, as CUDA refuses it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from waiting import RefuseWaiting

from simtrain.env.env import Env
from simtrain.sim.cuda_graphs import Graphs, RefusedError, describe


class Tape:
    """Stands in for `simtrain.sim.cuda_graphs.CudaGraphs`."""

    def __init__(self, env: Env | None = None) -> None:
        """`env`, if given, simulates by Warp on the CPU; it becomes as one on CUDA."""
        self._recorder: _Recorder | None = None
        self.captures = self.replays = 0
        self.made: list[weakref.ref[Recording]] = []
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
                self.note(lambda: run(key, launches))

            graphs.run = noted

    def note(self, step: Callable[[], None]) -> None:
        """Have a replay do something that is no operation of PyTorch's."""
        if self._recorder is not None:
            self._recorder.note(step)

    @property
    def recording(self) -> bool:
        """Whether a function is being captured."""
        return self._recorder is not None

    @property
    def alive(self) -> int:
        """Recordings that something still refers to."""
        return sum(reference() is not None for reference in self.made)

    def capture(self, *functions: Callable[[], object]) -> Graphs:
        """Record the functions, which also run; see `CudaGraphs.capture`."""
        captured = Graphs()
        captured.graphs += [self._record(function) for function in functions]
        return captured

    def _record(self, function: Callable[[], object]) -> Recording:
        self._recorder = _Recorder()
        self.captures += 1
        try:
            with self._recorder:
                kept = function()
        except Exception as error:
            raise RefusedError(describe(error)) from error
        finally:
            steps, self._recorder = self._recorder.steps, None
        recording = Recording(self, steps, kept)
        self.made.append(weakref.ref(recording))
        return recording

    def without_waiting(self) -> AbstractContextManager[Any]:
        """See `CudaGraphs.without_waiting`."""
        return RefuseWaiting()


@dataclass(eq=False)
class Recording:
    """In the place of a `torch.cuda.CUDAGraph`."""

    tape: Tape
    steps: list[Callable[[], None]]
    kept: object

    def replay(self) -> None:
        self.tape.replays += 1
        with torch.inference_mode():
            for step in self.steps:
                step()

    def reset(self) -> None:
        self.steps.clear()


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
