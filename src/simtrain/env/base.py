"""The base of the environment: what its parts and terms may use, and the state that they declare.

State is declared where it is made, by `BaseEnv.buffer` and `BaseEnv.variable`. Saving, restoring
and the reset by mask are loops over one dictionary of what was declared. A tensor with a row for
each environment that a term keeps undeclared is an error as soon as the term changes it.
"""

import pickle
import random
import types
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import mujoco
import numpy as np
import torch
from torch import Tensor

from simtrain.env.cfg import TaskCfg
from simtrain.env.control.actions import Actions
from simtrain.env.control.actuators import check_networks
from simtrain.env.control.cfg import ActionTerm
from simtrain.env.model import bytes_per_env, compile_model
from simtrain.env.names import Base, find_base, find_keyframe, initial_state
from simtrain.env.terrain import Terrain
from simtrain.errors import ConfigError, call_term
from simtrain.files import check_memory
from simtrain.sim import EngineCfg, make_engine
from simtrain.sim.engine import Engine

T = TypeVar("T")
_ARRAYS = (Tensor, np.ndarray)
_HOST = (bool, int, float, str, np.generic, torch.Generator, np.random.Generator, random.Random)
_NOT_OBJECTS = (type, types.FunctionType, types.MethodType, types.ModuleType)
_LARGE = 2**20  # larger arrays are data, bytes


