"""A CUDA driver where there is none: memory of the host, and kernels that do nothing.

It stands for Warp's native functions and for what PyTorch does to captures. What may not be done
during a capture is refused, as CUDA does; so is what CUDA would take without a word, but wrongly.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

CONTEXT, ARCH, MEMORY = 0xC0DE, 90, 80 << 30
LEGACY = 0
"""PyTorch's default stream: work on it waits for that on every blocking stream."""


_YES = (
    *("driver_is_initialized", "device_get_count", "device_get_managed_memory_supported"),
    *("device_get_concurrent_managed_access_supported", "device_is_uva"),
    *("device_is_mempool_supported", "device_get_pci_bus_id", "context_is_primary"),
    *("event_create", "get_suggested_block_size", "configure_kernel_shared_memory"),
)
_NO = (
    *("device_get_pageable_memory_access", "device_get_direct_managed_mem_access_from_host"),
    *("device_get_host_native_atomic_supported", "device_is_ipc_supported", "device_get_uuid"),
    *("device_get_pci_domain_id", "device_get_pci_device_id", "context_get_device_ordinal"),
    *("event_destroy", "event_record", "stream_wait_event"),
)
ANSWERS: dict[str, int | bytes] = {
    **dict.fromkeys((f"wp_cuda_{name}" for name in _YES), 1),
    **dict.fromkeys((f"wp_cuda_{name}" for name in _NO), 0),
    "wp_cuda_driver_version": 13020,
    "wp_cuda_device_get_name": b"no GPU at all",
    "wp_cuda_device_get_arch": ARCH,
    "wp_cuda_device_get_sm_count": 132,
    "wp_cuda_device_get_max_shared_memory": 227 << 10,
    "wp_cuda_device_get_primary_context": CONTEXT,
}
"""What Warp's native functions return that only ask."""
NOTED = {
    "wp_memtile_device": "memtile",
    "wp_array_fill_device": "memtile",
    "wp_array_copy_device": "copy",
    "wp_cuda_graph_set_condition": "condition",
}
"""What those launch that do no more here."""
WAITS = {
    "wp_cuda_context_synchronize": "waiting for the device",
    "wp_cuda_stream_synchronize": "waiting for a stream",
}
REFUSED = {
    "wp_cuda_graph_destroy": "Warp destroys a graph of PyTorch's",
    "wp_alloc_device_default": "memory that is not of Warp's pool",
}


class RuleError(RuntimeError):
    """The driver refuses."""


@dataclass
class Capture:
    """What is captured on a stream; the body of a loop is one of its own."""

    graph: int
    number: int  # the id that CUDA gives
    nodes: list[str] = field(default_factory=list)
    kernels: list[str] = field(default_factory=list)
    is_valid: bool = True
    parent: Capture | None = None  # of the body of a loop


