"""Sequences of Warp launches as graphs that are replayed in one call, on PyTorch's stream."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
import warp as wp

from simtrain.errors import ConfigError


class Graphs:
    """Runs sequences of Warp launches on one device, each as a graph from its second run on.

    The first run is an ordinary one: it compiles and loads the kernels. Where a graph cannot be
    captured, which is said once, every run is an ordinary one.
    """

    def __init__(self, device: torch.device) -> None:
        """Make no graph yet.

        Args:
            device: where the launches go.

        Raises:
            ConfigError: Warp cannot use the device.
        """
        wp.init()
        if device.type == "cuda" and not wp.is_cuda_available():
            raise ConfigError(
                "the warp engine cannot use the GPU: Warp finds no CUDA driver that is new enough; "
                "update the NVIDIA driver, or use --engine mujoco"
            )
        self._torch_device = device
        self._device = wp.device_from_torch(device)
        self._graphs: dict[Hashable, wp.Graph | None] = {}
        self._streams: dict[int, wp.Stream] = {}
        self._capture_stream: wp.Stream | None = None
        self.enabled = True
        """Whether launches are captured."""
        self.conditional = self._device.is_cpu or wp.is_conditional_graph_supported()
        """Whether a loop can end early, on a condition on the device, without waiting for it."""
        if self._device.is_cuda and not wp.is_mempool_enabled(self._device):
            self._refuse("Warp has no memory pool there")

    def run(self, key: Hashable, launches: Callable[[], None]) -> None:
        """Run `launches`, the same ones for the same `key`, on PyTorch's current stream."""
        with self.scope():
            if self.enabled and key in self._graphs:
                graph = self._graphs[key] or self._capture(key, launches)
                if graph is not None:
                    wp.capture_launch(graph)
                    return
            launches()
            self._graphs.setdefault(key, None)

    def clear(self) -> None:
        """Forget all graphs, because arrays that they read have been replaced."""
        self._graphs.clear()

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Warp works on the device, and on CUDA on PyTorch's current stream."""
        with wp.ScopedDevice(self._device):
            if self._device.is_cpu:
                yield
                return
            torch_stream = torch.cuda.current_stream(self._torch_device)
            handle = torch_stream.cuda_stream
            if handle not in self._streams:
                self._streams[handle] = wp.stream_from_torch(torch_stream)
            with wp.ScopedStream(self._streams[handle]):
                yield

    def _capture(self, key: Hashable, launches: Callable[[], None]) -> wp.Graph | None:
        """Record `launches` without running them; None, and no more graphs, if that fails."""
        try:
            with self._capturing(), wp.ScopedCapture() as capture:
                launches()
        except RuntimeError as error:
            self._refuse(str(error))
            return None
        self._graphs[key] = capture.graph
        return capture.graph

    @contextmanager
    def _capturing(self) -> Iterator[None]:
        if self._device.is_cpu:
            yield
            return
        # PyTorch's default stream cannot be captured, hence a stream of our own. Memory that the
        # garbage collector frees during a capture would become part of the graph.
        if self._capture_stream is None:
            self._capture_stream = wp.Stream(self._device)
        gc.collect()
        collecting = gc.isenabled()
        gc.disable()
        try:
            with wp.ScopedStream(self._capture_stream):
                yield
        finally:
            if collecting:
                gc.enable()

    def _refuse(self, reason: str) -> None:
        self.enabled = False
        self.conditional = self._device.is_cpu
        self._graphs.clear()
        warnings.warn(
            f"physics on {self._device} runs without graphs, and slower: {reason}",
            RuntimeWarning,
            stacklevel=2,
        )
