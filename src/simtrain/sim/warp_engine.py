"""The GPU engine: a thin face on MuJoCo Warp, whose arrays are PyTorch tensors without a copy.

Runs on a CUDA device, and for tests on Warp's CPU device. Physics is float32.

What a physics step computes, and why that is enough, is in `simtrain.sim.warp_physics`. `forward`
runs the position and velocity stages once more if anything was written or reset. MuJoCo Warp's
stages know no mask, so they run for all environments; for those that nothing was written to, they
recompute what follows from an unchanged state. (A CUDA graph could skip them where no environment
was reset, but its conditional parts may not allocate memory, as these stages do.) Whether there is
something to do is known on the host from the calls made, so that nothing waits for the device.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from torch import Tensor

from simtrain.sim import warp_kernels as kernels
from simtrain.sim.engine import (
    ACCELERATION_FIELDS,
    STATE_FIELDS,
    Engine,
    Index,
    Overflow,
    not_writable,
    write_rows,
)
from simtrain.sim.fields import check_bindable
from simtrain.sim.probe import probe_sizes
from simtrain.sim.warp_graphs import Graphs
from simtrain.sim.warp_model import (
    bytes_per_env,
    check_memory,
    data_array,
    data_shape,
    expand_array,
    put_model,
    rows_of,
    view,
)
from simtrain.sim.warp_overflow import read_overflow
from simtrain.sim.warp_physics import Physics

_INITIAL_FIELDS = {"qpos0": "qpos", "body_pos": "mocap_pos", "body_quat": "mocap_quat"}
"""Model fields that MuJoCo's default initial state is taken from."""
_APPLIED_FIELDS = frozenset({"ctrl", "qacc_warmstart", "qfrc_applied", "xfrc_applied"})
"""State fields that no position- or velocity-dependent field follows from."""

_CONSTANTS = (
    "actuator_acc0",
    "body_invweight0",
    "body_subtreemass",
    "cam_mat0",
    "cam_pos0",
    "cam_poscom0",
    "dof_invweight0",
    "eq_data",
    "light_dir0",
    "light_pos0",
    "light_poscom0",
    "tendon_invweight0",
    "tendon_length0",
)
"""Model fields that `mujoco_warp.set_const` computes."""
_BOUNDS = ("geom_aabb", "geom_rbound")
"""Those that it computes from ``geom_size``; kernels are compiled anew where they are expanded."""

_LARGEST = float(mujoco.mjMAXVAL)
"""Beyond this MuJoCo calls positions and velocities unstable."""


