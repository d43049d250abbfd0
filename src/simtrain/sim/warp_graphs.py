"""Sequences of Warp launches as graphs that are replayed in one call, on PyTorch's stream."""

import gc
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
import warp as wp

from simtrain.errors import ConfigError


class WarpGraphs:
    """Runs sequences of Warp launches on one device, each as a graph from its second run on.

    The first run is an ordinary one: it compiles and loads the kernels. So is every run where a
    graph cannot be captured, which is warned of once. `ConfigError` if Warp cannot use the device.
    """

    def __init__(self, device: torch.device) -> None:
        wp.init()
        if device.type == "cuda" and not wp.is_cuda_available():
            raise ConfigError(
                "the warp engine cannot use the GPU: Warp finds no CUDA driver that is new enough; "
                "update the NVIDIA driver, or use --engine mujoco"
            )
        self._torch_device, self._device = device, wp.device_from_torch(device)
        try:
            self._device.get_cuda_compile_arch()
        except RuntimeError as error:
            text = f"the warp engine cannot use the {self._device.name}: {error} "
            raise ConfigError(text + "Or use --engine mujoco.") from error
        self._graphs: dict[Hashable, wp.Graph | None] = {}
        self._streams: dict[int, wp.Stream] = {}
        # PyTorch's default stream cannot be captured.
        self._capture_stream = None if self._device.is_cpu else wp.Stream(self._device)
        self._torch_graphs: list[wp.Graph] = []
        self.enabled, self._in_torch_graph = True, False
        self.conditional = self._device.is_cpu or wp.is_conditional_graph_supported()
        """Whether a loop can end early, on a condition on the device, without waiting for it."""
        if self._device.is_cuda and not wp.is_mempool_enabled(self._device):
            self._disable("Warp has no memory pool there")

    def run(self, key: Hashable, launches: Callable[[], None]) -> None:
        """Run `launches`, the same ones for the same `key`, on PyTorch's current stream."""
        with self.scope():
            if self.enabled and key in self._graphs and not self._in_torch_graph:
                graph = self._graphs[key] or self._capture(key, launches)
                if graph is not None:
                    wp.capture_launch(graph)
                    return
            launches()
            self._graphs.setdefault(key, None)

    def clear(self) -> None:
        """Drop all graphs, because arrays that they read have been replaced."""
        self._graphs.clear()

    @contextmanager
    def in_torch_graph(self) -> Iterator[None]:
        """Within, launches go into PyTorch's graph (of ``capture_error_mode="thread_local"``).

        Every sequence must have run before. Raises `RuntimeError` where graphs are not `enabled`.
        """
        if not self.enabled:
            raise RuntimeError(f"physics on {self._device} runs without graphs")
        if self._device.is_cpu:
            yield
            return
        with self.scope(), wp.ScopedCapture(external=True, force_module_load=False) as capture:
            self._in_torch_graph = True
            try:
                yield
            finally:
                self._in_torch_graph = False
        # It keeps the kernels loaded that PyTorch's graph launches.
        self._torch_graphs.append(capture.graph)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Warp works on the device, on PyTorch's current stream, and raises its memory error."""
        try:
            with wp.ScopedDevice(self._device):
                if self._device.is_cpu:
                    yield
                    return
                stream = torch.cuda.current_stream(self._torch_device)
                if stream.cuda_stream not in self._streams:
                    self._streams[stream.cuda_stream] = wp.stream_from_torch(stream)
                # All launches go to PyTorch's streams, and wait for nothing on Warp's own.
                with wp.ScopedStream(self._streams[stream.cuda_stream], sync_enter=False):
                    yield
        except RuntimeError as error:
            if "Failed to allocate" in str(error) or "out of memory" in str(error):
                raise torch.OutOfMemoryError(str(error)) from error
            raise

    def _capture(self, key: Hashable, launches: Callable[[], None]) -> wp.Graph | None:
        """Record `launches` without running them; None, and no more graphs, if that fails."""
        # What the garbage collector does to other objects might not be allowed in a capture.
        collecting = gc.isenabled()
        gc.collect()
        gc.disable()
        stream = self._capture_stream
        try:
            # The memory of the ordinary run goes back to the driver: the graph gets its own.
            wp.synchronize_device(self._device)
            # The kernels are loaded; to load all others takes minutes on drivers before CUDA 12.3.
            with wp.ScopedStream(stream), wp.ScopedCapture(force_module_load=False) as capture:
                launches()
        except RuntimeError as error:
            self._disable(str(error))
            return None
        finally:
            if collecting:
                gc.enable()
        self._graphs[key] = capture.graph
        return capture.graph

    def _disable(self, reason: str) -> None:
        self.enabled = False
        self.conditional = self._device.is_cpu
        self._graphs.clear()
        text = f"physics on {self._device} runs without graphs, and slower: {reason}"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