class BaseEnv:
    """Simulations of a task's model, and the state of the terms."""

    def __init__(self, cfg: TaskCfg, num_envs: int, engine: EngineCfg) -> None:
        if (dtype := torch.get_default_dtype()) != torch.float32:
            advice = "call torch.set_default_dtype(torch.float32)"
            raise ConfigError(f"torch's default dtype is {dtype}, and it must be float32: {advice}")
        self.cfg, self.num_envs = cfg, num_envs
        self.device = torch.device(engine.device)
        self.model: mujoco.MjModel = compile_model(cfg)
        check_networks(cfg.actuators, self.device)
        if engine.name == "mujoco":
            check_memory(num_envs * bytes_per_env(self.model), num_envs)
        keyframe = find_keyframe(self.model, cfg.keyframe)
        room = {"max_contacts": cfg.sim.max_contacts, "max_constraints": cfg.sim.max_constraints}
        self.sim: Engine = make_engine(engine, self.model, num_envs, keyframe=keyframe, **room)
        self.physics_dt = cfg.timestep
        """Seconds of a physics step."""
        self.step_dt = cfg.timestep * cfg.decimation
        """Seconds of a control step."""
        self.max_episode_length_s = cfg.episode_length_s
        self.max_episode_length = max(1, round(cfg.episode_length_s / self.step_dt))
        """Longest episode in control steps."""
        # By name: a tensor or generator, and the value of an environment's row when its episode
        # ends, None to keep it.
        self._declared: dict[str, tuple[Any, float | None]] = {}
        self._variables: list[Tensor] = []
        self._scratch: list[Tensor] = []
        self._scope: str | None = None
        self._built = False
        self._objects: dict[str, object] = {}  # the terms by name, once they are made
        self._shared: dict[Hashable, Any] | None = None
        self._with_new_constants: Tensor | None = None
        self._records: dict[str, Tensor] = {}
        self.terrain = None if cfg.terrain is None else Terrain(cfg.terrain, self)
        """Where environments live on the terrain, if the task has one."""
        start = initial_state(self.model, cfg.keyframe)
        self.initial_qpos = torch.as_tensor(start.qpos, dtype=torch.float32, device=self.device)
        """``qpos`` that episodes start from, before events change it, ``(nq,)``."""
        self._actions = Actions(cfg, self.model, self.device)
        self.num_actions = self._actions.dim
        self.action_terms: Mapping[str, ActionTerm] = self._actions.terms
        """The terms of the actions by name, in their order."""
        self.held_joints = self._actions.held
        """Positions that servos hold joints at which no action drives, m or rad, by name."""
        self.initial_targets = self._actions.initial
        """The ``ctrl`` of actuators before the first action of an episode, ``(nu,)``."""
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

    @property
    def is_fresh(self) -> Tensor:
        """Which environments are at the first step of an episode, boolean ``(num_envs,)``."""
        return self._episode_length == 0

    @cached_property
    def base(self) -> Base:
        """Indices of the floating base in MuJoCo's fields; ConfigError if there is none."""
        return find_base(self.model)

    def bind(self, field: str) -> Tensor:
        """An MjData field, float32 ``(num_envs, ...)``, updated in place; see `Engine.bind`."""
        return self.sim.bind(field)

    def substeps(self, field: str) -> Tensor:
        """A field at each physics step of a control step; call it in a term's ``__init__``.

        Shape: ``(num_envs, decimation, ...)``, updated in place, zero at the start of an episode.
        State fields have their values after each physics step; fields that depend on accelerations,
        such as contact sensors, those in this step. Physics then runs step by step.
        """
        if field not in self._records:
            now = self.bind(field)
            rows = now.new_zeros(self.num_envs, self.cfg.decimation, *now.shape[1:])
            self._declared[f"substeps.{field}"] = (rows, 0.0)
            self._records[field] = rows
        return self._records[field]

    def set_const(self, mask: Tensor) -> None:
        """Request ``mj_setConst`` for the environments in `mask`, after all events of the step."""
        others = self._with_new_constants
        self._with_new_constants = mask if others is None or others is mask else others | mask

    def update_constants(self, *, defer: bool) -> None:
        """Recompute, in place, the constants requested by `set_const`; see `Engine.set_const`."""
        if self._with_new_constants is not None:
            self.sim.set_const(self._with_new_constants, defer=defer)
            self._with_new_constants = None

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """The value of `compute`, shared by all terms that use `key` in the same state; read-only.

        It is computed once for terminations, rewards and metrics together, and once for
        observations. Elsewhere, such as in events, it is computed at each call.
        """
        if self._shared is None:
            return compute()
        if key not in self._shared:
            self._shared[key] = compute()
        value: T = self._shared[key]
        return value

    @contextmanager
    def unchanging_state(self) -> Iterator[None]:
        """Within, state and commands do not change, and `once` keeps its values."""
        self._shared = {}
        try:
            yield
        finally:
            self._shared = None

    def buffer(
        self,
        name: str,
        shape: Sequence[int] = (),
        reset: float | None = 0.0,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor:
        """Declare state with one row per environment, ``(num_envs, *shape)``, in ``__init__``.

        It is saved and restored with the environment; change it in place. Names must be unique in a
        term. `reset` is the value at the start and when an episode ends; None for zero at the start
        and no reset.
        """
        rows = torch.full((self.num_envs, *shape), reset or 0, dtype=dtype, device=self.device)
        self.declare(name, rows, reset)
        return rows

    def scratch(self, shape: Sequence[int]) -> Tensor:
        """Memory with one row per environment, ``(num_envs, *shape)``, that is not saved.

        For values that a term computes again, in place, at every call.
        """
        rows = torch.zeros(self.num_envs, *shape, device=self.device)
        self._scratch.append(rows)
        return rows

    def variable(self, name: str, initial: Tensor) -> Tensor:
        """Declare other state that changes in training: bounds, counters, normalizers, parameters.

        It is saved and restored with the environment, and never reset. Returns `initial`, or a copy
        of it if it is not on the environment's device; change it in place.
        """
        value = initial.to(self.device)
        self.declare(name, value, None)
        self._variables.append(value)
        return value

    def variables(self) -> list[Tensor]:
        """Copies on the CPU of the tensors that `variable` declared."""
        return [value.to("cpu", copy=True) for value in self._variables]

    def set_variables(self, values: Sequence[Tensor]) -> None:
        """Copy the result of `variables` of another environment of the task, in place."""
        for variable, value in zip(self._variables, values, strict=True):
            variable.copy_(value)

    def declare(self, name: str, value: Tensor | torch.Generator, reset: float | None) -> None:
        """Declare a tensor of any layout, or a random generator; see `buffer` and `variable`."""
        if self._built and self._scope is None:
            where = "in the __init__ of a term's class"
            raise ConfigError(f"the state {name!r} is declared too late: declare it {where}")
        full = name if self._scope is None else f"{self._scope}.{name}"
        if full in self._declared:
            raise ConfigError(
                f"{full} is declared twice; give each buffer a name of its own, and make no class "
                "that keeps state twice in one term"
            )
        self._declared[full] = (value, reset)

    def declared(self, prefix: str) -> dict[str, Tensor]:
        """The declared tensors whose names have this prefix, such as ``commands.``; not copies."""
        values = ((n, v) for n, (v, _) in self._declared.items() if n.startswith(prefix))
        return {name: value for name, value in values if isinstance(value, Tensor)}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Within this context, declared names become ``<name>.<...>``."""
        self._scope = name
        try:
            yield
        finally:
            self._scope = None

    def make_term(self, name: str, make: Callable[..., Any], params: dict[str, Any]) -> Any:
        """An object of a term's class; its declared names become ``<name>.<...>``."""
        with self.scope(name):
            return call_term(name, make, self, **params)

    def _refuse_undeclared_rows(self, before: Mapping[tuple[str, str], Any]) -> None:
        """Raise ConfigError for a term with rows of environments that changed, undeclared.

        `before` are the values of `_undeclared`, each `_plain`. A size may be `num_envs` by
        coincidence: a changing tensor of other rows should be declared as well.
        """
        for (name, path), value in self._undeclared().items():
            if not isinstance(value, _ARRAYS) or self.num_envs not in value.shape:
                continue
            if before.get((name, path), now := _plain(value)) == now:
                continue
            sizes = list(value.shape)
            sizes.remove(self.num_envs)
            dtype = torch.as_tensor(value).dtype
            arguments = [f'"{path.split(".")[-1].lstrip("_")}"']
            arguments += [str(tuple(sizes))] if sizes else []
            arguments += [f"dtype={dtype}"] if dtype != torch.float32 else []
            is_rows = f"the attribute `{path}` has one row for each environment and changes"
            wanted = f"`self.{path} = env.buffer({', '.join(arguments)})`"
            raise ConfigError(f"{name}: {is_rows}, but is not declared; write {wanted}")

    def _undeclared(self) -> dict[tuple[str, str], Any]:
        """Undeclared values that terms keep, without the engine's own, by term and attribute."""
        of_engine = _leaves(vars(self.sim), set(), objects=False)
        known = {_address(value) for value, _ in self._declared.values()}
        known.update(_address(value) for _, value in of_engine if isinstance(value, _ARRAYS))
        known.update(map(_address, self._scratch))
        ids = {id(term) for term in self._objects.values()}
        return {
            (name, path): value
            for name, term in self._objects.items()
            for path, value in _leaves(term, self._own_parts() | (ids - {id(term)}))
            if _address(value) not in known
        }

    def _kept(self) -> dict[tuple[str, str], Any]:
        """The result of `_undeclared` as values that differ if the state has changed."""
        return {place: _plain(value) for place, value in self._undeclared().items()}

    def _own_parts(self) -> set[int]:
        """Objects that a term may refer to and that are no part of it."""
        return {id(self), *(id(value) for value in vars(self).values())}

    def _reset_declared(self, mask: Tensor) -> None:
        """Give the environments in `mask` the values that episodes start with, in place."""
        for rows, value in self._declared.values():
            if value is not None:
                rows.masked_fill_(mask.view(-1, *(1,) * (rows.ndim - 1)), value)

    def _declared_state(self) -> dict[str, Tensor]:
        """Copies of all that was declared, on the CPU, by name."""
        return {
            name: value.detach().to("cpu", copy=True)
            if isinstance(value, Tensor)
            else value.get_state()
            for name, (value, _) in self._declared.items()
        }

    def _set_declared_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `_declared_state`, in place; ValueError if it does not fit."""
        unfit = "the saved state does not fit"
        for name, (value, _) in self._declared.items():
            if name not in state:
                raise ValueError(f"{unfit}: {name} is not in the saved state")
            saved = state[name]
            if isinstance(value, torch.Generator):
                value.set_state(saved)
                continue
            if value.shape != saved.shape or value.dtype != saved.dtype:
                has, was = (f"{tuple(t.shape)} of {t.dtype}" for t in (value, saved))
                raise ValueError(f"{unfit}: {name} has shape {has}, the saved {was}")
            value.copy_(saved)


def host_state(term: object, env: BaseEnv) -> dict[str, Any]:
    """A term's numbers, texts and generators on the host: a CUDA graph would freeze them."""
    leaves = _leaves(term, env._own_parts())
    return {path: _plain(value) for path, value in leaves if isinstance(value, _HOST)}


def _leaves(
    value: object, seen: set[int], path: str = "", *, objects: bool = True
) -> Iterator[tuple[str, Any]]:
    """Tensors, arrays, generators, numbers and texts in containers and attributes, by path.

    Objects with ids among `seen`, which is changed in place, are left out, and the attributes of
    all objects unless `objects`.
    """
    if isinstance(value, (*_HOST, *_ARRAYS)):
        yield path, value
        return
    if value is None or isinstance(value, _NOT_OBJECTS) or id(value) in seen:
        return
    seen.add(id(value))
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple | deque | set | frozenset):
        items = enumerate(sorted(value, key=str) if isinstance(value, set | frozenset) else value)
    elif objects and hasattr(value, "__dict__"):
        items = vars(value).items()
    for key, item in list(items):
        yield from _leaves(item, seen, f"{path}.{key}" if path else str(key), objects=objects)


def _address(value: Any) -> int:
    """The memory of a tensor or array, which views of it share, or else an object's own."""
    if isinstance(value, Tensor):
        return value.untyped_storage().data_ptr()
    if not isinstance(value, np.ndarray):
        return id(value)
    while isinstance(value.base, np.ndarray):
        value = value.base
    return int(value.ctypes.data)


def _plain(value: Any) -> Any:
    """A value that differs from an earlier one if something has changed."""
    if isinstance(value, Tensor):
        return _address(value), 0 if value.is_inference() else value._version
    if isinstance(value, np.ndarray) and value.nbytes >= _LARGE:
        return _address(value)
    return pickle.dumps(value)
