"""All that an environment and its terms keep between steps, as plain data, and back.

What is kept is found by looking: attributes of the environment, of its parts and terms, and of what
these hold. So a term that keeps a tensor, an array, a number or a random generator in an attribute
is continued exactly without a word about it in its class. An object that keeps something else (in C
memory, in a file, in a closure) says so itself, with methods ``state()``, which returns plain data,
and ``set_state(state)``; so do engines.

Functions, classes, frozen dataclasses, MuJoCo's models and configurations are constant, and left
out, as are stopwatches.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from simtrain.env.phase_timer import PhaseTimer

_FOREIGN = sys.stdlib_module_names | {
    "mujoco",
    "mujoco_warp",
    "numpy",
    "rsl_rl",
    "tensordict",
    "torch",
    "warp",
}
"""Top-level modules whose objects are not looked into."""
_CONFIGURATION = ("simtrain.env.cfg", "simtrain.ppo_cfg")
_PLAIN = (bool, int, float, str)
_ATTRIBUTES = "<attributes>"
"""Only key of what is saved of an object, to be told from a mapping."""


def read_state(root: object) -> dict[str, Any]:
    """Copies of everything that `root` keeps, on the CPU: mappings, lists, tensors and scalars.

    ``torch.load(weights_only=True)`` reads what ``torch.save`` makes of it.
    """
    return _Reader().attributes(root)


def read_numbers(root: object, beside: object) -> dict[str, Any]:
    """The numbers, texts and generators that `root` keeps on the host, by where; no tensors.

    Args:
        root: what to look into.
        beside: an object that is not looked into, and may hold `root`.
    """
    reader = _Reader(tensors=False)
    found: dict[str, Any] = {}

    def flatten(value: Any, where: str) -> None:
        if isinstance(value, dict | list):
            for key, item in value.items() if isinstance(value, dict) else enumerate(value):
                flatten(item, where if key == _ATTRIBUTES else f"{where}.{key}")
        elif not isinstance(value, Tensor):
            found[where.removeprefix(".")] = value

    if hasattr(root, "__dict__"):
        reader.leave_out(beside)
        flatten(reader.attributes(root), "")
    return found


@torch.inference_mode()
def write_state(
    root: object, state: dict[str, Any], device: torch.device, *, forget: bool = False
) -> None:
    """Continue from what `read_state` returned of an object made in the same way, in place.

    Tensors keep their storage, so that whoever holds on to them sees the new values.

    Args:
        root: what to change.
        state: what `read_state` returned.
        device: where tensors go that `root` does not have yet.
        forget: remove attributes that the state does not have, instead of raising.

    Raises:
        ValueError: `root` was made in another way; says what differs.
    """
    _Writer(device, forget).attributes(root, state, "")


class _Reader:
    """Copies values; remembers what it has seen, for objects refer to each other in circles."""

    def __init__(self, *, tensors: bool = True) -> None:
        self._with_tensors = tensors
        self._tensors: dict[int, Tensor] = {}
        self._objects: set[int] = set()

    def leave_out(self, value: object) -> None:
        """Do not look into `value`."""
        self._objects.add(id(value))

    def attributes(self, value: object) -> dict[str, Any]:
        self._objects.add(id(value))
        return self._items(vars(value).items())

    def _items(self, items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        return {
            key: self._copy(value)
            for key, value in items
            if isinstance(key, str | int) and self._is_kept(value)
        }

    def _is_kept(self, value: object) -> bool:
        if not self._with_tensors and isinstance(value, Tensor | np.ndarray):
            return False
        return _is_state(value) and id(value) not in self._objects

    def _copy(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            # One copy for all that hold the same tensor; it is stored once, too.
            if id(value) not in self._tensors:
                self._tensors[id(value)] = value.detach().to("cpu", copy=True)
            return self._tensors[id(value)]
        if isinstance(value, np.ndarray):
            return torch.from_numpy(value.copy())
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, torch.Generator):
            state = value.get_state()
            return state if self._with_tensors else bytes(state.tolist())
        if isinstance(value, np.random.Generator):
            return _lists(value.bit_generator.state)
        if isinstance(value, dict):
            return self._items(value.items())
        if isinstance(value, set):
            return sorted(value)
        if isinstance(value, tuple | list | deque):
            if all(self._is_kept(item) for item in value):
                return [self._copy(item) for item in value]
            return self._items(enumerate(value))
        if value is None or isinstance(value, _PLAIN):
            return value
        self._objects.add(id(value))
        if isinstance(value, nn.Module):
            return self._items(value.state_dict().items())
        if _speaks_for_itself(value):
            return value.state()
        return {_ATTRIBUTES: self.attributes(value)}


class _Writer:
    """Puts saved values into their places."""

    def __init__(self, device: torch.device, forget: bool) -> None:
        self._device = device
        self._forget = forget

    def attributes(self, value: object, saved: dict[str, Any], where: str) -> None:
        present = vars(value)
        for name, item in list(present.items()):
            if isinstance(item, (*_PLAIN, Tensor)) and name not in saved:
                if not self._forget:
                    raise _misfit(f"{where}{name}", "is not in the saved state")
                delattr(value, name)
        for name, node in saved.items():
            old = present.get(name)
            new = self._written(old, node, f"{where}{name}")
            if new is not old:
                setattr(value, name, new)

    def _written(self, value: Any, saved: Any, where: str) -> Any:
        """What belongs there: `value` itself, changed in place, wherever that is possible."""
        if isinstance(value, Tensor) and isinstance(saved, Tensor):
            return self._written_tensor(value, saved, where)
        if isinstance(value, np.ndarray):
            if value.shape != tuple(saved.shape):
                raise _misfit(where, f"has shape {value.shape}, the saved {tuple(saved.shape)}")
            if value.flags.writeable:
                np.copyto(value, saved.numpy())
        elif isinstance(value, np.generic):
            return type(value)(saved)
        elif isinstance(value, torch.Generator):
            value.set_state(saved)
        elif isinstance(value, np.random.Generator):
            value.bit_generator.state = _arrays(saved)
        elif isinstance(value, dict):
            for key, node in saved.items():
                value[key] = self._written(value.get(key), node, f"{where}.{key}")
        elif isinstance(value, set):
            return set(saved)
        elif isinstance(value, tuple | list | deque):
            return self._written_sequence(value, saved, where)
        elif value is None or isinstance(value, (*_PLAIN, Tensor)):
            return self._new(saved, where)
        elif isinstance(value, nn.Module):
            value.load_state_dict(saved)
        elif _speaks_for_itself(value):
            value.set_state(saved)
        else:
            self.attributes(value, saved[_ATTRIBUTES], f"{where}.")
        return value

    def _written_tensor(self, value: Tensor, saved: Tensor, where: str) -> Tensor:
        if value.shape != saved.shape or value.dtype != saved.dtype:
            raise _misfit(
                where,
                f"has shape {tuple(value.shape)} of {value.dtype}, "
                f"the saved {tuple(saved.shape)} of {saved.dtype}",
            )
        expanded = any(s == 0 and n > 1 for s, n in zip(value.stride(), value.shape, strict=True))
        return saved.to(value.device, copy=True) if expanded else value.copy_(saved)

    def _written_sequence(self, value: Any, saved: Any, where: str) -> Any:
        present = dict(enumerate(value))
        nodes = saved if isinstance(saved, dict) else dict(enumerate(saved))
        written = {
            i: self._written(present.get(i), node, f"{where}.{i}") for i, node in nodes.items()
        }
        if isinstance(saved, dict):  # other items are constant
            written = present | written
        items = [written[i] for i in sorted(written)]
        if isinstance(value, tuple):
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        value.clear()
        value.extend(items)
        return value

    def _new(self, saved: Any, where: str) -> Any:
        """A copy of something that was not there yet when the object was built."""
        if isinstance(saved, Tensor):
            return saved.to(self._device, copy=True)
        if isinstance(saved, dict):
            if _ATTRIBUTES in saved:
                raise _misfit(where, "is an object that is not there yet")
            return {key: self._new(node, where) for key, node in saved.items()}
        if isinstance(saved, list):
            return [self._new(node, where) for node in saved]
        return saved


def _is_state(value: object) -> bool:
    if value is None or isinstance(value, (*_PLAIN, Tensor, nn.Module, dict, tuple, list, deque)):
        return True
    if isinstance(value, torch.Generator | np.random.Generator):
        return True
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    if isinstance(value, set):
        return all(isinstance(item, str) for item in value)
    if isinstance(value, PhaseTimer):
        return False
    kind = type(value)
    if kind.__module__.split(".")[0] in _FOREIGN or kind.__module__ in _CONFIGURATION:
        return False
    if dataclasses.is_dataclass(value) and kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        return False
    return _speaks_for_itself(value) or hasattr(value, "__dict__")


def _speaks_for_itself(value: object) -> bool:
    return all(callable(getattr(value, name, None)) for name in ("state", "set_state"))


def _lists(state: Any) -> Any:
    """NumPy's description of a generator, with lists instead of arrays."""
    if isinstance(state, dict):
        return {key: _lists(item) for key, item in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _arrays(item) for key, item in state.items()}
    return np.array(state, dtype=np.uint64) if isinstance(state, list) else state


def _misfit(where: str, difference: str) -> ValueError:
    return ValueError(f"the saved state does not fit: {where} {difference}")
