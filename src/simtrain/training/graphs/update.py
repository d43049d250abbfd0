"""Mini-batches of PPO as CUDA graphs: forward, backward, all-reduce, clipping and Adam in one.

There is one for each mini-batch, for they lie in different places. Before the first update, and
when the optimizer's moments have become other tensors, the mini-batches are learned from eagerly
and by graphs from the same start, compared, and forgotten again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from simtrain.algorithms.ppo import PPO
from simtrain.env.phase_timer import NO_TIMER
from simtrain.training.graphs.check import differ
from simtrain.training.graphs.cuda import GraphBackend, RefusedError


class UpdateGraphs:
    """Replays the mini-batches of `ppo`."""

    def __init__(self, ppo: PPO, backend: GraphBackend) -> None:
        """Prepare; nothing is captured yet."""
        self._ppo = ppo
        self._backend = backend
        self._graphs: list[Callable[[], None]] | None = None
        self.refusal: str | None = None
        """Why this rank's mini-batches are not graphs; None if they are, or another refused."""

    def ready(self) -> bool:
        """Whether there are graphs, made now if need be; all ranks call it together."""
        if self._graphs is None:
            self._make()
        return bool(self._graphs)

    def learn(self, number: int) -> None:
        """See `PPO.learn`; by a graph."""
        assert self._graphs is not None
        self._graphs[number]()

    def clear(self) -> None:
        """Forget the graphs, because tensors that they use have been replaced."""
        self._graphs = None

    def close(self) -> None:
        """Drop the graphs."""
        self._graphs = []

    def _make(self) -> None:
        """Capture and check the graphs; without any if that is refused on any rank."""
        ppo = self._ppo
        self._graphs = []
        self.refusal = None
        timer, ppo.timer = ppo.timer, NO_TIMER
        start = ppo.gradients.parameters.data.clone()
        saved = {tensor.data_ptr(): tensor.clone() for tensor in ppo.learned()}

        def restore() -> None:
            for tensor in ppo.learned():
                before = saved.get(tensor.data_ptr())
                # A moment that was not there is zero at first.
                tensor.zero_() if before is None else tensor.copy_(before)

        try:
            self._epoch(ppo.learn)
            eager = ppo.gradients.parameters.data - start
            restore()
            self._capture()
            restore()
            # Whoever cannot replay would not take part in the others' all-reduces.
            if self._agreed():
                self._epoch(self.learn)
                replayed = ppo.gradients.parameters.data - start
                restore()
                if bool(differ(replayed, eager, smallest=0.0)):
                    self.refusal = "parameters would not be the same from a graph"
                self._agreed()
        finally:
            ppo.timer = timer

    def _capture(self) -> None:
        ppo = self._ppo
        self._graphs = []
        try:
            with _capturable(ppo.optimizer):
                for i in range(ppo.num_mini_batches):
                    self._graphs.append(self._backend.capture(partial(ppo.learn, i)))
        except RefusedError as error:
            self.refusal = str(error)

    def _agreed(self) -> bool:
        """Whether no rank refuses; forgets the graphs if one does."""
        if self._ppo.rank.all_gather([float(self.refusal is not None)]).any():
            self._graphs = []
        return bool(self._graphs)

    def _epoch(self, learn: Callable[[int], None]) -> None:
        for i in range(self._ppo.num_mini_batches):
            learn(i)


@contextmanager
def _capturable(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Adam asks for this flag in a capture and warns of it elsewhere; fused, it ignores it."""
    for group in optimizer.param_groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in optimizer.param_groups:
            group["capturable"] = False
