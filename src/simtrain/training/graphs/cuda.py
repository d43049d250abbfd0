"""CUDA graphs of PyTorch: what a function launches, recorded once and replayed in one call.

What a function does on the host is not recorded: it must be the same each time, and it must not
wait for the device.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Protocol

import torch


class RefusedError(Exception):
    """Something cannot be a graph; the text says what, for a person."""


class GraphBackend(Protocol):
    """Makes graphs."""

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Record what `function` launches, for the result to launch again, or `RefusedError`."""

    def without_waiting(self) -> AbstractContextManager[None]:
        """A context in which waiting for the device is an error."""


class CudaGraphs:
    """Graphs on one CUDA device, captured on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """See `GraphBackend.capture`. Nothing is launched; waits for the device."""
        # Other threads may do as they like: NCCL's watchdog, say.
        record = partial(torch.cuda.graph, stream=self._stream, capture_error_mode="thread_local")
        graph = torch.cuda.CUDAGraph()
        inference = torch.is_inference_mode_enabled()
        failure: Exception | None = None
        # What the garbage collector does to other objects might not be allowed in a capture.
        gc.collect()
        collecting = gc.isenabled()
        gc.disable()
        with torch.cuda.device(self._device), torch.inference_mode(False), torch.no_grad():
            try:
                with record(graph, self._pool), torch.inference_mode(inference):
                    try:
                        function()
                    except Exception as error:
                        failure = error
                        raise
            except Exception as error:  # noqa: BLE001 - whatever it is, there is no graph
                # PyTorch's random generator learns only from the end of a capture that succeeds
                # that the failed one is over.
                with record(torch.cuda.CUDAGraph()):
                    torch.zeros((), device=self._device)
                # The end of a capture that failed raises an error as well, which says nothing.
                raise RefusedError(describe(failure or error)) from (failure or error)
            finally:
                if collecting:
                    gc.enable()

        def replay() -> None:
            # A graph's numbers for the random generator are ordinary tensors.
            with torch.inference_mode(False):
                graph.replay()

        return replay

    @contextmanager
    def without_waiting(self) -> Iterator[None]:
        """See `GraphBackend.without_waiting`."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)


def make_graph_backend(device: torch.device) -> GraphBackend | None:
    """What makes graphs on `device`; None if there are none there."""
    return CudaGraphs(device) if device.type == "cuda" else None


def describe(error: BaseException) -> str:
    """The first line of an exception, with the notes that were added to it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{lines[0]} ({notes})" if notes else lines[0]
