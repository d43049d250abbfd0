"""Gives Warp and PyTorch a CUDA device that is none; see `cuda_driver.py`.

PyTorch's CPU tensors stand for tensors on it. The Python code of Warp, MuJoCo Warp and simtrain
then takes its branches for CUDA. This changes Warp and PyTorch for the rest of the process, and
therefore belongs in one of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import warp as wp
import warp._src.torch as warp_torch
from cuda_driver import LEGACY, MEMORY, Capture, Driver
from warp._src import codegen, context


class TorchStream:
    """In the place of `torch.cuda.Stream`; non-blocking, but for the default stream."""

    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


class TorchGraph:
    """In the place of `torch.cuda.CUDAGraph`."""

    def __init__(self, torch_cuda: TorchCuda) -> None:
        self._cuda = torch_cuda
        self.capture: Capture | None = None
        self.replays = 0

    def replay(self) -> None:
        assert self.capture is not None, "nothing was captured, or it is gone"
        driver = self._cuda.driver
        driver.check_no_capture("a replay")
        self.replays += 1

    def reset(self) -> None:
        if self.capture is not None:
            self._cuda.driver.destroy(self.capture)
            self.capture = None

    __del__ = reset


class TorchCuda:
    """In the place of what the project calls of `torch.cuda`."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._current = TorchStream(LEGACY)

    def install(self) -> None:
        cuda: Any = torch.cuda
        cuda.Stream = lambda device=None: TorchStream(self.driver.new_stream(blocking=False))
        cuda.CUDAGraph = lambda: TorchGraph(self)
        cuda.graph = self._graph
        cuda.current_stream = lambda device=None: self._current
        cuda.current_device = lambda: 0
        cuda.device = self._device
        cuda.synchronize = lambda device=None: self.driver.wait("waiting")
        cuda.mem_get_info = lambda device=None: (MEMORY, MEMORY)
        cuda.graph_pool_handle = lambda: next(self.driver._numbers)

    @contextmanager
    def _device(self, device: Any) -> Iterator[None]:
        yield

    @contextmanager
    def _graph(
        self, graph: TorchGraph, pool: Any = None, *, stream: TorchStream, capture_error_mode: str
    ) -> Iterator[None]:
        self.driver.check_no_capture("a capture")
        before, self._current = self._current, stream
        self.driver.begin(stream.cuda_stream)
        try:
            yield
        finally:
            try:
                graph.capture = self.driver.end(stream.cuda_stream)
            finally:
                self._current = before


class _Executable:
    """A module that is loaded, whatever its kernels are."""

    def __init__(self, module: Any, device: Any, driver: Driver) -> None:
        self.module, self.device, self._driver = module, device, driver
        self.module_hash, self.handle, self.det_launch_meta_map = b"", 1, {}

    def get_kernel_hooks(self, kernel: Any) -> Any:
        # Otherwise found out when code is generated, which takes long.
        default = kernel.module.options.get("default_grid_stride", False)
        kernel.grid_stride = codegen.resolve_grid_stride(kernel.options, bool(default))
        number = len(self._driver.names) + 1
        self._driver.names[number] = kernel.key
        return context.KernelHooks(number, None, 0, 0)


def install() -> Driver:
    """Give this process a CUDA device; its driver."""
    wp.config.log_level = wp.LOG_WARNING
    wp.init()
    runtime = context.runtime
    driver = runtime.core = Driver(runtime.core)
    runtime.driver_version = (13, 2)
    device = context.Device(runtime, "cuda:0", ordinal=0, is_primary=True)
    runtime.cuda_devices.append(device)
    runtime.cuda_primary_devices.append(device)
    runtime.device_map["cuda:0"] = device
    runtime.cuda_custom_context_count = [0]
    _load_nothing(runtime, driver)
    _share_tensors(device)
    TorchCuda(driver).install()
    return driver


def _load_nothing(runtime: Any, driver: Driver) -> None:
    """Let modules for the device be loaded without compiling them."""
    load, loaded = context.Module.load, {}

    def load_or_not(module: Any, device: Any, block_dim: int | None = None, **rest: Any) -> Any:
        device = runtime.get_device(device)
        if not device.is_cuda:
            return load(module, device, block_dim, **rest)
        block_dim = module.options["block_dim"] if block_dim is None else block_dim
        if (module, block_dim) not in loaded:
            loaded[module, block_dim] = _Executable(module, device, driver)
        return loaded[module, block_dim]

    internals: Any = context
    internals.Module.load = load_or_not
    internals._validate_kernel_tid_extents = lambda *arguments: None
    codegen.Adjoint.kernel_dim = 4  # of a kernel that was not generated
    warp: Any = wp
    warp.get_suggested_block_size = lambda kernel, device=None: (256, 132)


def _share_tensors(device: Any) -> None:
    """Let PyTorch's CPU tensors and Warp's arrays on the device be views of each other."""
    warp: Any = wp

    def to_torch(array: Any, requires_grad: bool | None = None) -> torch.Tensor:
        scalar = getattr(array.dtype, "_wp_scalar_type_", array.dtype)
        shape = (*array.shape, *getattr(array.dtype, "_shape_", ()))
        dtype = warp_torch.dtype_to_torch(scalar)
        if array.ptr is None or array.size == 0:
            return torch.zeros(shape, dtype=dtype)
        size = array.size * wp.types.type_size_in_bytes(array.dtype)
        memory = (ctypes.c_char * size).from_address(array.ptr)
        tensor: Any = torch.frombuffer(memory, dtype=dtype).view(shape)
        tensor.array = array
        return tensor

    def from_torch(tensor: torch.Tensor, dtype: Any = None) -> Any:
        dims = tensor.ndim - len(getattr(dtype, "_shape_", ()))  # a vector's are not the array's
        array = wp.array(
            ptr=tensor.data_ptr(),
            shape=tuple(tensor.shape[:dims]),
            strides=tuple(stride * tensor.element_size() for stride in tensor.stride()[:dims]),
            dtype=dtype or warp_torch.dtype_from_torch(tensor.dtype),
            device=device,
        )
        array.tensor = tensor
        return array

    warp.to_torch, warp.from_torch = to_torch, from_torch
    warp.device_from_torch = lambda torch_device: device
    warp.device_to_torch = lambda warp_device: "cpu"
    warp.stream_from_torch = lambda stream: wp.Stream(device, cuda_stream=stream.cuda_stream)
