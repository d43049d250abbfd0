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


@dataclass(frozen=True)
class Dump:
    """The last steps of an environment before its simulation failed."""

    env: int  # its number in its rank
    message: str  # the engine's message
    states: dict[str, np.ndarray]
    """MuJoCo's name of a field -> values before each step, oldest first; the last one failed."""
    model: bytes  # the environment's, as MuJoCo's MJB


@dataclass(frozen=True)
class Failures:
    """Failed simulations, and terms that were not finite, in some steps."""

    resets: int  # how often an environment was reset because its simulation failed
    dump: Dump | None  # the first of these
    terms: tuple[str, ...]  # rewards and observations that were not finite, and counted as 0


class NanGuard:
    """Watches the simulations of an environment."""

    def __init__(self, sim: Engine) -> None:
        self._sim = sim
        # `ctrl` is the input of the next step.
        rows = {f: sim.bind(f) if f == "ctrl" else sim.bind_native(f) for f in FIELDS}
        self._shapes = {field: row.shape[1:] for field, row in rows.items() if row.numel()}
        self._rows = [rows[field].view(sim.num_envs, -1) for field in self._shapes]
        like, width = self._rows[0], sum(row.shape[1] for row in self._rows)
        # The row after that of a failure takes all that is recorded later, and is never read.
        self._ring = like.new_zeros(STEPS + 1, sim.num_envs, width)
        self._fresh = torch.zeros_like(self._ring[:1])
        self._failed_rows = sim.failed.numpy() if sim.synchronous else None
        self._start = 0  # the number of the first step that the ring may have
        # Up to the first failure, and with it.
        self._steps = torch.zeros(1, dtype=torch.long, device=sim.device)
        self._counts = torch.zeros(sim.num_envs, dtype=torch.long, device=sim.device)
        # Environments that did not fail at the step of the first failure; whether none failed yet.
        self._fine = torch.ones_like(sim.failed)
        self._all_fine = torch.ones_like(sim.failed[:1])
        # Of the first failure, where the host knows at once.
        self._model: mujoco.MjModel | None = None

    def record(self) -> None:
        """Keep the present states and controls, in place; to be called before a physics step."""
        if self._failed_rows is None:
            torch.cat(self._rows, dim=1, out=self._fresh[0])
            self._ring.index_copy_(0, self._steps % len(self._ring), self._fresh)
        elif self._model is None:
            slot = int(self._steps.numpy()[0]) % len(self._ring)
            torch.cat(self._rows, dim=1, out=self._ring[slot])
        self._steps += self._all_fine

    def check(self) -> Tensor | None:
        """Count and return failures in the step, ``(num_envs,)``; None if known to be none."""
        failed = self._sim.failed
        if self._failed_rows is not None and not self._failed_rows.any():
            return None
        self._counts += failed
        self._fine.masked_fill_(failed & self._all_fine, False)
        torch.all(self._fine, dim=0, keepdim=True, out=self._all_fine)
        if self._failed_rows is not None and self._model is None:
            self._model = self._sim.get_model(int(self._failed_first()))
        return failed

    def take(self, sums: Sequence[tuple[tuple[str, ...], Tensor]]) -> Failures:
        """The failures since the last call, from names and `sums`; starts anew, and waits."""
        counts = [self._counts.sum()[None], self._failed_first()[None], self._steps]
        finite = [total.isfinite().long() for _, total in sums]
        resets, env, steps, *flags = torch.cat([*counts, *finite]).tolist()
        names = [name for several, _ in sums for name in several]
        terms = tuple(dict.fromkeys(n for n, fine in zip(names, flags, strict=True) if not fine))
        dump = self._dump(steps - 1, env) if resets else None
        if resets:  # steps after the failure were not kept
            self._start = steps
        for _, total in sums:
            total.zero_()
        self._forget()
        return Failures(resets, dump, terms)

    def restart(self) -> None:
        """Drop the records, in place, because they did not lead to the present state."""
        self._start = 0
        self._steps.zero_()
        self._forget()

    def _forget(self) -> None:
        self._counts.zero_()
        self._fine.fill_(True)
        self._all_fine.fill_(True)
        self._model = None

    def _failed_first(self) -> Tensor:
        """The environment of the first failure, the one of the lowest number, a scalar."""
        return self._fine.long().argmin()

    def _dump(self, step: int, env: int) -> Dump:
        slots = [s % len(self._ring) for s in range(max(self._start, step - STEPS + 1), step + 1)]
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
