"""Warp on PyTorch's streams, and sequences of its launches as graphs replayed in one call."""

import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache, partial

import torch
import warp as wp

from simtrain.errors import ConfigError
from simtrain.sim.cuda_graphs import CudaGraphs, RefusedError

_from_torch = cache(wp.stream_from_torch)


def init_warp() -> None:
    """Initialize Warp, which would announce itself and every kernel on standard output."""
    wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)
    wp.init()


def current_stream(device: torch.device) -> wp.Stream:
    """PyTorch's current stream on a CUDA device.

    One object a stream, for good: at the end of any, Warp forgets the stream for all others too.
    There are few, for PyTorch takes its streams from a pool.
    """
    return _from_torch(torch.cuda.current_stream(device))


class WarpGraphs:
    """Runs sequences of Warp launches on one device, each as a graph from its second run on.

    The first run is an ordinary one: it compiles and loads the kernels. So is every run where a
    graph cannot be captured, which is warned of once. On CUDA the graphs are PyTorch's, which Warp
    joins; on the CPU they are Warp's. `ConfigError` if Warp cannot use the device.
    """

    def __init__(self, device: torch.device) -> None:
        init_warp()
        if device.type == "cuda" and not wp.is_cuda_available():
            raise ConfigError(
                "the warp engine cannot use the GPU: Warp finds no CUDA driver that is new enough; "
                "update the NVIDIA driver, or use --engine mujoco"
            )
        self._torch_device, self._device = device, wp.device_from_torch(device)
        try:
            self._device.get_cuda_compile_arch()
        except RuntimeError as error:
            text = f"the warp engine cannot use the {self._device.name}, but --engine mujoco can"
            raise ConfigError(f"{text}: {error}") from error
        self._cuda = None if self._device.is_cpu else CudaGraphs(device)
        self._graphs: dict[Hashable, Callable[[], None] | None] = {}
        self.enabled, self._in_torch_graph = True, False
        self.conditional = self._device.is_cpu or wp.is_conditional_graph_supported()
        """Whether a loop can end early, on a condition on the device, without waiting for it."""
        if self._device.is_cuda and not wp.is_mempool_enabled(self._device):
            self._disable("Warp has no memory pool there")

    def run(self, key: Hashable, launches: Callable[[], None]) -> None:
        """Run `launches`, the same ones for the same `key`, on PyTorch's current stream."""
        with self.scope():
            if self.enabled and key in self._graphs and not self._in_torch_graph:
                replay = self._graphs[key] or self._capture(key, launches)
                if replay is not None:
                    replay()
                    return
            launches()
            self._graphs.setdefault(key, None)

    def clear(self) -> None:
        """Drop all graphs, because arrays that they read have been replaced; others are made."""
        self._graphs.clear()

    @contextmanager
    def in_torch_graph(self) -> Iterator[object]:
        """Within, launches go into PyTorch's graph (of ``capture_error_mode="thread_local"``).

        Yields an object that must live as long as that graph. Every sequence must have run before.
        Raises `RuntimeError` where graphs are not `enabled`, and `RefusedError` at the end if the
        graph would be wrong.
        """
        if not self.enabled:
            raise RuntimeError(f"physics on {self._device} runs without graphs")
        if self._device.is_cpu:
            yield None
            return
        with self._joined() as graph:
            capture_id = graph.capture_id
            self._in_torch_graph = True
            try:
                yield graph
            finally:
                self._in_torch_graph = False
        if graph.capture_id != capture_id:
            raise RefusedError(
                "the driver gave PyTorch's capture another id after a loop of physics, and PyTorch "
                "finds its random numbers and its memory by that id"
            )

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Within, Warp works on PyTorch's current stream, and raises PyTorch's memory error."""
        try:
            stream = None if self._device.is_cpu else current_stream(self._torch_device)
            # All launches go to PyTorch's streams, and wait for nothing on Warp's own.
            with wp.ScopedDevice(self._device), wp.ScopedStream(stream, sync_enter=False):
                yield
        except RuntimeError as error:
            if "Failed to allocate" in str(error) or "out of memory" in str(error):
                raise torch.OutOfMemoryError(str(error)) from error
            raise

    @contextmanager
    def _joined(self) -> Iterator[wp.Graph]:
        """Within, launches go into the graph that PyTorch captures on its current stream.

        Yields the object that keeps the kernels and the memory that they use.
        """
        device, stream = self._device, current_stream(self._torch_device)
        graph: wp.Graph | None = None
        try:
            # The kernels are loaded; to load all others takes minutes on drivers before CUDA 12.3.
            with self.scope(), wp.ScopedCapture(external=True, force_module_load=False):
                graph = device.captures[stream]
                yield graph
        except BaseException:
            if graph is not None:
                # What fails in a loop may leave Warp with a handle of PyTorch's graph, which it
                # would destroy, and in the capture, during which it frees no memory.
                graph.graph = None
                end_capture = device.runtime.core.wp_cuda_graph_end_capture
                end_capture(device.context, stream.cuda_stream, None)
            raise

    def _capture(self, key: Hashable, launches: Callable[[], None]) -> Callable[[], None] | None:
        """Record `launches` without running them; None, and no more graphs, if that fails."""

        def joined() -> object:
            with self._joined() as graph:
                launches()
            return graph

        replay: Callable[[], None]
        try:
            if self._cuda is not None:
                wp.synchronize_device(self._device)  # frees what earlier graphs held
                replay = self._cuda.capture(joined).replay
            else:
                with wp.ScopedCapture(force_module_load=False) as capture:
                    launches()
                replay = partial(wp.capture_launch, capture.graph)
        except (RuntimeError, RefusedError) as error:
            self._disable(str(error))
            return None
        self._graphs[key] = replay
        return replay

    def _disable(self, reason: str) -> None:
        self.enabled = False
        self.conditional = self._device.is_cpu
        self._graphs.clear()
        text = f"physics on {self._device} runs without graphs, and slower: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
