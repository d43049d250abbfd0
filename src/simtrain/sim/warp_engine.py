"""The GPU engine: a thin face on MuJoCo Warp, whose arrays are PyTorch tensors without a copy.

Runs on a CUDA device, and for tests on Warp's CPU device. Physics is float32.

`forward` runs the position and velocity stages once more if anything was written or reset. MuJoCo
Warp's stages know no mask, so they run for all environments, and recompute what follows from an
unchanged state for the others. (A CUDA graph could skip them where no environment was reset, but
its conditional parts may not allocate memory, as these stages do.) Whether there is something to do
is known on the host from the calls made, so that nothing waits for the device.
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

from simtrain.sim import fields, warp_buffers
from simtrain.sim import warp_kernels as kernels
from simtrain.sim.engine import ALL, Engine, EngineCfg, Index, Overflow
from simtrain.sim.fields import ACCELERATION_FIELDS, STATE_FIELDS
from simtrain.sim.warp_graphs import WarpGraphs
from simtrain.sim.warp_model import expand_array, owner_of, put_model, rows_of, view_data
from simtrain.sim.warp_physics import Physics

_INITIAL_FIELDS = {"qpos0": "qpos", "body_pos": "mocap_pos", "body_quat": "mocap_quat"}
"""Model fields that MuJoCo's default initial state is taken from."""
_APPLIED_FIELDS = frozenset({"ctrl", "qacc_warmstart", "qfrc_applied", "xfrc_applied"})
"""State fields that no position- or velocity-dependent field follows from."""

_CONSTANTS = (
    *("actuator_acc0", "body_invweight0", "body_subtreemass", "dof_invweight0", "eq_data"),
    *("cam_mat0", "cam_pos0", "cam_poscom0", "light_dir0", "light_pos0", "light_poscom0"),
    *("tendon_invweight0", "tendon_length0"),
)
"""Model fields that `mujoco_warp.set_const` computes."""
_BOUNDS = ("geom_aabb", "geom_rbound")
"""Those that it computes from ``geom_size``; kernels are compiled anew where they are expanded."""


