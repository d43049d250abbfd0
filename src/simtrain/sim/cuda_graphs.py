"""CUDA graphs: the launches of functions, recorded by PyTorch once and replayed in one call.

Physics, rollouts and updates are all captured here. The work of a function on the
host is not recorded: it must be the same each time, and must not wait for the device.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch


class RefusedError(Exception):
    """A function cannot be captured as a graph; the text says why, for a person."""


class Graphs:
    """Graphs of some functions, as `torch.cuda.CUDAGraph`, and objects that must live as long."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.kept: list[object] = []

    def replay(self, number: int = 0) -> None:
        """Replay the graph of the function with this number."""
        # A graph's numbers for the random generator are ordinary tensors.
        with torch.inference_mode(False):
            self.graphs[number].replay()

    def close(self) -> None:
        """Free the graphs now, even if other objects still refer to them."""
        for graph in self.graphs:
            graph.reset()
        self.graphs.clear()
        self.kept.clear()


class CudaGraphs:
    """Makes graphs on one CUDA device, captured on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # Non-blocking, as all that PyTorch makes: during a capture on a blocking one, no thread
        # could use the default stream.
        self._stream = torch.cuda.Stream(device)

    def capture(self, *functions: Callable[[], object]) -> Graphs:
        """Record the launches of each and keep its result, or `RefusedError`; in one pool.

        Nothing is launched; waits for the device.
        """
        captured, pool = Graphs(), torch.cuda.graph_pool_handle()
        try:
            for function in functions:
                graph = torch.cuda.CUDAGraph()
                captured.graphs.append(graph)
                captured.kept.append(self._record(function, graph, pool))
        except BaseException:
            captured.close()
            raise
        return captured

    def _record(self, function: Callable[[], object], graph: Any, pool: Any) -> object:
        """Capture one function, in place on `graph`; the function's result."""
        # Other threads may do as they like: NCCL's watchdog, say.
        record = partial(torch.cuda.graph, stream=self._stream, capture_error_mode="thread_local")
        inference = torch.is_inference_mode_enabled()
        failure: Exception | None = None
        # The garbage collector's work on other objects might not be allowed in a capture.
        gc.collect()
        collecting = gc.isenabled()
        gc.disable()
        with torch.cuda.device(self._device), torch.inference_mode(False), torch.no_grad():
            try:
                with record(graph, pool), torch.inference_mode(inference):
                    try:
                        return function()
                    except Exception as error:
                        failure = error
                        raise
            except Exception as error:  # noqa: BLE001 - whatever it is, there is no graph
                graph.reset()
                # PyTorch's random generator learns only from the end of a capture that succeeds
                # that the failed one is over.
                with record(torch.cuda.CUDAGraph()):
                    torch.zeros((), device=self._device)
                # The end of a capture that failed raises an error as well, which says nothing.
                raise RefusedError(describe(failure or error)) from (failure or error)
            finally:
                if collecting:
                    gc.enable()

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """A context in which waiting for the device is an error."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def make_graph_backend(device: torch.device) -> CudaGraphs | None:
    """The maker of graphs on `device`; None for a device without CUDA graphs."""
    return CudaGraphs(device) if device.type == "cuda" else None


def describe(error: BaseException) -> str:
    """The first line of an exception, with the notes that were added to it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{lines[0]} ({notes})" if notes else lines[0]
