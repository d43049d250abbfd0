"""The base of the environment: what its parts and terms may use, and the state that they declare.

State is declared where it is made, by `BaseEnv.buffer` and `BaseEnv.variable`. Saving, restoring
and the reset by mask are loops over one dictionary of what was declared. A tensor with a row for
each environment that a term keeps undeclared is an error when the term is made.
"""

from __future__ import annotations

import random
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeGuard

import mujoco
import numpy as np
import torch
from torch import Tensor

from simtrain.env.actions import Actions
from simtrain.env.cfg import TaskCfg
from simtrain.env.model import compile_model, find_keyframe, initial_state
from simtrain.env.names import Base, find_base
from simtrain.env.randomness import forked_randomness
from simtrain.env.terrain import Terrain
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg, make_engine
from simtrain.sim.engine import Engine

_HOST = (bool, int, float, str, np.generic, torch.Generator, np.random.Generator, random.Random)
_NOT_OBJECTS = (type, types.FunctionType, types.MethodType, types.ModuleType)
_LARGE = 2**20  # larger arrays are data, bytes


class BaseEnv:
    """Simulations of a task's model, and the state of whatever runs on them."""

    def __init__(self, cfg: TaskCfg, num_envs: int, engine: EngineCfg) -> None:
        """Build the simulations."""
        self.cfg = cfg
        self.num_envs = num_envs
        self.device = torch.device(engine.device)
        self.model: mujoco.MjModel = compile_model(cfg)
        keyframe = find_keyframe(self.model, cfg.keyframe)
        self.sim: Engine = make_engine(
            engine,
            self.model,
            num_envs,
            keyframe=keyframe,
            max_contacts=cfg.sim.max_contacts,
            max_constraints=cfg.sim.max_constraints,
        )
        self.physics_dt = cfg.timestep
        """Seconds of a physics step."""
        self.step_dt = cfg.timestep * cfg.decimation
        """Seconds of a control step."""
        self.max_episode_length_s = cfg.episode_length_s
        """Longest episode in seconds."""
        self.max_episode_length = max(1, round(cfg.episode_length_s / self.step_dt))
        """Longest episode in control steps."""
        self._declared: dict[str, _Declared] = {}
        self._scope: str | None = None
        self._built = False
        self.terrain: Terrain | None = None
        """Where environments live on the terrain, if the task has one."""
        if cfg.terrain is not None:
            self.terrain = Terrain(cfg.terrain, self.model, num_envs, self.device)
            self.variable("terrain.levels", self.terrain.levels)
            self.variable("terrain.origins", self.terrain.origins)
        start = initial_state(self.model, keyframe)
        self.initial_qpos = torch.as_tensor(start.qpos, dtype=torch.float32, device=self.device)
        """``qpos`` that episodes start from, before events change it, ``(nq,)``."""
        self._actions = Actions(cfg.actions, self.model, start, self.device)
        self.num_actions = self._actions.dim
        for name, term in self._actions.terms.items():
            self._scope = f"actions.{name}"
            term.declare(self)
        self._scope = None
        # Its reset comes after that of all else: events may ask how long the episode was.
        self._episode_length = self.buffer("episode_length", reset=None, dtype=torch.long)
        self.steps = self.variable("steps", torch.zeros((), dtype=torch.long))
        """Control steps since the environment was built, a long scalar on the device."""
        self.actions = self.buffer("actions", (self.num_actions,))
        """The latest actions as the policy gave them, ``(num_envs, num_actions)``."""
        self.previous_actions = self.buffer("previous_actions", (self.num_actions,))
        """The actions one step before, zero at the start of an episode."""

    @property
    def episode_length_buf(self) -> Tensor:
        """Steps into each environment's episode, long, ``(num_envs,)``."""
        return self._episode_length

    @episode_length_buf.setter
    def episode_length_buf(self, value: Tensor) -> None:
        self._episode_length.copy_(value)

    @cached_property
    def base(self) -> Base:
        """Where the floating base is found in MuJoCo's fields; ConfigError if there is none."""
        return find_base(self.model)

    def bind(self, field: str) -> Tensor:
        """An MjData field, float32 ``(num_envs, ...)``, refreshed in place; see `Engine.bind`."""
        return self.sim.bind(field)

    def buffer(
        self,
        name: str,
        shape: Sequence[int] = (),
        reset: float | None = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Declare state with a row for each environment; for the ``__init__`` of a term's class.

        It is saved and restored with the environment; change it in place.

        Args:
            name: a name that the term uses once.
            shape: the shape of an environment's row.
            reset: the value at the start, and again wherever an episode ends; None for zero at the
                start and no reset.
            dtype: the type of its numbers.

        Returns:
            a tensor ``(num_envs, *shape)``, whose storage stays the same.
        """
        size = (self.num_envs, *shape)
        rows = torch.full(size, reset or 0, dtype=dtype, device=self.device)
        self.declare(name, rows, reset)
        return rows

    def variable(self, name: str, initial: Tensor) -> Tensor:
        """Declare other state that changes in training: bounds, counters, normalizers, parameters.

        It is saved and restored with the environment, and never reset. Change it in place.

        Args:
            name: a name that the term uses once.
            initial: the tensor to keep, of any shape.

        Returns:
            `initial` itself if it is on the environment's device, else a copy there.
        """
        value = initial.to(self.device)
        self.declare(name, value, None)
        return value

    def declare(self, name: str, value: Tensor | torch.Generator, reset: float | None) -> None:
        """Declare a tensor of any layout, or a random generator; see `buffer` and `variable`."""
        if self._built and self._scope is None:
            raise ConfigError(
                f"the state {name!r} is declared too late: declare it in the __init__ of a term's "
                "class"
            )
        full = name if self._scope is None else f"{self._scope}.{name}"
        if full in self._declared:
            raise ConfigError(f"{full} is declared twice; give each buffer a name of its own")
        self._declared[full] = _Declared(value, reset)

    def make_term(self, name: str, make: Callable[..., Any], params: dict[str, Any]) -> Any:
        """An object of a term's class; what it declares is called ``<name>.<...>``.

        Raises:
            ConfigError: it keeps a row for each environment without having declared it.
        """
        self._scope = name
        try:
            term = make(self, **params)
        finally:
            self._scope = None
        kept = self._undeclared(term)
        if any(self.num_envs in value.shape for value in kept.values()):
            self._refuse_rows(name, kept, make, params)
        return term

    def _undeclared(
        self, term: object, others: Collection[int] = ()
    ) -> dict[str, Tensor | np.ndarray]:
        """The tensors and arrays below `term` that are neither declared nor the engine's own."""
        known = {_address(d.value) for d in self._declared.values() if isinstance(d.value, Tensor)}
        of_engine = _leaves(vars(self.sim), set(), objects=False)
        known |= {_address(value) for _, value in of_engine if _is_array(value)}
        return {
            path: value
            for path, value in _leaves(term, self._own_parts().union(others))
            if _is_array(value) and _address(value) not in known
        }

    def _kept(self, terms: Mapping[str, object]) -> dict[str, dict[str, Any]]:
        """What each term keeps undeclared, by attribute: values that differ if it has changed."""
        others = {id(term) for term in terms.values()}
        kept: dict[str, dict[str, Any]] = {}
        for name, term in terms.items():
            arrays = self._undeclared(term, others - {id(term)})
            kept[name] = {path: _plain(value) for path, value in arrays.items()}
            kept[name] |= host_state(term, self, others - {id(term)})
        return kept

    def _own_parts(self) -> set[int]:
        """Objects that a term may refer to and that are no part of it."""
        return {id(self), *(id(value) for value in vars(self).values())}

    def _refuse_rows(
        self,
        name: str,
        kept: Mapping[str, Tensor | np.ndarray],
        make: Callable[..., Any],
        params: dict[str, Any],
    ) -> None:
        """Raise ConfigError for what grows with the number of environments.

        A size may be `num_envs` by coincidence. So the term is made once more for one environment
        more, without trace.
        """
        with forked_randomness(0):
            try:
                larger = make(_LargerEnv(self), **params)
            except Exception:  # noqa: BLE001 - whatever a user's class raises
                return  # what cannot be compared is not refused
        grown = dict(_leaves(larger, self._own_parts()))
        for path, value in kept.items():
            other = grown.get(path)
            if not _is_array(other) or other.shape == value.shape:
                continue
            sizes = list(value.shape)
            rows = next(i for i, size in enumerate(other.shape) if size != sizes[i])
            del sizes[rows]
            arguments = [repr(path.split(".")[-1].lstrip("_")).replace("'", '"')]
            if sizes:
                arguments.append(str(tuple(sizes)))
            dtype = torch.as_tensor(value).dtype
            if dtype != torch.float32:
                arguments.append(f"dtype={dtype}")
            raise ConfigError(
                f"{name}: the attribute `{path}` has one row for each environment and is not "
                f"declared; write `self.{path} = env.buffer({', '.join(arguments)})`"
            )

    def _reset_declared(self, mask: Tensor) -> None:
        """Give the environments in `mask` the values that episodes start with, in place."""
        for declared in self._declared.values():
            if declared.reset is not None:
                rows = declared.value
                rows.masked_fill_(mask.view(-1, *(1,) * (rows.ndim - 1)), declared.reset)

    def _declared_state(self) -> dict[str, Tensor]:
        """Copies of all that was declared, on the CPU, by name."""
        return {
            name: declared.value.detach().to("cpu", copy=True)
            if isinstance(declared.value, Tensor)
            else declared.value.get_state()
            for name, declared in self._declared.items()
        }

    def _set_declared_state(self, state: Mapping[str, Any]) -> None:
        """Put back what `_declared_state` returned, in place; ValueError if it does not fit."""
        for name, declared in self._declared.items():
            if name not in state:
                raise ValueError(f"the saved state does not fit: {name} is not in the saved state")
            value, saved = declared.value, state[name]
            if isinstance(value, torch.Generator):
                value.set_state(saved)
                continue
            if value.shape != saved.shape or value.dtype != saved.dtype:
                raise ValueError(
                    f"the saved state does not fit: {name} has shape {tuple(value.shape)} of "
                    f"{value.dtype}, the saved {tuple(saved.shape)} of {saved.dtype}"
                )
            value.copy_(saved)


@dataclass(frozen=True)
class _Declared:
    value: Any
    """A tensor or a torch.Generator."""
    reset: float | None
    """The value of an environment's row when its episode ends; None to keep it."""


class _LargerEnv:
    """An environment as terms see it when they are made, with one row more."""

    def __init__(self, env: BaseEnv) -> None:
        self._env = env
        self.num_envs = env.num_envs + 1

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._env, name)
        rows = [d.value for d in self._env._declared.values()]
        return self._larger(value) if any(value is row for row in rows) else value

    def bind(self, field: str) -> Tensor:
        return self._larger(self._env.bind(field))

    def declare(self, name: str, value: Any, reset: float | None) -> None:
        """Nothing is kept of what is made here."""

    buffer = BaseEnv.buffer
    variable = BaseEnv.variable

    def _larger(self, value: Tensor) -> Tensor:
        return torch.cat((value, value[:1])) if value.shape[:1] == (self._env.num_envs,) else value


