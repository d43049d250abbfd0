"""The device ``cuda:1`` without a GPU: PyTorch's fake tensors, which have all but values.

Within `fake_cuda`, environments and networks run on tensors that know their shape, type and device
and hold no numbers. Operations find what a GPU would find (tensors of two devices) and what it
would wait for (a number read, a branch on a tensor, a shape that depends on values).
`NoHostTraffic` finds copies between host and device; `LaunchCounter` counts the kernels that a GPU
would launch.
"""

import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import CodeType, FrameType
from typing import Any
from unittest import mock

import mujoco
import numpy as np
import torch
from rsl_rl.models import MLPModel
from tensordict import TensorDict
from torch import Tensor
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from simtrain.algorithms.cfg import PpoCfg
from simtrain.algorithms.ppo import PPO
from simtrain.algorithms.symmetry import MirrorMap, MirrorMaps
from simtrain.env.cfg import TaskCfg
from simtrain.env.commands import Commands
from simtrain.env.control.actions import Actions
from simtrain.env.env import Env
from simtrain.env.nan_guard import NanGuard
from simtrain.env.observations import Observations
from simtrain.env.terms import Curricula, Episodes, Events, Metrics, Rewards, Terminations
from simtrain.errors import call_term
from simtrain.launch.rank import Rank
from simtrain.sim import EngineCfg
from simtrain.sim.engine import ALL, Engine, Index, Rays
from simtrain.sim.fields import STATE_FIELDS, check_bindable, not_writable, write_rows
from simtrain.training.reflection import mirror_maps

DEVICE = torch.device("cuda", 1)
"""Not the first, so that ``cuda`` without an index is another device."""


class FakeEngine(Engine):
    """What a task sees of the GPU engine, without physics: it does with PyTorch what that does."""

    name = "warp"

    def __init__(self, model: mujoco.MjModel, num_envs: int, device: torch.device | str) -> None:
        self.model, self.num_envs, self.device = model, num_envs, torch.device(device)
        self.failed = torch.zeros(num_envs, dtype=torch.bool, device=device)
        self._start = mujoco.MjData(model)
        self._mask = torch.zeros_like(self.failed)
        self._fields: dict[str, Tensor] = {}
        self._expanded: dict[str, Tensor] = {}

    def bind(self, field: str) -> Tensor:
        if field not in self._fields:
            check_bindable(self.model, field)
            self._fields[field] = self._rows(self._start, field)
        return self._fields[field]

    def expand(self, field: str) -> Tensor:
        if field not in self._expanded:
            self._expanded[field] = self._rows(self.model, field)
        return self._expanded[field]

    def write(
        self, field: str, values: Tensor | float, mask: Tensor | None = None, index: Index = ALL
    ) -> None:
        if field in self._expanded:
            write_rows(self._expanded[field], values, mask, index)
        elif field in STATE_FIELDS:
            write_rows(self.bind(field), values, mask, index)
        else:
            raise not_writable(field)

    def reset(self, mask: Tensor | None = None) -> None:
        if mask is None:
            self._mask.fill_(True)
        else:
            self._mask.copy_(mask)

    def set_const(self, mask: Tensor | None = None, *, defer: bool = False) -> None:
        self.reset(mask)

    def cast(self, rays: Rays) -> None:
        torch.sum(rays.points + rays.directions, dim=2, out=rays.distances)

    def step(self, nstep: int = 1, *, refresh: bool = True, accelerations: bool = False) -> None:
        """Change nothing."""

    def forward(self) -> None:
        """Change nothing."""

    def get_model(self, env: int) -> mujoco.MjModel:
        return self.model

    def state(self) -> dict[str, Tensor]:
        return {field: rows.clone() for field, rows in self._fields.items()}

    def set_state(self, state: dict[str, Tensor]) -> None:
        for field, rows in state.items():
            self.bind(field).copy_(rows)

    def _rows(self, owner: Any, field: str) -> Tensor:
        for part in field.split("."):
            owner = getattr(owner, part)
        return torch.zeros(self.num_envs, *np.shape(owner), device=self.device)


@contextmanager
def fake_cuda() -> Iterator[None]:
    """Within, tensors are fake and engines are `FakeEngine`."""

    def make_engine(cfg: EngineCfg, model: mujoco.MjModel, num_envs: int, **_: Any) -> Engine:
        return FakeEngine(model, num_envs, cfg.device)

    def network_on_device(*args: Any, **kwargs: Any) -> MLPModel:
        with torch.device(DEVICE):  # fake parameters cannot be moved
            network = MLPModel(*args, **kwargs)
        network.to = lambda device: network
        return network

    with (
        warnings.catch_warnings(),
        mock.patch("simtrain.env.base.make_engine", make_engine),
        mock.patch("simtrain.algorithms.networks.MLPModel", network_on_device),
        mock.patch("simtrain.training.evaluator.forked_randomness", return_value=nullcontext()),
        # Building an environment computes with numbers of the host, which are kept.
        mock.patch.object(fake_tensor, "CONSTANT_NUMEL_LIMIT", 2**20),
        fake_tensor.FakeTensorMode(allow_non_fake_inputs=False),
    ):
        # Environments compare the addresses of what terms keep.
        warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor")
        yield


