"""Numbers that are not finite: found without waiting for the device, and reported later.

An environment whose simulation failed is reset, as an episode that ended. Its last steps are kept:
a ring of states and controls is recorded before every step, and stays as it is from the first
failure on until it is read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
import torch
from torch import Tensor

from simtrain.sim.engine import Engine

FIELDS = ("time", "qpos", "qvel", "act", "qacc_warmstart", "mocap_pos", "mocap_quat", "ctrl")
"""MuJoCo's names of the fields that a simulation goes on from."""
STEPS = 50  # control steps that are kept
_NEVER = 2**62


@dataclass(frozen=True)
class Dump:
    """The last steps of an environment before its simulation failed."""

    env: int  # its number in its rank
    message: str  # what the engine said of it
    states: dict[str, np.ndarray]
    """MuJoCo's name of a field -> values before each step, oldest first; the last one failed."""
    model: bytes  # the environment's, as MuJoCo's MJB


@dataclass(frozen=True)
class Failures:
    """What went wrong in some steps."""

    resets: int  # how often an environment was reset because its simulation failed
    dump: Dump | None  # the first of these
    terms: tuple[str, ...]  # rewards and observations that were not finite, and counted as 0


class NanGuard:
    """Watches the simulations of an environment."""

    def __init__(self, sim: Engine) -> None:
        self._sim = sim
        # `ctrl` is what the next step takes.
        rows = {f: sim.bind(f) if f == "ctrl" else sim.bind_native(f) for f in FIELDS}
        self._shapes = {field: row.shape[1:] for field, row in rows.items() if row.numel()}
        self._rows = [rows[field].view(sim.num_envs, -1) for field in self._shapes]
        like, width = self._rows[0], sum(row.shape[1] for row in self._rows)
        # The last row takes what is recorded after a failure, and is never read.
        self._ring = like.new_zeros(STEPS + 1, sim.num_envs, width)
        self._fresh = torch.zeros_like(self._ring[:1])
        self._failed_rows = sim.failed.numpy() if sim.synchronous else None
        self._start = 0  # the number of the first step that the ring may have
        self._steps = torch.zeros(1, dtype=torch.long, device=sim.device)
        self._counts = torch.zeros(sim.num_envs, dtype=torch.long, device=sim.device)
        # Of the first failure: step x environments + environment.
        self._first = torch.full((), _NEVER, dtype=torch.long, device=sim.device)
        # Plus the number of steps so far x environments: the number of a failure in the last step.
        self._numbers = torch.arange(sim.num_envs, device=sim.device) - sim.num_envs
        # A number of the host in `torch.where` would be copied to the device, and waited for.
        self._never = torch.full_like(self._first, _NEVER)
        # Of the first failure, where the host knows at once.
        self._model: mujoco.MjModel | None = None

    def record(self) -> None:
        """Keep the present states and controls, in place; to be called before a physics step."""
        if self._failed_rows is None:
            torch.cat(self._rows, dim=1, out=self._fresh[0])
            slot = (self._steps % STEPS).masked_fill_(self._first < _NEVER, STEPS)
            self._ring.index_copy_(0, slot, self._fresh)
        elif self._model is None:
            torch.cat(self._rows, dim=1, out=self._ring[int(self._steps.numpy()[0]) % STEPS])
        self._steps += 1

    def check(self) -> Tensor | None:
        """Count and return who failed in the step, ``(num_envs,)``; None if it is known: nobody."""
        failed = self._sim.failed
        if self._failed_rows is not None and not self._failed_rows.any():
            return None
        self._counts += failed
        numbers = torch.add(self._numbers, self._steps, alpha=self._sim.num_envs)
        first = torch.where(failed, numbers, self._never).amin()
        torch.minimum(self._first, first, out=self._first)
        if self._failed_rows is not None and self._model is None:
            self._model = self._sim.get_model(int(first) % self._sim.num_envs)
        return failed

    def take(self, sums: Sequence[tuple[tuple[str, ...], Tensor]]) -> Failures:
        """The failures since the last call, from names and `sums`; starts anew, and waits."""
        counts = [self._counts.sum()[None], self._first[None], self._steps]
        finite = [total.isfinite().long() for _, total in sums]
        resets, first, steps, *flags = torch.cat([*counts, *finite]).tolist()
        names = [name for several, _ in sums for name in several]
        terms = tuple(dict.fromkeys(n for n, fine in zip(names, flags, strict=True) if not fine))
        dump = self._dump(first) if resets else None
        if resets:  # what came after the failure was not kept
            self._start = steps
        for _, total in sums:
            total.zero_()
        self._forget()
        return Failures(resets, dump, terms)

    def restart(self) -> None:
        """Forget what was recorded, in place: it did not lead to the present state."""
        self._start = 0
        self._steps.zero_()
        self._forget()

    def _forget(self) -> None:
        self._counts.zero_()
        self._first.fill_(_NEVER)
        self._model = None

    def _dump(self, first: int) -> Dump:
        step, env = divmod(first, self._sim.num_envs)
        slots = [s % STEPS for s in range(max(self._start, step - STEPS + 1), step + 1)]
        rows = self._ring[:, env].cpu().numpy()[slots]
        parts = np.split(rows, np.cumsum([part.shape[1] for part in self._rows])[:-1], axis=1)
        states = {
            field: part.reshape(-1, *shape)
            for (field, shape), part in zip(self._shapes.items(), parts, strict=True)
        }
        # On a GPU the failure is known only now, and its model may have been randomized anew.
        model = self._model or self._sim.get_model(env)
        data = np.zeros(mujoco.mj_sizeModel(model), dtype=np.uint8)
        mujoco.mj_saveModel(model, None, data)
        return Dump(env, self._sim.failure_message(), states, data.tobytes())
