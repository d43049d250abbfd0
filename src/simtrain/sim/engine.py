"""The engine contract: one batch of simulations of one MuJoCo model on one device.

  engine = make_engine(EngineCfg(), model, num_envs=256)
  qpos, ctrl = engine.bind("qpos"), engine.bind("ctrl")
  for _ in range(1000):
    ctrl.copy_(policy(qpos))
    engine.step(nstep=5)

Fields carry MuJoCo's own names and their leading axis is the environment. An engine knows no task:
no rewards, no episodes, no names of joints.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import mujoco
    from torch import Tensor

Index = slice | torch.Tensor
"""Which entries of a field's second axis a write goes to: a slice or a LongTensor."""

STATE_FIELDS = (
    "time",
    "qpos",
    "qvel",
    "act",
    "qacc_warmstart",
    "ctrl",
    "qfrc_applied",
    "xfrc_applied",
    "mocap_pos",
    "mocap_quat",
)
"""The fields that `Engine.write` accepts besides expanded model fields."""

ACCELERATION_FIELDS = frozenset(
    {
        "act_dot",
        "actuator_force",
        "cacc",
        "cfrc_ext",
        "cfrc_int",
        "qacc",
        "qacc_smooth",
        "qfrc_actuator",
        "qfrc_constraint",
        "qfrc_smooth",
    }
)
"""Derived fields that depend on accelerations: those of the last substep, and zero after a reset.

Sensors are split the same way by ``model.sensor_needstage``.
"""


@dataclass(frozen=True)
class Overflow:
    """Whether contacts or constraints were dropped because their buffers were full."""

    num_envs: int
    """Environments in which something was dropped since this was last asked."""
    contacts: bool
    """Whether contacts were dropped."""
    constraints: bool
    """Whether rows of constraints were dropped."""
    max_contacts: int
    """Room for contacts, per environment on average."""
    max_constraints: int
    """Room for rows of constraints in each environment."""
    contacts_seen: int
    """The most contacts that were wanted so far, per environment on average."""
    constraints_seen: int
    """The most rows of constraints that an environment wanted so far."""
    others: dict[str, str] = field(default_factory=dict)
    """What else was dropped, by what it concerns: with what mends it, which is no flag."""

    def messages(self) -> dict[str, str]:
        """By the flag that mends it, or what it concerns, what was dropped; empty if nothing."""
        found = {
            what: f"{text} (in {self.num_envs} environments)" for what, text in self.others.items()
        }
        for what, dropped, flag, room, seen in (
            (
                "contacts",
                self.contacts,
                "--env.sim.max-contacts",
                self.max_contacts,
                self.contacts_seen,
            ),
            (
                "rows of constraints",
                self.constraints,
                "--env.sim.max-constraints",
                self.max_constraints,
                self.constraints_seen,
            ),
        ):
            if dropped:
                found[flag] = (
                    f"{what} were dropped in {self.num_envs} environments: there is room for "
                    f"{room} in each, and {seen} were wanted; "
                    f"use {flag} {max(room, seen) * 3 // 2 + 1}"
                )
        return found


