"""How many contacts and constraints a model needs room for, found by simulating it on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import mujoco.batch
import numpy as np
import warp as wp
from numpy.typing import NDArray

from simtrain.sim.mujoco_engine import ignore_warning
from simtrain.sim.warp_model import put_model

_SIMULATIONS = 16
_SAMPLES = 40
_DURATION_S = 1.5
_MARGIN = 1.5


@dataclass(frozen=True)
class Sizes:
    """Room that the GPU engine needs in each environment."""

    max_contacts: int
    """Contacts, and pairs of geoms near each other."""
    max_constraints: int
    """Rows of constraints."""


def probe_sizes(model: mujoco.MjModel, *, keyframe: int | None = None) -> Sizes:
    """Simulate a model under random controls, and return the most that was seen and a margin.

    Always the same for the same model. Takes a fifth of a second for a quadruped.

    Args:
        model: the compiled model.
        keyframe: id of the keyframe to start from, or None for MuJoCo's default.

    Raises:
        ConfigError: MuJoCo Warp does not support the model.
    """
    # Random controls may make a simulation unstable, which is no news to anyone.
    mujoco.set_mju_user_warning(ignore_warning)
    random = np.random.default_rng(0)
    batch = mujoco.batch.Batch(model, _SIMULATIONS)
    ncon, nefc = batch.bind("ncon"), batch.bind("nefc")
    xpos, xmat = batch.bind("geom_xpos"), batch.bind("geom_xmat")
    batch.reset(keyframe=-1 if keyframe is None else keyframe)
    near = _NearPairs(batch.model)
    low, high = model.actuator_ctrlrange[: model.nu].T
    limited = low < high
    low, high = np.where(limited, low, -1.0), np.where(limited, high, 1.0)
    nstep = max(1, round(_DURATION_S / _SAMPLES / model.opt.timestep))
    contacts, constraints = 0, 0
    for _ in range(_SAMPLES):
        contacts = max(contacts, int(ncon.max()), near.most(xpos, xmat))
        constraints = max(constraints, int(nefc.max()))
        batch.bind("ctrl")[:] = random.uniform(low, high, (_SIMULATIONS, model.nu))
        batch.step(nstep=nstep)
    # Random motion rarely meets all joint limits at once; a policy may.
    limits = int(np.sum(model.jnt_limited)) + int(np.sum(model.tendon_limited))
    return Sizes(
        max_contacts=int(_MARGIN * contacts) + 4,
        max_constraints=int(_MARGIN * constraints) + limits + 8,
    )


class _NearPairs:
    """Counts pairs of geoms whose bounding spheres touch: at least those of the broad phase."""

    def __init__(self, model: mujoco.MjModel) -> None:
        with wp.ScopedDevice("cpu"):
            pairs = put_model(model).nxn_geom_pair_filtered.numpy()
        self._first, self._second = pairs[:, 0], pairs[:, 1]
        self._radius = model.geom_rbound
        self._plane = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
        self._reach = model.geom_rbound + model.geom_margin

    def most(self, xpos: NDArray[np.float64], xmat: NDArray[np.float64]) -> int:
        """The most near pairs in any of the simulations."""
        return max((self._count(p, m) for p, m in zip(xpos, xmat, strict=True)), default=0)

    def _count(self, xpos: NDArray[np.float64], xmat: NDArray[np.float64]) -> int:
        first, second = self._first, self._second
        apart = xpos[second] - xpos[first]
        normals = xmat.reshape(-1, 3, 3)[:, :, 2]
        distance = np.linalg.norm(apart, axis=-1)
        above_first = np.einsum("ij,ij->i", apart, normals[first])
        above_second = -np.einsum("ij,ij->i", apart, normals[second])
        distance = np.where(self._plane[first], above_first, distance)
        distance = np.where(self._plane[second], above_second, distance)
        return int(np.sum(distance <= self._reach[first] + self._reach[second]))
