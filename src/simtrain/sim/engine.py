"""The engine contract: one batch of simulations of one MuJoCo model on one device.

  engine = make_engine(EngineCfg(), model, num_envs=256)
  qpos, ctrl = engine.bind("qpos"), engine.bind("ctrl")
  for _ in range(1000):
    ctrl.copy_(policy(qpos))
    engine.step(nstep=5)

Fields carry MuJoCo's own names and their leading axis is the environment. An engine knows no task:
no rewards, no episodes, no names of joints. This module imports neither MuJoCo nor PyTorch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import mujoco
    import torch
    from torch import Tensor

EngineName = Literal["mujoco", "warp"]
Index: TypeAlias = "slice | torch.Tensor"
"""Which entries of a field's second axis a write goes to: a slice or a LongTensor."""
ALL = slice(None)


@dataclass(frozen=True)
class EngineCfg:
    """Which engine simulates, and on what."""

    name: EngineName = "mujoco"
    """``mujoco`` is MuJoCo on CPU threads, ``warp`` MuJoCo Warp: on CUDA or, slowly, on the CPU."""
    device: torch.device | str = "cpu"
    threads: int = 0
    """Physics threads of the mujoco engine; 0 for all cores given to the process."""
    deterministic: bool = False
    """Whether warp gives the same results in every run; slower. mujoco always does."""


def choose_engine(
    name: EngineName | Literal["auto"],
    device: torch.device | str,
    threads: int = 0,
    deterministic: bool = False,
) -> EngineCfg:
    """The engine for a learner on `device`: ``auto`` takes warp on a GPU and mujoco elsewhere."""
    if name == "auto":
        name = "warp" if str(device).startswith("cuda") else "mujoco"
    # The mujoco engine's tensors live on the CPU: its threads can feed a network on a GPU.
    return EngineCfg(name, device if name == "warp" else "cpu", threads, deterministic)


@dataclass(frozen=True)
class Overflow:
    """Data dropped in `num_envs` environments since the last call, because buffers were full."""

    num_envs: int
    messages: dict[str, str]
    """Messages by the flag that enlarges a buffer, or by the kind of overflow; empty if none."""


@dataclass(frozen=True, eq=False)
class Rays:
    """Rays in every environment, in the world's frame, for `Engine.cast`; write both in place."""

    points: Tensor
    """Start points, m, ``(num_envs, rays, 3)``."""
    directions: Tensor
    """Unit vectors, ``(num_envs, rays, 3)``."""
    distances: Tensor
    """Distance to the first geom, m, -1 if there is none, ``(num_envs, rays)``; updated."""
    excluded_bodies: tuple[int, ...]
    """The body whose geoms each ray passes through, -1 for none."""
    groups: tuple[int, ...] | None = None
    """MuJoCo's groups of geoms, 0 to 5, that the rays can hit; None for all."""


