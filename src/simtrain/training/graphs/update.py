"""Mini-batches of PPO as CUDA graphs: forward, backward, all-reduce, clipping and Adam in one.

There is one for each mini-batch, for they lie in different places. Before the first update all are
learned from eagerly and by graphs from the same start, compared, and everything is put back.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor

from simtrain.algorithms.distillation import Algorithm
from simtrain.sim.cuda_graphs import GraphBackend, Graphs, RefusedError
from simtrain.training.graphs.check import differ


class UpdateGraphs:
    """Replays mini-batches; see `simtrain.algorithms.ppo.MiniBatchGraphs`."""

    def __init__(self, ppo: Algorithm, backend: GraphBackend) -> None:
        self._ppo = ppo
        self._backend = backend
        self._graphs = Graphs()
        self._tried = False
        self.refusal = ppo.refusal
        """Why this rank's mini-batches are not graphs; None if they are, or only others refuse."""

    def prepare(self) -> bool:
        """Capture and check the graphs once; whether there are any. A collective."""
        if not self._tried and self.refusal is None:
            self._tried = True
            with self._ppo.timer.paused():
                self._make()
        return bool(self._graphs.graphs)

    def replay(self, number: int) -> None:
        """See `PPO.learn_mini_batch`; by a graph."""
        self._graphs.replay(number)

    def close(self) -> None:
        """End the graphs, if there are any; there will be no others."""
        self._tried = True
        self._graphs.close()

    def _make(self) -> None:
        ppo = self._ppo
        tensors = ppo.update_state()
        before = [tensor.clone() for tensor in tensors]

        def restore() -> None:
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)

        def change_of_parameters(learn: Callable[[int], None]) -> Tensor:
            for i in range(ppo.num_mini_batches):
                learn(i)
            change = tensors[0] - before[0]
            restore()
            return change

        eager = change_of_parameters(ppo.learn_mini_batch)
        (group,) = ppo.optimizer.param_groups
        group["capturable"] = True  # Adam asks for it in a capture only; fused, it ignores it
        functions = [partial(ppo.learn_mini_batch, i) for i in range(ppo.num_mini_batches)]
        try:
            self._graphs = self._backend.capture(*functions)
        except RefusedError as error:
            self.refusal = str(error)
        finally:
            group["capturable"] = False
        restore()
        # A rank that does not replay would be missing in the all-reduces of the others.
        (refused,) = ppo.rank.any(self.refusal is not None)
        with ppo.rank.progress:  # the GPU waits for the others in these all-reduces
            if not refused and differ(change_of_parameters(self.replay), eager, smallest=0.0):
                self.refusal = "parameters would not be the same from a graph"
        if any(ppo.rank.any(self.refusal is not None)):
            self.close()
