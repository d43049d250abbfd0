"""Sizes of MuJoCo Warp's buffers: probed on the CPU, checked against a GPU's memory, overflown."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import mujoco
import mujoco.batch
import mujoco_warp as mjw
import numpy as np
import warp as wp
from torch import Tensor

from simtrain.errors import ConfigError
from simtrain.sim.engine import Overflow
from simtrain.sim.mujoco_engine import ignore_warning
from simtrain.sim.warp_model import put_model

_SIMULATIONS = 16
_SAMPLES = 40
_DURATION_S = 1.5
_MARGIN = 1.5

_CONTACTS = mjw.OverflowType.BROADPHASE | mjw.OverflowType.NARROWPHASE | mjw.OverflowType.CCD
_CONSTRAINTS = mjw.OverflowType.NEFC | mjw.OverflowType.NJMAX_NNZ
_OTHERS = {
    mjw.OverflowType.HFIELD: (
        f"a geom met {mujoco.mjMAXCONPAIR} or more cells of a height field, and further ones were "
        f"left out: make the height field coarser or the geom smaller"
    ),
    mjw.OverflowType.CONTACT_MATCH: (
        "a contact sensor matched more contacts than MuJoCo Warp has room for, and the rest were "
        "left out: give the model a <custom><numeric name='contact_sensor_maxmatch'/> above 64"
    ),
    mjw.OverflowType.EPA_HORIZON: (
        "how deep two convex geoms are in each other was not computed to the end, for want of "
        "room: give them simpler meshes"
    ),
    mjw.OverflowType.TACTILE: (
        "a tactile sensor met more geoms than MuJoCo Warp has room for, and the rest were left out"
    ),
}
"""What no flag mends. Solvers that reach their number of iterations are not among it."""


@dataclass(frozen=True)
class BufferSizes:
    """Sizes of the buffers of one environment, or how much of them was wanted."""

    max_contacts: int
    """Contacts, and pairs of geoms near each other; on average over environments."""
    max_constraints: int
    """Rows of constraints."""


def find_sizes(
    model: mujoco.MjModel,
    keyframe: int | None = None,
    max_contacts: int | None = None,
    max_constraints: int | None = None,
) -> BufferSizes:
    """The given sizes, but at least 1; those of `_probe` in place of None."""
    if max_contacts is None or max_constraints is None:
        probed = _probe(model, keyframe)
        max_contacts = probed.max_contacts if max_contacts is None else max_contacts
        max_constraints = probed.max_constraints if max_constraints is None else max_constraints
    # Without any room MuJoCo Warp skips steps whose results the integrators need.
    return BufferSizes(max(max_contacts, 1), max(max_constraints, 1))


def _probe(model: mujoco.MjModel, keyframe: int | None) -> BufferSizes:
    """Simulate a model under random controls, and return the most that was seen and a margin.

    Always the same for the same model. Takes a fifth of a second for a quadruped.
    """
    # Random controls may make a simulation unstable, which is no news to anyone.
    mujoco.set_mju_user_warning(ignore_warning)
    random = np.random.default_rng(0)
    batch = mujoco.batch.Batch(model, _SIMULATIONS)
    ncon, nefc = batch.bind("ncon"), batch.bind("nefc")
    xpos, xmat = batch.bind("geom_xpos"), batch.bind("geom_xmat")
    batch.reset(keyframe=-1 if keyframe is None else keyframe)
    with wp.ScopedDevice("cpu"):
        pairs = put_model(model).nxn_geom_pair_filtered.numpy()
    low, high = model.actuator_ctrlrange[: model.nu].T
    limited = low < high
    low, high = np.where(limited, low, -1.0), np.where(limited, high, 1.0)
    nstep = max(1, round(_DURATION_S / _SAMPLES / model.opt.timestep))
    contacts, constraints = 0, 0
    for _ in range(_SAMPLES):
        contacts = max(contacts, int(ncon.max()), _most_near_pairs(model, pairs, xpos, xmat))
        constraints = max(constraints, int(nefc.max()))
        batch.bind("ctrl")[:] = random.uniform(low, high, (_SIMULATIONS, model.nu))
        batch.step(nstep=nstep)
    # Random motion rarely meets all joint limits at once; a policy may.
    limits = int(np.sum(model.jnt_limited)) + int(np.sum(model.tendon_limited))
    return BufferSizes(
        max_contacts=int(_MARGIN * contacts) + 4,
        max_constraints=int(_MARGIN * constraints) + limits + 8,
    )


def _most_near_pairs(
    model: mujoco.MjModel, pairs: np.ndarray, xpos: np.ndarray, xmat: np.ndarray
) -> int:
    """The most pairs in a simulation whose bounding spheres touch: at least the broad phase's."""
    first, second = pairs.T
    apart = xpos[:, second] - xpos[:, first]
    normals = xmat.reshape(*xpos.shape, 3)[..., 2]
    plane = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE
    distance = np.linalg.norm(apart, axis=-1)
    for sign, geom in ((1, first), (-1, second)):
        above = sign * np.einsum("nij,nij->ni", apart, normals[:, geom])
        distance = np.where(plane[geom], above, distance)
    reach = model.geom_rbound + model.geom_margin
    return int((distance <= reach[first] + reach[second]).sum(axis=1).max(initial=0))