class Engine(ABC):
    """A batch of `num_envs` simulations of `model` on `device`.

    No method that runs inside an environment step (`bind` of a bound field, `write`, `step`,
    `forward`, `reset`) waits for a GPU.
    """

    model: mujoco.MjModel
    """The compiled model, shared by all environments but for its expanded fields. Do not change."""
    num_envs: int
    """Number of simulations."""
    device: torch.device
    """Where the tensors live."""
    synchronous: bool = False
    """Whether the results of a call are there when it returns, and may be branched on."""
    generation: int = 0
    """Changes when arrays that a step reads are replaced, so that CUDA graphs of it are void."""
    failed: Tensor
    """Environments whose simulation has failed since their last reset: a state that is not finite
    (or beyond 1e10, as MuJoCo has it), or, on the CPU engine, anything that MuJoCo warned of.
    Boolean, ``(num_envs,)``, refreshed in place by `step`. Until it is reset, such an environment
    simulates something, but not its task; the others are not affected."""

    @abstractmethod
    def bind(self, field: str) -> Tensor:
        """A float32 tensor over an MjData field, shape ``(num_envs, *field shape)``.

        Every array of real numbers that MjData has under this name, in MuJoCo's own shape; integers
        and booleans are refused. The same tensor at every call, whose storage never changes:
        `step`, `forward` and `reset` refresh it in place. `ctrl` is yours to write, and `step`
        reads it; every other field is read-only, and state fields are changed with `write`.
        Acceleration-dependent values may be zero until the first `step` after the field was bound.

        Raises:
            ValueError: `field` is not an MjData array that this engine can bind, or one that
                MuJoCo does not compute in this model (``cfrc_ext`` without a sensor that needs it).
        """

    @abstractmethod
    def expand(self, field: str) -> Tensor:
        """Give an MjModel field per-environment values; a read-only float32 tensor of them.

        Shape ``(num_envs, *field shape)``; options are named ``opt.<name>``. Change the values with
        `write`. The storage stays the same from the first call on.

        Raises:
            ValueError: `field` is not an MjModel array that can differ between environments.
        """

    @abstractmethod
    def write(
        self,
        field: str,
        values: Tensor | float,
        mask: Tensor | None = None,
        index: Index = slice(None),
    ) -> None:
        """Set a state field or an expanded model field, in place.

        Args:
            field: one of `STATE_FIELDS`, or a model field given to `expand` before.
            values: broadcast to the shape of ``bind(field)[:, index]``.
            mask: boolean, ``(num_envs,)``: the environments to change; None for all. The others
                keep their values bit for bit.
            index: entries of the second axis to change.

        Fields derived from what was written follow at the next `forward` or `step`.

        Raises:
            ValueError: `field` is neither a state field nor an expanded model field.
        """

    @abstractmethod
    def step(self, nstep: int = 1) -> None:
        """Advance every environment by `nstep` physics steps under the present `ctrl`.

        Afterwards position- and velocity-dependent fields and sensors are those of the new state;
        acceleration-dependent ones (`ACCELERATION_FIELDS`) are those of the last physics step.
        `failed` says where this went wrong.

        Raises:
            SimulationError: MuJoCo refused to simulate an environment (engines on the CPU).
        """

    @abstractmethod
    def forward(self) -> None:
        """Bring position- and velocity-dependent fields and sensors up to date with the state.

        Only environments written or reset since the last `step` or `forward` are affected; for the
        others this changes nothing. Acceleration-dependent fields keep their values.
        """

    @abstractmethod
    def reset(self, mask: Tensor | None = None) -> None:
        """Put environments back into the initial state, in place; None for all.

        The initial state is MuJoCo's default or the keyframe that the engine was made with. State
        fields change now, position- and velocity-dependent ones at the next `forward`, and
        acceleration-dependent ones are zero. Expanded model fields stay as they are.
        """

    @abstractmethod
    def set_const(self, mask: Tensor | None = None) -> None:
        """Recompute the constants that follow from expanded fields (``mj_setConst``).

        Needed after writing body masses, inertias or other inputs of MuJoCo's ``mj_setConst``.
        """

    def overflow(self) -> Overflow | None:
        """What did not fit since this was last asked; None where buffers grow as needed.

        Waits for the device: for once an iteration, not for once a step.
        """
        return None

    @abstractmethod
    def rows(self, field: str) -> Tensor:
        """What physics itself computes with: a state field, ``(num_envs, ...)``, always up to date.

        Read-only; float64 on the CPU engine.
        """

    @abstractmethod
    def model_of(self, env: int) -> mujoco.MjModel:
        """A copy of the model with the expanded fields of an environment; waits for the device."""

    def in_torch_graph(self) -> AbstractContextManager[None]:
        """Within, what this launches becomes part of the CUDA graph that PyTorch captures.

        Raises:
            RuntimeError: it cannot.
        """
        raise RuntimeError("physics on CPU threads cannot be part of a CUDA graph")

    def complaint(self) -> str:
        """What was the matter with the first environment that failed since this was last asked."""
        return "its state is not finite"

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Copies of everything needed to continue: simulations, bound and expanded fields.

        On the CPU engine continuing from it is exact to the bit.
        """

    @abstractmethod
    def set_state(self, state: dict[str, Tensor]) -> None:
        """Continue from what `state` returned, in place.

        Raises:
            ValueError: it is the state of another model, number of environments or engine.
        """


def not_writable(field: str) -> ValueError:
    """What `Engine.write` raises for a field that is neither state nor expanded."""
    return ValueError(
        f"{field!r} cannot be written: it is neither a state field ({', '.join(STATE_FIELDS)}) nor "
        f"an expanded model field; call expand({field!r}) first if it is a model field"
    )


def accelerates(model: mujoco.MjModel) -> Tensor:
    """Which entries of ``sensordata`` depend on accelerations; boolean, ``(nsensordata,)``."""
    import mujoco

    acceleration = torch.zeros(model.nsensordata, dtype=torch.bool)
    for i in range(model.nsensor):
        if model.sensor_needstage[i] == mujoco.mjtStage.mjSTAGE_ACC.value:
            start = int(model.sensor_adr[i])
            acceleration[start : start + int(model.sensor_dim[i])] = True
    return acceleration


def write_rows(target: Tensor, values: Tensor | float, mask: Tensor | None, index: Index) -> None:
    """Write `values` into ``target[:, index]`` where `mask`, in place; see `Engine.write`."""
    everything = isinstance(index, slice) and index == slice(None)
    part = target if everything else target[:, index]
    if not isinstance(values, torch.Tensor):
        values = torch.full((), values, dtype=target.dtype, device=target.device)
    values = values.to(target.dtype)
    if mask is not None:
        values = torch.where(mask.view(-1, *(1,) * (part.ndim - 1)), values, part)
    if isinstance(index, slice):
        part.copy_(values)
    else:
        target[:, index] = values.expand_as(part)