class Engine(ABC):
    """A batch of `num_envs` simulations of `model` on `device`.

    No method that runs inside an environment step (`bind` of a bound field, `write`, `step`,
    `forward`, `reset`) waits for a GPU.
    """

    name: EngineName
    model: mujoco.MjModel
    """The compiled model, shared by all environments except expanded fields. Do not change it."""
    num_envs: int
    device: torch.device
    synchronous: bool = False
    """Whether the work of a call is done when it returns, or may be queued on the device."""
    storage_version: int = 0
    """Increases when arrays that a step reads are replaced; CUDA graphs of it are then invalid."""
    failed: Tensor
    """Environments that failed since their last reset: a state that is not finite (or beyond 1e10,
    as MuJoCo has it), or, on the CPU engine, anything that MuJoCo warned of. Boolean,
    ``(num_envs,)``, refreshed in place by `step`; other environments are not affected."""

    @abstractmethod
    def bind(self, field: str) -> Tensor:
        """A float32 tensor over an MjData field, in MuJoCo's shape: ``(num_envs, *field shape)``.

        The same tensor at every call, whose storage never changes: `step`, `forward` and `reset`
        refresh it in place. `ctrl` is yours to write, and `step` reads it; every other field is
        read-only, and state fields are changed with `write`. Acceleration-dependent values may be
        zero until the first `step` after the field was bound.

        Raises `ValueError` if it is not an MjData array of reals that is computed in `model`.
        """

    def bind_native(self, field: str) -> Tensor:
        """A state field as physics stores it, read-only, up to date; float64 on the CPU engine."""
        return self.bind(field)

    @abstractmethod
    def expand(self, field: str) -> Tensor:
        """Give an MjModel field per-environment values; a read-only float32 tensor of them.

        Shape ``(num_envs, *field shape)``; options are named ``opt.<name>``. `write` changes the
        values; the storage stays the same. Raises `ValueError` if the field must be shared.
        """

    @abstractmethod
    def write(
        self, field: str, values: Tensor | float, mask: Tensor | None = None, index: Index = ALL
    ) -> None:
        """Set one of `simtrain.sim.fields.STATE_FIELDS` or an expanded model field, in place.

        `values` are broadcast to the shape of ``bind(field)[:, index]``. `mask`, boolean
        ``(num_envs,)``, selects environments, None all; the others keep their values bit for bit.
        Derived fields follow at the next `forward` or `step`. Raises `ValueError` for other fields.
        """

    @abstractmethod
    def step(self, nstep: int = 1, *, refresh: bool = True, accelerations: bool = False) -> None:
        """Advance every environment by `nstep` physics steps under the present `ctrl`.

        Afterwards position- and velocity-dependent fields and sensors are those of the new state;
        acceleration-dependent ones are those of the last physics step. Without `refresh`, for a
        step that others follow at once, only state fields are sure to be, and, if `accelerations`,
        what depends on these. Refreshes `failed`. Raises `SimulationError` if MuJoCo refused to
        simulate an environment (engines on the CPU).
        """

    @abstractmethod
    def forward(self) -> None:
        """Bring position- and velocity-dependent fields and sensors up to date with the state.

        Environments not written or reset since the last `step` or `forward` keep all their values,
        and all environments those that depend on accelerations.
        """

    @abstractmethod
    def reset(self, mask: Tensor | None = None) -> None:
        """Put environments into MuJoCo's initial state or the engine's keyframe, in place.

        State fields change now, position- and velocity-dependent ones at the next `forward`, and
        acceleration-dependent ones are zero. Expanded model fields stay as they are.
        """

    @abstractmethod
    def set_const(self, mask: Tensor | None = None, *, defer: bool = False) -> None:
        """Recompute ``mj_setConst``'s constants from expanded masses, inertias, etc., in place.

        If `defer`, an engine may leave the costly part, which needs the inertia matrix, to
        `finish_const`: inverse weights, which make constraints softer or stiffer.
        """

    def finish_const(self) -> None:
        """Recompute, in place, the constants that `set_const` deferred; e.g. once per rollout."""
        return

    @abstractmethod
    def cast(self, rays: Rays) -> None:
        """Cast `rays` (``mj_ray``), and update their distances, in place.

        Rays do not hit invisible geoms. Use the same object for further casts: engines keep it.
        """

    @abstractmethod
    def get_model(self, env: int) -> mujoco.MjModel:
        """A copy of the model with the expanded fields of an environment; waits for the device."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Copies of everything that is needed to continue, bit for bit on the CPU engine."""

    @abstractmethod
    def set_state(self, state: dict[str, Tensor]) -> None:
        """Continue from the result of `state`, in place; `ValueError` if of another engine."""

    def failure_message(self) -> str:
        """The reason of the first failure of an environment since the last call."""
        return "its state is not finite"

    def overflow(self) -> Overflow | None:
        """The data dropped since the last call; None if buffers grow. Waits for the device."""
        return None

    def in_torch_graph(self) -> AbstractContextManager[object]:
        """Within, physics goes into the CUDA graph that PyTorch captures; `RuntimeError` if not.

        Yields an object that must live as long as that graph.
        """
        raise RuntimeError("physics on CPU threads cannot be part of a CUDA graph")