def check_memory(model: mujoco.MjModel, num_envs: int, sizes: BufferSizes, free: int) -> None:
    """Raise `ConfigError` for more environments than fit into a GPU's free memory, in bytes.

    Counts what MuJoCo Warp keeps for each environment; steps need some more while they run.
    """
    with wp.ScopedDevice("cpu"):
        one, three = (_bytes(make_data(model, n, sizes)) for n in (1, 3))
    each = (three - one) // 2
    if num_envs * each > free:
        raise ConfigError(
            f"{num_envs} environments need at least {num_envs * each / 2**30:.1f} GiB of "
            f"GPU memory and {free / 2**30:.1f} GiB are free: "
            f"use --num-envs {free // each} or fewer"
        )


def make_data(model: mujoco.MjModel, num_envs: int, sizes: BufferSizes) -> mjw.Data:
    """The buffers of `num_envs` simulations, on Warp's current device."""
    return mjw.make_data(model, num_envs, nconmax=sizes.max_contacts, njmax=sizes.max_constraints)


def _bytes(data: Any) -> int:
    if isinstance(data, wp.array):
        return int(data.capacity)
    members = dataclasses.fields(data) if dataclasses.is_dataclass(data) else ()
    return sum(_bytes(getattr(data, member.name)) for member in members)


def read_overflow(bits: Tensor, sizes: BufferSizes, peaks: BufferSizes) -> Overflow:
    """What was dropped: `bits` are ``mujoco_warp.OverflowType``, on the CPU, ``(num_envs,)``.

    `sizes` are those of the buffers, `peaks` the most that was wanted of them so far.
    """
    anything = reduce(or_, _OTHERS, _CONTACTS | _CONSTRAINTS)
    num_envs = int((bits & int(anything) != 0).sum())
    messages = {
        kind.name.lower(): f"{text} (in {num_envs} environments)"
        for kind, text in _OTHERS.items()
        if (bits & int(kind)).any()
    }
    for kinds, what, name in (
        (_CONTACTS, "contacts", "max_contacts"),
        (_CONSTRAINTS, "rows of constraints", "max_constraints"),
    ):
        if (bits & int(kinds)).any():
            size, peak = getattr(sizes, name), getattr(peaks, name)
            flag = f"--env.sim.{name.replace('_', '-')}"
            messages[flag] = (
                f"{what} were dropped in {num_envs} environments: there is room for {size} in "
                f"each, and {peak} were wanted; use {flag} {max(size, peak) * 3 // 2 + 1}"
            )
    return Overflow(num_envs, messages)