class WarpEngine(Engine):
    """`num_envs` simulations on a GPU; see `Engine` for the contract.

    Geoms that are fixed to the world keep the place that the shared model gives them, also when
    ``geom_pos`` or ``body_pos`` are expanded.
    """

    name = "warp"

    def __init__(
        self,
        cfg: EngineCfg,
        model: mujoco.MjModel,
        num_envs: int,
        *,
        keyframe: int | None = None,
        max_contacts: int | None = None,
        max_constraints: int | None = None,
    ) -> None:
        """See `simtrain.sim.make_engine`.

        Raises:
            ConfigError: MuJoCo Warp does not support the model or device, or memory cannot suffice.
            torch.OutOfMemoryError: the memory is too small; steps may raise it too.
        """
        self.model = copy.copy(model)
        self.num_envs = num_envs
        self.device = torch.device(cfg.device)
        if self.device == torch.device("cuda"):
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.reads_masks = self.device.type == "cpu"
        """Whether the host looks at masks, for which it would have to wait for a GPU."""
        self.graphs = WarpGraphs(self.device)
        """Runs the launches of physics, as graphs where it can."""
        with self.graphs.scope():
            self._model = put_model(self.model)
            self._model.opt.warn_overflow = 0
            self._model.opt.deterministic = cfg.deterministic
            sizes = warp_buffers.find_sizes(self.model, keyframe, max_contacts, max_constraints)
            if self.device.type == "cuda":
                free = torch.cuda.mem_get_info(self.device)[0]
                warp_buffers.check_memory(self.model, num_envs, sizes, free)
            self._sizes = sizes
            self._data = warp_buffers.make_data(self.model, num_envs, sizes)
            self._physics = Physics(self.model, self._model, self._data)
            self._mask = torch.ones(num_envs, dtype=torch.bool, device=self.device)
            self._warp_mask = wp.from_torch(self._mask)
            self.failed = torch.zeros_like(self._mask)
            self._warp_failed = wp.from_torch(self.failed)
        self._fields: dict[str, Tensor] = {}
        self._bindable: set[str] = set()
        self._expanded: dict[str, Tensor] = {}
        self._constants_before: dict[str, Tensor] = {}
        self._stale = True  # written or reset, no forward yet
        self._keyframe = keyframe
        mocap = np.argsort(self.model.body_mocapid)[self.model.nbody - self.model.nmocap :]
        self._mocap_bodies = torch.as_tensor(mocap, device=self.device)
        self._initial = self._initial_rows()
        self.reset()
        self.forward()

    def bind(self, field: str) -> Tensor:
        if field not in self._bindable:
            fields.check_bindable(self.model, field)
            self._bindable.add(field)
        return self._field(field)

    def expand(self, field: str) -> Tensor:
        if field not in self._expanded:
            with self.graphs.scope():
                rows = expand_array(self.model, self._model, field, self.num_envs)
            self._expanded[field] = rows
            self.graphs.clear()
            self.storage_version += 1
            if field in _INITIAL_FIELDS and self._keyframe is None:
                name = _INITIAL_FIELDS[field]
                self._initial[name] = torch.empty_like(self._field(name))
            self._update_initial(field)
        return self._expanded[field]

    def write(
        self, field: str, values: Tensor | float, mask: Tensor | None = None, index: Index = ALL
    ) -> None:
        if field in self._expanded:
            fields.write_rows(self._expanded[field], values, mask, index)
            self._update_initial(field)
        elif field in STATE_FIELDS:
            fields.write_rows(self._field(field), values, mask, index)
        else:
            raise fields.not_writable(field)
        if field not in _APPLIED_FIELDS:
            self._mark_stale(mask)

    def step(self, nstep: int = 1) -> None:
        self.forward()
        self._run(("step", nstep), lambda: self._step(nstep))

    def forward(self) -> None:
        if self._stale:
            self._run("forward", lambda: self._physics.refresh(sensors=True))
            self._stale = False

    def reset(self, mask: Tensor | None = None) -> None:
        self._run_masked("reset", self._reset, mask)

    def set_const(self, mask: Tensor | None = None) -> None:
        if not self._expanded:
            return
        for field in _CONSTANTS + (_BOUNDS if "geom_size" in self._expanded else ()):
            if getattr(self._model, field).size and field not in self._constants_before:
                self._constants_before[field] = torch.empty_like(self.expand(field))
        self._run_masked("set_const", self._set_const, mask)

    def get_model(self, env: int) -> mujoco.MjModel:
        model = copy.copy(self.model)
        for field, rows in self._expanded.items():
            owner, name = owner_of(model, field)
            setattr(owner, name, rows[env].cpu().numpy())
        return model

    def state(self) -> dict[str, Tensor]:
        names = sorted({*self._initial, "sensordata", *self._fields})
        state = {f"data/{field}": self._field(field).clone() for field in names}
        state |= {f"model/{field}": rows.clone() for field, rows in self._expanded.items()}
        state["touched"] = torch.tensor(self._stale)
        return state

    def set_state(self, state: dict[str, Tensor]) -> None:
        if "touched" not in state:
            raise ValueError("the saved state is of another engine; continue with that one")
        qpos, mine = tuple(state["data/qpos"].shape), tuple(self._field("qpos").shape)
        if qpos != mine:
            raise ValueError(
                f"the saved state has qpos of shape {qpos}, this engine needs {mine}: "
                f"another model or number of environments"
            )
        for field, value in fields.entries_of(state, "model"):
            self.expand(field).copy_(value)
            self._update_initial(field)
        for field in self._initial:
            self._field(field).copy_(state[f"data/{field}"])
        # What the next step builds on follows from the state; the fields that terms see are those
        # that were saved, which may be older than the state.
        self._stale = True
        self.forward()
        for field, value in fields.entries_of(state, "data"):
            self._field(field).copy_(value)
        self._stale = bool(state["touched"])

    def overflow(self) -> Overflow:
        with self.graphs.scope():
            flags = wp.to_torch(self._data.overflow)
            bits = flags.to("cpu", copy=True)
            flags.zero_()
            constraints, contacts = wp.to_torch(self._physics.peaks).tolist()
        peaks = warp_buffers.BufferSizes(-(-contacts // self.num_envs), constraints)
        return warp_buffers.read_overflow(bits, self._sizes, peaks)

    def in_torch_graph(self) -> AbstractContextManager[None]:
        return self.graphs.in_torch_graph()

    def _run(self, key: Hashable, launches: Callable[[], None]) -> None:
        # Outside a graph, a loop that ends early waits for the device in every iteration.
        self._model.opt.graph_conditional = self.graphs.conditional
        self.graphs.run(key, launches)

    def _run_masked(self, key: str, launches: Callable[[], None], mask: Tensor | None) -> None:
        """Run launches that change the state or model where `mask`, which they find in `_mask`."""
        if mask is None:
            self._mask.fill_(True)
        else:
            self._mask.copy_(mask)
        self._run(key, launches)
        self._mark_stale(mask)

    def _step(self, nstep: int) -> None:
        self._physics.step(nstep)
        d = self._data
        inputs = [d.qpos, d.qvel, d.act, float(mujoco.mjMAXVAL)]
        wp.launch(kernels.find_failed, self.num_envs, inputs, outputs=[self._warp_failed])

    def _reset(self) -> None:
        for field, initial in self._initial.items():
            _copy_rows(self._warp_mask, True, initial, self._field(field))
        sensors = self._physics.acceleration_sensors
        inputs, shape = [self._warp_mask, sensors], (self.num_envs, sensors.size)
        wp.launch(kernels.zero_rows, shape, inputs, outputs=[self._data.sensordata])

    def _set_const(self) -> None:
        for field, before in self._constants_before.items():
            wp.copy(rows_of(before), rows_of(self._expanded[field]))
        mjw.set_const(self._model, self._physics.posvel_data)
        for field, before in self._constants_before.items():
            _copy_rows(self._warp_mask, False, before, self._expanded[field])

    def _field(self, field: str) -> Tensor:
        """The view of an MjData field, bindable or not."""
        if field not in self._fields:
            self._fields[field] = view_data(self.model, self._data, field)
        return self._fields[field]

    def _initial_rows(self) -> dict[str, Tensor]:
        """Values of state fields and acceleration-dependent fields after a reset, one row each."""
        data = mujoco.MjData(self.model)
        if self._keyframe is not None:
            mujoco.mj_resetDataKeyframe(self.model, data, self._keyframe)
        rows = {}
        for field in (*STATE_FIELDS, "history", "plastic"):
            value = torch.as_tensor(np.asarray(getattr(data, field), dtype=np.float32))
            rows[field] = value.unsqueeze(0).to(self.device)
        for field in ACCELERATION_FIELDS:
            rows[field] = torch.zeros_like(self._field(field)[:1])
        return rows

    def _update_initial(self, field: str) -> None:
        """Let the default initial state follow an expanded model field, in place."""
        if self._keyframe is None and field in _INITIAL_FIELDS:
            rows = self._expanded[field]
            if field != "qpos0":
                rows = rows[:, self._mocap_bodies]
            self._initial[_INITIAL_FIELDS[field]].copy_(rows)

    def _mark_stale(self, mask: Tensor | None) -> None:
        """Note that fields derived from the state are out of date, if the mask selects any."""
        if mask is None or not self.reads_masks or mask.numpy().any():
            self._stale = True


def _copy_rows(mask: wp.array, where: bool, source: Tensor, target: Tensor) -> None:
    """Copy the rows where ``mask == where``, in place on `target`."""
    if target.numel():
        rows = rows_of(target)
        inputs = [mask, where, rows_of(source)]
        wp.launch(kernels.copy_rows, rows.shape, inputs, outputs=[rows])
