"""The CPU engine: a thin face on ``mujoco.batch.Batch``, MuJoCo's own C++ thread pool.

Physics runs in float64 on the batch's state rows. Terms see float32 mirrors of the rows, refreshed
after every call; what terms write goes into mirror and row together, for the masked rows alone.
"""

import copy
import ctypes
import os
import warnings
from pathlib import Path

import mujoco
import mujoco.batch
import numpy as np
import torch
from torch import Tensor

from simtrain.errors import SimulationError
from simtrain.sim import fields
from simtrain.sim.engine import ALL, Engine, Index, Rays

_VELOCITY_STAGE = int(mujoco.mjtStage.mjSTAGE_VEL.value)
_NO_STAGE = int(mujoco.mjtStage.mjSTAGE_NONE.value)


class MujocoEngine(Engine):
    """Simulations on CPU threads, 0 for all cores, whose number changes no bit of the results."""

    name = "mujoco"
    synchronous = True

    def __init__(
        self, model: mujoco.MjModel, num_envs: int, threads: int = 0, keyframe: int | None = None
    ) -> None:
        # `failed` reports warnings; MuJoCo would also print them and write MUJOCO_LOG.TXT.
        mujoco.set_mju_user_warning(ignore_warning)
        stop_timers()
        self.num_envs, self.device = num_envs, torch.device("cpu")
        threads = threads or len(os.sched_getaffinity(0))
        self._batch = mujoco.batch.Batch(_without_islands(model), num_envs, nthread=threads)
        self.threads, self._process = int(self._batch.nthread), os.getpid()
        self.model = self._batch.model
        self._keyframe = -1 if keyframe is None else keyframe
        self._stale = torch.zeros(num_envs, dtype=torch.bool)  # written or reset, no forward yet
        self.failed = torch.zeros(num_envs, dtype=torch.bool)
        self._warnings = self._batch.warning[:, :, 1]  # counts of each kind since the last reset
        # Field -> its float32 mirror and the batch's float64 rows.
        self._bound: dict[str, tuple[Tensor, Tensor]] = {}
        self._expanded: dict[str, tuple[Tensor, Tensor]] = {}
        self._acceleration_sensors = fields.acceleration_sensors(self.model)
        self._other_sensors = (~self._acceleration_sensors).nonzero().flatten()
        self._const_was_set, self._failure_message = False, ""
        self.bind("ctrl")
        self.reset()
        self.forward()

    def bind(self, field: str) -> Tensor:
        if field not in self._bound:
            fields.check_bindable(self.model, field)
            rows = self.bind_native(field)
            mirror = rows.float() if field in fields.STATE_FIELDS else torch.zeros(rows.shape)
            self._bound[field] = (mirror, rows)
            if _is_posvel(field):
                self._batch.forward(stage=_VELOCITY_STAGE)
                self._refresh_posvel(field)
        return self._bound[field][0]

    def bind_native(self, field: str) -> Tensor:
        with warnings.catch_warnings(action="ignore"):  # of outputs, which are read-only
            return torch.from_numpy(self._batch.bind(field))

    def expand(self, field: str) -> Tensor:
        if field not in self._expanded:
            rows = torch.from_numpy(self._batch.expand(field))
            self._expanded[field] = (rows.float(), rows)
        return self._expanded[field][0]

    def write(
        self, field: str, values: Tensor | float, mask: Tensor | None = None, index: Index = ALL
    ) -> None:
        if field in self._expanded:
            mirror, rows = self._expanded[field]
        elif field in fields.STATE_FIELDS:
            self.bind(field)
            mirror, rows = self._bound[field]
        else:
            raise fields.not_writable(field)
        if mask is not None and not mask.numpy().any():
            return
        where = True if mask is None else mask.numpy().reshape(-1, *(1,) * (mirror.ndim - 1))
        columns = index if isinstance(index, slice) else index.numpy()
        # Row and mirror get the same number, so that terms read the simulated one.
        number = torch.as_tensor(values, dtype=torch.float32).numpy()
        for target in (mirror.numpy(), rows.numpy()):  # several times faster than by torch
            part = target if target.ndim == 1 else target[:, columns]
            np.copyto(part, number, casting="unsafe", where=where)
            if not isinstance(index, slice):
                target[:, columns] = part
        if field not in fields.APPLIED_FIELDS:
            self._stale |= True if mask is None else mask

    def step(self, nstep: int = 1, *, refresh: bool = True, accelerations: bool = False) -> None:
        ctrl, ctrl_rows = self._bound["ctrl"]
        ctrl_rows.copy_(ctrl)
        self._run("step", nstep=nstep, stage=_VELOCITY_STAGE if refresh else _NO_STAGE)
        for field, (mirror, rows) in self._bound.items():
            late = field == "sensordata" or field in fields.ACCELERATION_FIELDS
            if refresh or field in fields.STATE_FIELDS or (accelerations and late):
                mirror.copy_(rows)
        self._stale.fill_(not refresh)
        if self._warnings.any():
            np.any(self._warnings, axis=1, out=self.failed.numpy())
            if not self._failure_message:
                env, kind = (int(indices[0]) for indices in np.nonzero(self._warnings))
                info = int(self._batch.warning[env, kind, 0])
                self._failure_message = str(mujoco.mju_warningText(kind, info)).strip()
        else:
            self.failed.zero_()

    def forward(self) -> None:
        stale = self._stale.numpy()
        if stale.any():
            self._run("forward", ids=stale, stage=_VELOCITY_STAGE)
            for field in filter(_is_posvel, self._bound):
                self._refresh_posvel(field)
            self._stale.zero_()

    def reset(self, mask: Tensor | None = None) -> None:
        resets = torch.ones_like(self._stale) if mask is None else mask
        if not resets.numpy().any():
            return
        self._run("reset", ids=resets.numpy(), keyframe=self._keyframe, stage=_NO_STAGE)
        for field, (mirror, rows) in self._bound.items():
            if field in fields.STATE_FIELDS:
                mirror.copy_(rows)
            elif field in fields.ACCELERATION_FIELDS:
                mirror.masked_fill_(resets.view(-1, *(1,) * (mirror.ndim - 1)), 0.0)
            elif field == "sensordata":
                mirror.masked_fill_(resets.view(-1, 1) & self._acceleration_sensors, 0.0)
        self._stale.logical_or_(resets)

    def set_const(self, mask: Tensor | None = None, *, defer: bool = False) -> None:
        self._run("set_const", ids=None if mask is None else mask.numpy())
        self._const_was_set = True
        for mirror, rows in self._expanded.values():
            mirror.copy_(rows)

    def cast(self, rays: Rays) -> None:
        groups = None if rays.groups is None else np.isin(np.arange(mujoco.mjNGROUP), rays.groups)
        lines, excluded = (rays.points.numpy(), rays.directions.numpy()), rays.excluded_bodies
        distances, _ = self._batch.ray(*lines, groups, bodyexclude=np.asarray(excluded))
        rays.distances.copy_(torch.from_numpy(distances))

    def get_model(self, env: int) -> mujoco.MjModel:
        return self._batch.get_model(env)

    def failure_message(self) -> str:
        message, self._failure_message = self._failure_message, ""
        return message or super().failure_message()

    def state(self) -> dict[str, Tensor]:
        return {
            "state": torch.from_numpy(self._batch.state.copy()),
            "stale": self._stale.clone(),
            "const_follows": torch.tensor(self._const_was_set),
            **{f"data/{field}": mirror.clone() for field, (mirror, _) in self._bound.items()},
            **{f"model/{field}": rows.clone() for field, (_, rows) in self._expanded.items()},
        }

    def set_state(self, state: dict[str, Tensor]) -> None:
        own = torch.from_numpy(self._batch.state)
        fields.check_state(state, "state", own)
        for field, value in fields.entries_of(state, "model"):
            self.expand(field)
            mirror, rows = self._expanded[field]
            rows.copy_(value)
            mirror.copy_(rows)
        if state["const_follows"]:
            self.set_const()
        self._batch.reset(stage=_NO_STAGE)  # forgets the warnings so far
        own.copy_(state["state"])
        self._stale.copy_(state["stale"])
        for field, value in fields.entries_of(state, "data"):
            self.bind(field).copy_(value)

    def _refresh_posvel(self, field: str) -> None:
        """Refresh a mirror after a forward, but for acceleration sensors: of other simulations."""
        mirror, rows = self._bound[field]
        if field == "sensordata" and len(self._other_sensors) < mirror.shape[1]:
            mirror[:, self._other_sensors] = rows[:, self._other_sensors].float()
        else:
            mirror.copy_(rows)

    def _run(self, call: str, **arguments: object) -> None:
        if os.getpid() != self._process:  # the threads are not there, and would be waited for
            text = "a process that was forked cannot simulate: its environments' threads are"
            raise SimulationError(f"{text} elsewhere; start it with multiprocessing's spawn")
        try:
            getattr(self._batch, call)(**arguments)
        except mujoco.batch.SimulationError as error:
            env, count = int(error.ids[0]), len(error.ids)
            text = f"MuJoCo failed in environment {env}, of {count} in all"
            raise SimulationError(f"{text}: {self._batch.error(env)}") from error


def _is_posvel(field: str) -> bool:
    """Whether a field follows from positions and velocities; true for ``sensordata`` as well."""
    return field not in fields.STATE_FIELDS and field not in fields.ACCELERATION_FIELDS


def _without_islands(model: mujoco.MjModel) -> mujoco.MjModel:
    """A copy that looks for no islands in a single tree: the same bits, a Go1 3 to 5 % faster."""
    model = copy.copy(model)
    if model.ntree <= 1 and not model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
        model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ISLAND)
    return model


def ignore_warning(_message: str) -> None:
    """Stand in for MuJoCo's warning handler."""


def stop_timers() -> None:
    """Take away MuJoCo's clock, in this process: its timers (``mjData.timer``) then stay at zero.

    MuJoCo reads the clock several times in every step. Without, a Go1 steps 5 to 10 % faster and a
    cart-pole 30 %, with the same results. `mujoco.set_mjcb_time` cannot do it: None is its clock.
    """
    for library in Path(mujoco.__file__).parent.glob("libmujoco.*"):
        ctypes.c_void_p.in_dll(ctypes.CDLL(str(library)), "mjcb_time").value = None