def fake_env(cfg: TaskCfg, num_envs: int = 16, **more: Any) -> Env:
    """An environment on `DEVICE`; within `fake_cuda`."""
    return Env(cfg, num_envs, EngineCfg("warp", DEVICE), **more)


def fake_ppo(cfg: PpoCfg, env: Env, num_steps_per_env: int = 4) -> PPO:
    """PPO on `DEVICE`, whose Adam looks once at its learning rate; within `fake_cuda`."""
    rank = Rank(0, 0, 1, DEVICE, seed=0, threads=1)
    mirror = fake_mirror(env) if cfg.symmetry.is_used else None
    obs = env.get_observations()
    with mock.patch.object(Tensor, "__bool__", return_value=True):
        return PPO(cfg, obs, env.num_actions, num_steps_per_env, rank, mirror=mirror)


def fake_mirror(env: Env) -> MirrorMaps:
    """How a task is reflected, worked out with numbers and then put on `DEVICE`."""
    with fake_tensor.unset_fake_temporarily():
        found = mirror_maps(env, torch.device("cpu"))

    def put(there: MirrorMap) -> MirrorMap:
        numbers = (tensor.tolist() for tensor in (there.index, there.sign))
        return MirrorMap(*(torch.tensor(each, device=DEVICE) for each in numbers))

    groups = {name: put(group) for name, group in found.observations.items()}
    return MirrorMaps(groups, put(found.actions))


def tensors_elsewhere(value: object, path: str) -> list[str]:
    """Where `value`, an object of simtrain or rsl_rl, keeps tensors that are not on `DEVICE`."""
    return sorted({at for at, tensor in _tensors(value, path, set()) if tensor.device != DEVICE})


def _tensors(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    if id(value) in seen or isinstance(value, type):
        return
    seen.add(id(value))
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping | TensorDict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    elif type(value).__module__.split(".")[0] in ("simtrain", "simtrain_tasks", "rsl_rl", "torch"):
        items = getattr(value, "__dict__", {}).items()
    for key, item in list(items):
        yield from _tensors(item, f"{path}.{key}", seen)


class HostTrafficError(RuntimeError):
    """An operation within a step moves data between host and device."""


class NoHostTraffic(TorchDispatchMode):
    """Within, operations that move data between host and device raise `HostTrafficError`.

    A scalar of the host that a kernel takes as its argument moves nothing.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        result = _call(func, args, kwargs)
        made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
        copies = func.overloadpacket.__name__ in ("_to_copy", "copy_", "lift_fresh_copy")
        tensors = [t for t in given + made if copies or t.ndim or t.device != _HOST]
        places = {str(t.device) for t in tensors}
        if len(places) > 1:
            raise HostTrafficError(f"{func} moves data between {' and '.join(sorted(places))}")
        return result


class LaunchCounter(TorchDispatchMode):
    """Counts the kernels that operations launch, by the part of an environment step that they are.

    Views, and tensors that are made without values or without elements, launch none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.launches: Counter[tuple[str, str]] = Counter()
        """By part of the step, and term or, outside of terms, the part again."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "aten":
            # In inference mode an operation that consists of others arrives whole.
            with self:
                if (result := func.decompose(*args, **kwargs)) is not NotImplemented:
                    return result
        result = _call(func, args, kwargs)
        if any(t.numel() for t in tree_leaves(result) if isinstance(t, Tensor)) and _launches(func):
            self.launches[_origin(sys._getframe(1))] += 1
        return result

    def by_part(self) -> Counter[str]:
        """The launches of each part of a step."""
        parts: Counter[str] = Counter()
        for (part, _), count in self.launches.items():
            parts[part] += count
        return parts


_HOST = torch.device("cpu")
_FUSED_ADAM = ("_fused_adam_", "_fused_adamw_")
_PARTS: dict[CodeType, str] = {
    Actions.apply.__code__: "actions",
    NanGuard.record.__code__: "failures",
    NanGuard.check.__code__: "failures",
    Terminations.compute.__code__: "terminations",
    Rewards.compute.__code__: "rewards",
    Metrics.compute.__code__: "metrics",
    Episodes.record.__code__: "episodes",
    Curricula.compute.__code__: "curricula",
    Events.reset.__code__: "reset events",
    Env._reset.__code__: "resets",
    Commands.compute.__code__: "commands",
    Events.step.__code__: "interval events",
    Observations.compute.__code__: "observations",
    Env.step_in_place.__code__: "step",
}


def _call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if func.overloadpacket.__name__ in _FUSED_ADAM:  # it cannot be faked, and returns nothing
        return None
    return func(*args, **kwargs)


def _launches(func: Any) -> bool:
    """Whether an operation computes something: it is no view, and does not only allocate."""
    returned = [result.alias_info for result in func._schema.returns]
    is_view = any(alias is not None and not alias.is_write for alias in returned)
    name = func.overloadpacket.__name__
    return not is_view and "empty" not in name and name not in ("detach", "_unsafe_view")


def _origin(frame: FrameType | None) -> tuple[str, str]:
    """The part of a step that runs in `frame`, and the term, or the part again."""
    term = None
    while frame is not None:
        if frame.f_code is call_term.__code__:
            term = term or frame.f_locals["name"]
        if (part := _PARTS.get(frame.f_code)) is not None:
            return part, term or part
        frame = frame.f_back
    return "other", term or "other"
