"""Finds what would wait for a GPU, on a machine without one."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITS = ("_local_scalar_dense", "item", "nonzero", "is_nonzero", "masked_select", "unique", "equal")
"""Operations that bring a number, or a shape that depends on numbers, from the device."""

INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
"""Operations that wait if an index is a mask."""


class RefuseWaiting(TorchDispatchMode):
    """Raises where code would wait for a device if it ran on one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITS:
            raise AssertionError(f"{name} waits for the device")
        if name == "lift_fresh":
            raise AssertionError("a tensor made of Python's numbers waits for the device")
        if name in INDEXING and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in args[1]
        ):
            raise AssertionError(f"{name} by a mask waits for the device")
        result = func(*args, **(kwargs or {}))
        if name in ("_to_copy", "copy_"):
            devices = {t.device for t in (*args, result) if isinstance(t, torch.Tensor)}
            if len(devices) > 1:
                raise AssertionError(f"{name} copies between {devices}")
        return result