class Driver:
    """The driver's state, and Warp's native functions that reach it (`__getattr__`: the others)."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self._numbers = itertools.count(0x1000)
        self._contexts: list[int] = []
        self._stream = LEGACY  # Warp's current one
        self.memory: dict[int, Any] = {}
        self.joined: set[int] = set()  # streams whose captures Warp has joined
        self.known: Counter[int] = Counter()  # streams that Warp knows, and objects for each
        self.blocking: set[int] = set()
        self.graphs: dict[int, Capture] = {}  # all that exist
        self.capturing: dict[int, Capture] = {}  # by stream
        self.owned: dict[int, int] = {}  # memory by the graph that allocates it
        self.launches: Counter[str] = Counter()
        self.broken_rules: list[str] = []
        self.waits: list[str] = []
        """For what the host waited, since this was last cleared."""
        self.names: dict[int, str] = {}
        """Kernels by their handles."""
        self.renumbers = False
        """Whether a capture that goes on gets another id."""
        self.on_node: Callable[[Capture, str], None] = lambda capture, kind: None

    def refuse(self, what: str) -> None:
        """Also what is raised inside a destructor, and lost there, is noted."""
        self.broken_rules.append(what)
        raise RuleError(what)

    def __getattr__(self, name: str) -> Any:
        if name in ANSWERS:
            return lambda *arguments: ANSWERS[name]
        for names, act in ((NOTED, self.note), (WAITS, self.wait), (REFUSED, self.refuse)):
            if name in names:
                return lambda *arguments: act(names[name]) or 1
        if name in ("wp_memcpy_h2d", "wp_memcpy_d2h", "wp_memcpy_d2d"):
            return partial(self._copy, name[-3:])
        if name.startswith("wp_cuda") or "_device" in name:
            raise AttributeError(f"{name} is not simulated")
        return getattr(self._native, name)

    # Captures, as PyTorch begins and ends them.

    def begin(self, stream: int) -> Capture:
        if stream in self.capturing:
            self.refuse("a stream is captured twice")
        number = next(self._numbers)
        self.graphs[number] = self.capturing[stream] = Capture(number, number)
        return self.capturing[stream]

    def end(self, stream: int) -> Capture:
        if stream in self.joined:
            self.refuse("PyTorch ends a capture that Warp has not left")
        capture = self.capturing.pop(stream, None)
        if capture is None or not capture.is_valid or capture.parent is not None:
            raise RuntimeError("operation failed due to a previous error during capture")
        return capture

    def invalidate(self, capture: Capture) -> None:
        """What CUDA does to a capture in which something forbidden was tried."""
        capture.is_valid = False
        if capture.parent is not None:
            self.invalidate(capture.parent)
        else:
            self.destroy(capture)

    def destroy(self, capture: Capture) -> None:
        """Destroy a graph with the bodies of its loops."""
        del self.graphs[capture.graph]
        for body in [each for each in self.graphs.values() if each.parent is capture]:
            self.destroy(body)

    def note(self, kind: str, stream: int | None = None) -> None:
        """Something is launched on a stream, or captured."""
        stream = self._stream if stream is None else stream or LEGACY
        self.launches[kind] += 1
        if stream == LEGACY:
            self._check_legacy()
        capture = self.capturing.get(stream)
        if capture is not None:
            self.on_node(capture, kind)
            capture.nodes.append(kind)
        elif self.capturing:
            self.refuse(f"{kind} beside a capture: it happens now, and not in the graph")

    def _check_legacy(self) -> None:
        if self.blocking & self.capturing.keys():
            self.refuse("the default stream is used while a blocking stream is captured (906)")

    def wait(self, what: str) -> None:
        self.waits.append(what)
        self.check_no_capture(what)

    def check_no_capture(self, what: str) -> None:
        if self.capturing:
            self.refuse(f"{what} during a capture")

    # The device.

    def wp_cuda_device_get_memory_info(self, ordinal: int, *numbers: Any) -> None:
        for number in numbers:
            if number is not None:
                number._obj.value = MEMORY

    def wp_cuda_context_get_current(self) -> int | None:
        return self._contexts[-1] if self._contexts else None

    def wp_cuda_context_set_current(self, new: int) -> None:
        self._contexts[-1:] = [new]

    def wp_cuda_context_push_current(self, new: int) -> None:
        self._contexts.append(new)

    def wp_cuda_context_pop_current(self) -> None:
        self._contexts.pop()

    # Streams.

    def new_stream(self, *, blocking: bool) -> int:
        stream = next(self._numbers)
        if blocking:
            self.blocking.add(stream)
        return stream

    def wp_cuda_stream_create(self, of: int, priority: int) -> int:
        stream = self.new_stream(blocking=True)
        self.known[stream] += 1
        return stream

    def wp_cuda_stream_register(self, of: int, stream: int) -> None:
        if stream:
            self.known[stream] += 1

    def wp_cuda_stream_unregister(self, of: int, stream: int) -> None:
        self.known[stream] -= 1
        if self.known[stream]:
            self.refuse("Warp forgets a stream for which it has another object")
        if stream in self.capturing:
            self.refuse("Warp forgets a stream that is captured")

    wp_cuda_stream_destroy = wp_cuda_stream_unregister

    def wp_cuda_stream_is_capturing(self, stream: int) -> int:
        if not stream:
            self._check_legacy()
        return int((stream or LEGACY) in self.capturing)

    def wp_cuda_stream_get_capture_id(self, stream: int) -> int:
        capture = self.capturing.get(stream or LEGACY)
        return 0 if capture is None else capture.number

    def wp_cuda_context_set_stream(self, of: int, stream: int, wait: int) -> None:
        stream = stream or LEGACY
        if wait and (self._stream in self.capturing) != (stream in self.capturing):
            self.refuse("a captured stream waits for another, or the other for it")
        self._stream = stream

    def wp_cuda_context_get_stream(self, of: int) -> int:
        return self._stream

    # Captures, as Warp takes part in them.

    def wp_cuda_graph_begin_capture(self, of: int, stream: int, external: int, mode: int) -> int:
        if not external:
            self.refuse("Warp captures by itself, and not by PyTorch")
        if not self.known[stream]:
            self.refuse("Warp joins a capture on a stream that it does not know")
        if stream not in self.capturing:
            self.refuse("Warp joins a capture that is none")
        self.joined.add(stream)
        return 1

    def wp_cuda_graph_end_capture(self, of: int, stream: int, graph: Any) -> int:
        self.joined.discard(stream)
        capture = self.capturing.get(stream)
        return int(capture is not None and capture.is_valid and capture.parent is None)

    def wp_cuda_graph_pause_capture(self, of: int, stream: int, graph: Any) -> int:
        capture = self.capturing.pop(stream)
        graph._obj.value = capture.graph if capture.is_valid else None
        return int(capture.is_valid)

    def wp_cuda_graph_resume_capture(self, of: int, stream: int, graph: Any) -> int:
        if stream not in self.joined:
            self.refuse("Warp goes on with a capture that it has not joined")
        if graph.value not in self.graphs:
            return 0
        self.capturing[stream] = self.graphs[graph.value]
        if self.renumbers:
            self.capturing[stream].number = next(self._numbers)
        return 1

    def _insert(self, kind: str, *bodies: Any) -> int:
        self.note(kind)
        for body in bodies:
            if body is not None:
                number = next(self._numbers)
                parent = self.capturing[self._stream]
                self.graphs[number] = Capture(number, number, parent=parent)
                body._obj.value = number
        return 1

    def wp_cuda_graph_insert_while(
        self, of: int, stream: int, arch: int, ptx: int, condition: Any, body: Any, handle: Any
    ) -> int:
        handle._obj.value = 1
        return self._insert("while", body)

    def wp_cuda_graph_insert_if_else(
        self, of: int, stream: int, arch: int, ptx: int, condition: Any, one: Any, other: Any
    ) -> int:
        return self._insert("if", one, other)

    def wp_cuda_graph_check_conditional_body(self, body: Any) -> int:
        forbidden = {"alloc", "free", "h2d", "d2h"} & set(self.graphs[body.value].nodes)
        if forbidden:
            self.refuse(f"the body of a loop has {', '.join(sorted(forbidden))}")
        return 1

    # Memory.

    def wp_alloc_device_async(self, of: int, size: int, stream: int, tag: Any) -> int:
        buffer = ctypes.create_string_buffer(size + 64)
        pointer = -(-ctypes.addressof(buffer) // 64) * 64
        self.memory[pointer] = buffer
        if capture := self.capturing.get(self._stream):
            self.owned[pointer] = capture.graph
        self.note("alloc")
        return pointer

    def wp_free_device_async(self, of: int, pointer: int, node: Any) -> None:
        capture = self.capturing.get(self._stream)
        if capture is not None and self.owned.get(pointer) == capture.graph:
            self.note("free")
            del self.owned[pointer]
        if pointer not in self.owned:  # or the graph keeps it
            self.memory.pop(pointer, None)

    def wp_alloc_pinned(self, size: int, tag: Any = None) -> Any:
        return self._native.wp_alloc_host(size, tag)

    def wp_free_pinned(self, pointer: int) -> None: ...

    def wp_memset_device(self, of: int, pointer: int, value: int, size: int, stream: int) -> int:
        self.note("memset")
        ctypes.memset(pointer, value, size)
        return 1

    def _copy(self, kind: str, of: int, to: int, source: int, size: int, stream: int) -> int:
        """A copy of the `kind` h2d, d2h or d2d: from host or device, to either."""
        if kind != "d2d":
            self.waits.append(f"a copy ({kind})")
        self.note(kind)
        if self._stream not in self.capturing:
            ctypes.memmove(to, source, size)
        return 1

    def wp_cuda_launch_kernel(self, of: int, kernel: Any, *arguments: Any) -> int:
        *_, stream, _ = arguments
        self.note("kernel", stream)
        if (capture := self.capturing.get(stream or LEGACY)) is not None:
            capture.kernels.append(self.names[kernel])
        return 0