def host_state(term: object, env: BaseEnv, others: Collection[int] = ()) -> dict[str, Any]:
    """The numbers, texts and random generators that a term keeps on the host, by attribute.

    A CUDA graph would freeze them. Objects with ids among `others` are left out.
    """
    return {
        path: _plain(value)
        for path, value in _leaves(term, env._own_parts().union(others))
        if isinstance(value, _HOST)
    }


def _leaves(
    value: object, seen: set[int], path: str = "", *, objects: bool = True
) -> Iterator[tuple[str, Any]]:
    """Tensors, arrays, generators, numbers and texts in containers and attributes, by path.

    Args:
        value: where to begin.
        seen: ids of objects that are left out; changed in place.
        path: where `value` stands.
        objects: whether to look into the attributes of objects.
    """
    if isinstance(value, _HOST) or _is_array(value):
        yield path, value
        return
    if value is None or isinstance(value, _NOT_OBJECTS) or id(value) in seen:
        return
    seen.add(id(value))
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, Mapping):
        items = iter(list(value.items()))
    elif isinstance(value, list | tuple | deque):
        items = enumerate(list(value))
    elif isinstance(value, set | frozenset):
        items = enumerate(sorted(value, key=str))
    elif objects and hasattr(value, "__dict__"):
        items = iter(list(vars(value).items()))
    for key, item in items:
        yield from _leaves(item, seen, f"{path}.{key}" if path else str(key), objects=objects)


def _is_array(value: object) -> TypeGuard[Tensor | np.ndarray]:
    return isinstance(value, Tensor | np.ndarray)


def _address(value: Tensor | np.ndarray) -> int:
    """The memory that a tensor or array looks at, which views of it share."""
    if isinstance(value, Tensor):
        return value.untyped_storage().data_ptr()
    base = value
    while isinstance(base.base, np.ndarray):
        base = base.base
    return int(base.__array_interface__["data"][0])


def _plain(value: Any) -> Any:
    """A value that differs from an earlier one if something has changed."""
    if isinstance(value, Tensor):
        return _address(value), 0 if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return _address(value), hash(value.tobytes()) if value.nbytes < _LARGE else 0
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().tolist())
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    if isinstance(value, random.Random):
        return value.getstate()
    return value if value == value else str(value)  # NaN differs from itself
