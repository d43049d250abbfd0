"""The GPU engine: a thin face on MuJoCo Warp, whose arrays are PyTorch tensors without a copy.

Runs on a CUDA device, and for tests on Warp's CPU device. Physics is float32.

`forward` runs the position and velocity stages once more if anything was written or reset: for all
environments, as they know no mask. (A CUDA graph could skip them, but its conditional parts may not
allocate memory, as they do.) The host knows from the calls made, and waits for nothing.
"""

import copy
import dataclasses
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain

import mujoco
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from torch import Tensor

from simtrain.sim import fields, warp_model
from simtrain.sim import warp_kernels as kernels
from simtrain.sim.engine import ALL, Engine, EngineCfg, Index, Overflow, Rays
from simtrain.sim.warp_compile import load_kernels
from simtrain.sim.warp_graphs import WarpGraphs
from simtrain.sim.warp_model import RowCopies

_INITIAL_FIELDS = {"qpos0": "qpos", "body_pos": "mocap_pos", "body_quat": "mocap_quat"}
"""Model fields that MuJoCo's default initial state is taken from."""
_GROUP = mjw.SetConstGroup
_CONSTANTS = {
    _GROUP.FIXED: ("body_subtreemass",),
    _GROUP.KIN0: (
        *("cam_mat0", "cam_pos0", "cam_poscom0", "light_dir0", "light_pos0", "light_poscom0"),
        *("eq_data", "tendon_length0"),
    ),
    _GROUP.INERT0: ("actuator_acc0", "body_invweight0", "dof_invweight0", "tendon_invweight0"),
}
"""Model fields that `mujoco_warp.set_const` computes, by its groups."""
_BOUNDS = ("geom_aabb", "geom_rbound")
"""Fields that it computes from ``geom_size``; kernels are compiled anew where they are expanded."""
_KINEMATIC = {
    *("qpos0", "body_pos", "body_quat", "jnt_pos", "jnt_axis", "site_pos", "site_quat"),
    *("cam_pos", "cam_quat", "light_pos", "light_dir"),
}
_WRAPPED = {"geom_pos", "geom_quat", "geom_size"}
"""Fields that the group KIN0 follows from at once, the latter where tendons wrap around geoms. From
masses follow only cameras and lights that track a centre of mass, which can wait."""