class WarpEngine(Engine):
    """`num_envs` simulations on a GPU; see `Engine` for the contract.

    Fields are zero-copy views of MuJoCo Warp's arrays in MuJoCo's own shapes. Geoms that are fixed
    to the world keep the place that the shared model gives them, also when ``geom_pos`` or
    ``body_pos`` are expanded.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        num_envs: int,
        *,
        device: torch.device | str,
        keyframe: int | None = None,
        max_contacts: int | None = None,
        max_constraints: int | None = None,
        deterministic: bool = False,
    ) -> None:
        """Make the simulations and reset them.

        Args:
            model: the compiled model; the engine works on a copy.
            num_envs: number of simulations.
            device: a CUDA device, or ``"cpu"``.
            keyframe: id of the keyframe that `reset` goes to, or None for MuJoCo's default.
            max_contacts: room for contacts, and for pairs of geoms near each other, per environment
                on average; None for what a probe on the CPU finds.
            max_constraints: room for rows of constraints in each environment; None for what a
                probe finds.
            deterministic: give the same results, bit for bit, in every run; slower.

        Raises:
            ConfigError: MuJoCo Warp does not support the model or the device, or the memory is
                certainly too small for so many environments.
            torch.OutOfMemoryError: the memory is too small; steps may raise it too.
        """
        self.model = copy.copy(model)
        self.num_envs = num_envs
        self.device = torch.device(device)
        if self.device == torch.device("cuda"):
            self.device = torch.device("cuda", torch.cuda.current_device())
        self._graphs = Graphs(self.device)
        with self._graphs.scope():
            self._model = put_model(self.model)
            self._model.opt.warn_overflow = 0
            self._model.opt.deterministic = deterministic
            if max_contacts is None or max_constraints is None:
                sizes = probe_sizes(self.model, keyframe=keyframe)
                max_contacts = sizes.max_contacts if max_contacts is None else max_contacts
                max_constraints = (
                    sizes.max_constraints if max_constraints is None else max_constraints
                )
            # Without any room MuJoCo Warp skips steps whose results the integrators need.
            max_contacts, max_constraints = max(max_contacts, 1), max(max_constraints, 1)
            if self.device.type == "cuda":
                each = bytes_per_env(self.model, max_contacts, max_constraints)
                check_memory(num_envs, each, torch.cuda.mem_get_info(self.device)[0])
            self._data = mjw.make_data(
                self.model, num_envs, nconmax=max_contacts, njmax=max_constraints
            )
            self._physics = Physics(self.model, self._model, self._data)
            self._mask = torch.ones(num_envs, dtype=torch.bool, device=self.device)
            self._warp_mask = wp.from_torch(self._mask)
            self.failed = torch.zeros_like(self._mask)
            self._warp_failed = wp.from_torch(self.failed)
        self._fields: dict[str, Tensor] = {}
        self._bindable: set[str] = set()
        self._expanded: dict[str, Tensor] = {}
        self._constants_before: dict[str, Tensor] = {}
        self._touched = True
        self._keyframe = keyframe
        self._mocap_bodies = torch.as_tensor(
            np.argsort(self.model.body_mocapid)[self.model.nbody - self.model.nmocap :],
            device=self.device,
        )
        self._initial = self._initial_rows()
        self.reset()
        self.forward()

    @property
    def max_contacts(self) -> int:
        """Room for contacts, per environment on average."""
        return int(self._data.naconmax) // self.num_envs

    @property
    def generation(self) -> int:  # type: ignore[override]
        """See `Engine.generation`."""
        return self._graphs.generation

    @property
    def max_constraints(self) -> int:
        """Room for rows of constraints in each environment."""
        return int(self._data.njmax)

    def bind(self, field: str) -> Tensor:
        """See `Engine.bind`."""
        if field not in self._bindable:
            check_bindable(self.model, field)
            self._bindable.add(field)
        return self._field(field)

    def expand(self, field: str) -> Tensor:
        """See `Engine.expand`."""
        if field not in self._expanded:
            with self._graphs.scope():
                rows = expand_array(self.model, self._model, field, self.num_envs)
            self._expanded[field] = rows
            self._graphs.clear()
            if field in _INITIAL_FIELDS and self._keyframe is None:
                name = _INITIAL_FIELDS[field]
                self._initial[name] = torch.empty_like(self._field(name))
                self._follow_model(field)
        return self._expanded[field]

    def write(
        self,
        field: str,
        values: Tensor | float,
        mask: Tensor | None = None,
        index: Index = slice(None),
    ) -> None:
        """See `Engine.write`."""
        if field in self._expanded:
            target = self._expanded[field]
        elif field in STATE_FIELDS:
            target = self._field(field)
        else:
            raise not_writable(field)
        write_rows(target, values, mask, index)
        if field in self._expanded:
            self._follow_model(field)
        if field not in _APPLIED_FIELDS:
            self._touch(mask)

    def step(self, nstep: int = 1) -> None:
        """See `Engine.step`."""
        self.forward()
        self._run(("step", nstep), lambda: self._step(nstep))

    def forward(self) -> None:
        """See `Engine.forward`."""
        if self._touched:
            self._run("forward", lambda: self._physics.refresh(sensors=True))
            self._touched = False

    def reset(self, mask: Tensor | None = None) -> None:
        """See `Engine.reset`."""
        self._set_mask(mask)
        self._run("reset", self._reset)
        self._touch(mask)

    def set_const(self, mask: Tensor | None = None) -> None:
        """See `Engine.set_const`."""
        if not self._expanded:
            return
        for field in _CONSTANTS + (_BOUNDS if "geom_size" in self._expanded else ()):
            if getattr(self._model, field).size and field not in self._constants_before:
                self._constants_before[field] = torch.empty_like(self.expand(field))
        self._set_mask(mask)
        self._run("set_const", self._set_const)
        self._touch(mask)

    def overflow(self) -> Overflow:
        """See `Engine.overflow`; waits for the device."""
        with self._graphs.scope():
            flags = wp.to_torch(self._data.overflow)
            bits = flags.to("cpu", copy=True)
            flags.zero_()
            constraints, contacts = wp.to_torch(self._physics.peaks).tolist()
        return read_overflow(
            bits,
            max_contacts=self.max_contacts,
            max_constraints=self.max_constraints,
            contacts_seen=-(-contacts // self.num_envs),
            constraints_seen=constraints,
        )

    def rows(self, field: str) -> Tensor:
        """See `Engine.rows`."""
        return self._field(field)

    def model_of(self, env: int) -> mujoco.MjModel:
        """See `Engine.model_of`; waits for the device."""
        model = copy.copy(self.model)
        for field, rows in self._expanded.items():
            owner = model.opt if field.startswith("opt.") else model
            name = field.removeprefix("opt.")
            value = rows[env].cpu().numpy()
            if value.ndim:
                getattr(owner, name)[...] = value
            else:
                setattr(owner, name, value.item())
        return model

    def in_torch_graph(self) -> AbstractContextManager[None]:
        """See `Engine.in_torch_graph`."""
        return self._graphs.in_torch_graph()

    def state(self) -> dict[str, Tensor]:
        """See `Engine.state`."""
        fields = {*self._initial, "sensordata", *self._fields}
        state = {f"data/{field}": self._field(field).clone() for field in sorted(fields)}
        state |= {f"model/{field}": rows.clone() for field, rows in self._expanded.items()}
        state["touched"] = torch.tensor(self._touched)
        return state

    def set_state(self, state: dict[str, Tensor]) -> None:
        """See `Engine.set_state`."""
        if "touched" not in state:
            raise ValueError("the saved state is of another engine; continue with that one")
        qpos, mine = tuple(state["data/qpos"].shape), tuple(self._field("qpos").shape)
        if qpos != mine:
            raise ValueError(
                f"the saved state has qpos of shape {qpos}, this engine needs {mine}: "
                f"another model or number of environments"
            )
        for name, value in state.items():
            if name.startswith("model/"):
                self.expand(name.removeprefix("model/")).copy_(value)
                self._follow_model(name.removeprefix("model/"))
        for field in self._initial:
            self._field(field).copy_(state[f"data/{field}"])
        # What the next step builds on follows from the state; the fields that terms see are those
        # that were saved, which may be older than the state.
        self._touched = True
        self.forward()
        for name, value in state.items():
            if name.startswith("data/"):
                self._field(name.removeprefix("data/")).copy_(value)
        self._touched = bool(state["touched"])

    def _run(self, key: Hashable, launches: Callable[[], None]) -> None:
        # Outside a graph, a loop that ends early waits for the device in every iteration.
        self._model.opt.graph_conditional = self._graphs.conditional
        self._graphs.run(key, launches)

    def _step(self, nstep: int) -> None:
        self._physics.step(nstep)
        wp.launch(
            kernels.find_failed,
            dim=self.num_envs,
            inputs=[self._data.qpos, self._data.qvel, self._data.act, _LARGEST],
            outputs=[self._warp_failed],
        )

    def _reset(self) -> None:
        for field, initial in self._initial.items():
            _copy_rows(self._warp_mask, True, initial, self._field(field))
        wp.launch(
            kernels.zero_rows,
            dim=(self.num_envs, self._physics.late_sensors.size),
            inputs=[self._warp_mask, self._physics.late_sensors],
            outputs=[self._data.sensordata],
        )

    def _set_const(self) -> None:
        for field, before in self._constants_before.items():
            wp.copy(rows_of(before), rows_of(self._expanded[field]))
        mjw.set_const(self._model, self._physics.prompt_data)
        for field, before in self._constants_before.items():
            _copy_rows(self._warp_mask, False, before, self._expanded[field])

    def _field(self, field: str) -> Tensor:
        """The view of an MjData field, bindable or not."""
        if field not in self._fields:
            array = data_array(self._data, field)
            self._fields[field] = view(array, (self.num_envs, *data_shape(self.model, field)))
        return self._fields[field]

    def _initial_rows(self) -> dict[str, Tensor]:
        """What `reset` puts into state fields and acceleration-dependent fields, one row each."""
        data = mujoco.MjData(self.model)
        if self._keyframe is None:
            mujoco.mj_resetData(self.model, data)
        else:
            mujoco.mj_resetDataKeyframe(self.model, data, self._keyframe)
        rows = {}
        for field in (*STATE_FIELDS, "history", "plastic"):
            value = torch.as_tensor(np.asarray(getattr(data, field), dtype=np.float32))
            rows[field] = value.unsqueeze(0).to(self.device)
        for field in ACCELERATION_FIELDS:
            rows[field] = torch.zeros_like(self._field(field)[:1])
        return rows

    def _follow_model(self, field: str) -> None:
        """Let the default initial state follow an expanded model field, in place."""
        if self._keyframe is None and field in _INITIAL_FIELDS:
            rows = self._expanded[field]
            if field != "qpos0":
                rows = rows[:, self._mocap_bodies]
            self._initial[_INITIAL_FIELDS[field]].copy_(rows)

    def _set_mask(self, mask: Tensor | None) -> None:
        if mask is None:
            self._mask.fill_(True)
        else:
            self._mask.copy_(mask)

    def _touch(self, mask: Tensor | None) -> None:
        """Note that fields derived from the state are out of date, if the mask selects any."""
        if mask is None or self.device.type != "cpu" or mask.numpy().any():
            self._touched = True


def _copy_rows(mask: wp.array, where: bool, source: Tensor, target: Tensor) -> None:
    """Copy the rows where ``mask == where``, in place on `target`."""
    if target.numel():
        rows = rows_of(target)
        wp.launch(
            kernels.copy_rows,
            dim=rows.shape,
            inputs=[mask, where, rows_of(source)],
            outputs=[rows],
        )