class WarpEngine(Engine):
    """Simulations on a GPU. Geoms that are fixed to the world keep the place that the shared model
    gives them, also when ``geom_pos`` or ``body_pos`` are expanded."""

    name = "warp"

    def __init__(
        self,
        cfg: EngineCfg,
        model: mujoco.MjModel,
        num_envs: int,
        keyframe: int | None = None,
        max_contacts: int | None = None,
        max_constraints: int | None = None,
    ) -> None:
        """ConfigError if model, device or memory cannot do; steps may raise OutOfMemoryError."""
        self.model, self.num_envs = copy.copy(model), num_envs
        self.device = torch.device(cfg.device)
        if self.device == torch.device("cuda"):
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.reads_masks = self.device.type == "cpu"
        """Whether the host looks at masks, for which it would have to wait for a GPU."""
        self.graphs = WarpGraphs(self.device)
        with self.graphs.scope():
            self._model = warp_model.put_model(self.model)
            self._model.opt.warn_overflow = 0
            self._model.opt.deterministic = cfg.deterministic
            sizes = warp_model.find_sizes(self.model, keyframe, max_contacts, max_constraints)
            self._sizes = sizes
            if self.device.type == "cuda":
                free = torch.cuda.mem_get_info(self.device)[0]
                warp_model.check_memory(self.model, num_envs, sizes, free)
            self._data = warp_model.make_data(self.model, num_envs, sizes)
            self._physics = _Physics(self.model, self._model, self._data)
            self._mask = torch.ones(num_envs, dtype=torch.bool, device=self.device)
            self._warp_mask = wp.from_torch(self._mask)
            self.failed = wp.to_torch(self._physics.failed)
            self._model.opt.graph_conditional = False  # a loop would wait for what kernels write
            load_kernels(lambda: self._physics.step(1))
        self._fields: dict[str, Tensor] = {}
        self._bindable: set[str] = set()
        self._expanded: dict[str, Tensor] = {}
        self._casts: dict[Rays, tuple[Hashable, Callable[[], None]]] = {}
        self._constants: dict[str, tuple[Tensor, Tensor]] = {}  # values before, and expanded rows
        self._copies: dict[Hashable, list[RowCopies]] = {}
        # Environments whose constants were deferred; None while none ever were.
        self._deferred: Tensor | None = None
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
                rows = warp_model.expand_array(self.model, self._model, field, self.num_envs)
            self._expanded[field] = rows
            self.graphs.clear()
            self._copies.clear()
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
        elif field in fields.STATE_FIELDS:
            fields.write_rows(self._field(field), values, mask, index)
        else:
            raise fields.not_writable(field)
        if field not in fields.APPLIED_FIELDS:
            self._mark_stale(mask)

    def step(self, nstep: int = 1, *, refresh: bool = True, accelerations: bool = False) -> None:
        self.forward()
        late = refresh or accelerations
        launches = partial(self._physics.step, nstep, sensors=refresh, late_sensors=late)
        self._run(("step", nstep) if refresh else ("step", nstep, late), launches)

    def forward(self) -> None:
        if self._stale:
            self._run("forward", lambda: self._physics.refresh(sensors=True))
            self._stale = False

    def reset(self, mask: Tensor | None = None) -> None:
        self._run_masked("reset", self._reset, mask)

    def set_const(self, mask: Tensor | None = None, *, defer: bool = False) -> None:
        if not self._expanded:
            return
        inputs = self._expanded.keys()
        for field in chain(*_CONSTANTS.values(), _BOUNDS if "geom_size" in inputs else ()):
            if getattr(self._model, field).size and field not in self._constants:
                rows = self.expand(field)
                self._constants[field] = torch.empty_like(rows), rows
        groups = _GROUP.ALL
        if defer:
            if self._deferred is None:
                self._deferred = torch.zeros_like(self._mask)
            self._deferred |= True if mask is None else mask
            groups = _GROUP.FIXED
            if inputs & (_KINEMATIC | _WRAPPED if self.model.ntendon else _KINEMATIC):
                groups |= _GROUP.KIN0
        self._run_masked(("set_const", int(groups)), partial(self._set_const, groups), mask)

    def finish_const(self) -> None:
        if self._deferred is not None and (not self.reads_masks or self._deferred.numpy().any()):
            self.set_const(self._deferred)
            self._deferred.zero_()

    def cast(self, rays: Rays) -> None:
        self.forward()
        if rays not in self._casts:
            with self.graphs.scope():
                lines = [wp.from_torch(t, dtype=wp.vec3) for t in (rays.points, rays.directions)]
                excluded, shape = wp.array(rays.excluded_bodies, dtype=int), rays.distances.shape
                geoms, normals = wp.empty(shape, dtype=int), wp.empty(shape, dtype=wp.vec3)
                results = wp.from_torch(rays.distances), geoms, normals
            met = range(mujoco.mjNGROUP) if rays.groups is None else rays.groups
            groups = warp_model.GEOM_GROUPS(*(float(i in met) for i in range(mujoco.mjNGROUP)))
            arguments = self._model, self._data, *lines, groups, True, excluded
            launches = partial(mjw.rays, *arguments, *results)
            self._casts[rays] = ("cast", len(self._casts)), launches
        self._run(*self._casts[rays])

    def get_model(self, env: int) -> mujoco.MjModel:
        model = copy.copy(self.model)
        for field, rows in self._expanded.items():
            owner, name = warp_model.owner_of(model, field)
            setattr(owner, name, rows[env].cpu().numpy())
        return model

    def state(self) -> dict[str, Tensor]:
        names = sorted({*self._initial, "sensordata", *self._fields})
        return {
            **{f"data/{field}": self._field(field).clone() for field in names},
            **{f"model/{field}": rows.clone() for field, rows in self._expanded.items()},
            "touched": torch.tensor(self._stale),
            **({} if self._deferred is None else {"deferred": self._deferred.clone()}),
        }

    def set_state(self, state: dict[str, Tensor]) -> None:
        if "touched" not in state:  # the other engine may have bound positions as well
            state = {}
        fields.check_state(state, "data/qpos", self._field("qpos"))
        for field, value in fields.entries_of(state, "model"):
            self.expand(field).copy_(value)
            self._update_initial(field)
        for field in self._initial:
            self._field(field).copy_(state[f"data/{field}"])
        # The next step builds on the state; the fields that terms see may be older than it.
        self._stale = True
        self.forward()
        for field, value in fields.entries_of(state, "data"):
            self._field(field).copy_(value)
        self._stale = bool(state["touched"])
        if self._deferred is None:
            self._deferred = torch.zeros_like(self._mask)
        self._deferred.copy_(state.get("deferred", torch.zeros(())))

    def overflow(self) -> Overflow:
        with self.graphs.scope():
            flags = wp.to_torch(self._data.overflow)
            bits = flags.to("cpu", copy=True)
            flags.zero_()
            constraints, contacts = wp.to_torch(self._physics.peaks).tolist()
        peaks = warp_model.BufferSizes(-(-contacts // self.num_envs), constraints)
        return warp_model.read_overflow(bits, self._sizes, peaks)

    def in_torch_graph(self) -> AbstractContextManager[object]:
        return self.graphs.in_torch_graph()

    def _run(self, key: Hashable, launches: Callable[[], None]) -> None:
        # Outside a graph, a loop that ends early waits for the device in every iteration.
        self._model.opt.graph_conditional = self.graphs.conditional
        self.graphs.run(key, launches)

    def _run_masked(self, key: Hashable, launches: Callable[[], None], mask: Tensor | None) -> None:
        """Run launches that change the state or model where `_mask` is true, set from `mask`."""
        if mask is None:
            self._mask.fill_(True)
        else:
            self._mask.copy_(mask)
        self._run(key, launches)
        self._mark_stale(mask)

    def _reset(self) -> None:
        if "reset" not in self._copies:
            rows = [(row, self._field(field), None) for field, row in self._initial.items()]
            sensors, late = self._field("sensordata"), self._physics.acceleration_sensors
            zeros = torch.zeros_like(sensors[:1])
            self._copies["reset"] = [RowCopies([*rows, (zeros, sensors, late)])]
        self._copies["reset"][0].launch(self._warp_mask, where=True)

    def _set_const(self, groups: mjw.SetConstGroup) -> None:
        if groups not in self._copies:
            selected = (names for group, names in _CONSTANTS.items() if groups & group)
            names = [field for field in chain(_BOUNDS, *selected) if field in self._constants]
            pairs = [self._constants[field] for field in names]
            save = RowCopies([(rows, before, None) for before, rows in pairs])
            self._copies[groups] = [save, RowCopies([(*pair, None) for pair in pairs])]
        save, restore = self._copies[groups]
        save.launch(self._warp_mask, where=False)
        mjw.set_const(self._model, self._physics.posvel_data, groups)
        restore.launch(self._warp_mask, where=False)

    def _field(self, field: str) -> Tensor:
        if field not in self._fields:
            self._fields[field] = warp_model.view_data(self.model, self._data, field)
        return self._fields[field]

    def _initial_rows(self) -> dict[str, Tensor]:
        """Values of state fields and acceleration-dependent fields after a reset, one row each."""
        data = mujoco.MjData(self.model)
        if self._keyframe is not None:
            mujoco.mj_resetDataKeyframe(self.model, data, self._keyframe)
        rows = {}
        for field in (*fields.STATE_FIELDS, "history", "plastic"):
            value = torch.as_tensor(np.asarray(getattr(data, field), dtype=np.float32))
            rows[field] = value.unsqueeze(0).to(self.device)
        late = fields.ACCELERATION_FIELDS
        return rows | {field: torch.zeros_like(self._field(field)[:1]) for field in late}

    def _update_initial(self, field: str) -> None:
        """Let the default initial state follow an expanded model field, in place."""
        if self._keyframe is None and field in _INITIAL_FIELDS:
            rows = self._expanded[field]
            rows = rows if field == "qpos0" else rows[:, self._mocap_bodies]
            self._initial[_INITIAL_FIELDS[field]].copy_(rows)

    def _mark_stale(self, mask: Tensor | None) -> None:
        """Note that fields derived from the state are out of date, if the mask selects any."""
        self._stale |= mask is None or not self.reads_masks or bool(mask.numpy().any())


class _Physics:
    """The stages of a physics step, in the order that needs no extra forward after a step.

    The position and velocity stages are kept current between calls; after writes and resets the
    engine calls `refresh`. A step then is actuation, smooth acceleration, constraint solver and
    integration, and after it the position stage (kinematics, collision, constraints) and velocity
    stage of the new state: n of each for n steps, where ``mj_step`` and a last ``mj_forward`` run
    n + 1. Sensors are computed in the last step alone: those that depend on accelerations before
    its integration, the others after it.
    """

    def __init__(self, model: mujoco.MjModel, warp_model: mjw.Model, data: mjw.Data) -> None:
        self._model, self._data = warp_model, data
        self.posvel_data = dataclasses.replace(
            data, cacc=wp.zeros_like(data.cacc), cfrc_int=wp.zeros_like(data.cfrc_int)
        )
        """`data` for the position and velocity stages. They compute bias forces in ``cacc`` and
        ``cfrc_int``, which belong to the acceleration stage; here these are others."""
        late = fields.acceleration_sensors(model)
        self.acceleration_sensors = late.nonzero().flatten().numpy()
        columns = self.acceleration_sensors, (~late).nonzero().flatten().numpy()
        self._acceleration_columns, self._posvel_columns = (wp.array(c, dtype=int) for c in columns)
        self.peaks = wp.zeros(2, dtype=int)
        """The most constraints of an environment, and contacts of all of them together, so far."""
        self.failed = wp.zeros(data.nworld, dtype=bool)

    def step(self, nstep: int, *, sensors: bool = True, late_sensors: bool = True) -> None:
        """Run `nstep` physics steps from current position and velocity stages to current ones."""
        for i in range(nstep):
            last = i == nstep - 1
            self._accelerate(sensors=last and late_sensors)
            self.refresh(sensors=last and sensors)
        d = self._data
        inputs = [d.nefc, d.nacon, d.ncollision]
        wp.launch(kernels.update_peaks, d.nworld, inputs, [self.peaks])
        inputs = [d.qpos, d.qvel, d.act, float(mujoco.mjMAXVAL)]
        wp.launch(kernels.find_failed, d.nworld, inputs, [self.failed])

    def refresh(self, *, sensors: bool) -> None:
        """Bring the position and velocity stages of all environments up to date."""
        m, d = self._model, self.posvel_data
        sensors = sensors and m.nsensor > 0
        mjw.fwd_position(m, d, factorize=False)
        if sensors:
            self._zero_sensors(self._posvel_columns)
            mjw.sensor_pos(m, d)
        mjw.fwd_velocity(m, d)
        if sensors:
            mjw.sensor_vel(m, d)
        if m.opt.enableflags & mjw.EnableBit.ENERGY:
            mjw.energy_pos(m, d)
            mjw.energy_vel(m, d)

    def _accelerate(self, *, sensors: bool) -> None:
        """Run a physics step from current position and velocity stages; leaves them behind."""
        m, d = self._model, self._data
        if sensors:
            self._zero_sensors(self._acceleration_columns)
        if m.opt.integrator == mjw.IntegratorType.DISCRETE:
            mjw.step2(m, d)
            return
        mjw.fwd_actuation(m, d)
        mjw.fwd_acceleration(m, d, factorize=True)
        mjw.solve(m, d)
        if sensors and m.nsensor:
            mjw.sensor_acc(m, d)
        if m.opt.integrator == mjw.IntegratorType.EULER:
            mjw.euler(m, d)
        elif m.opt.integrator == mjw.IntegratorType.RK4:
            mjw.rungekutta4(m, self.posvel_data)
        else:
            mjw.implicit(m, d)

    def _zero_sensors(self, columns: wp.array) -> None:
        """Zero some sensors: MuJoCo Warp adds to some of them and does not write inactive ones."""
        d = self._data
        wp.launch(kernels.zero_columns, (d.nworld, columns.size), [columns], [d.sensordata])
