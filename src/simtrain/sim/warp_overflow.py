"""What MuJoCo Warp dropped for want of room, from the flags that its kernels leave behind."""

from __future__ import annotations

import mujoco
import mujoco_warp as mjw
from torch import Tensor

from simtrain.sim.engine import Overflow

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


def read_overflow(
    bits: Tensor,
    *,
    max_contacts: int,
    max_constraints: int,
    contacts_seen: int,
    constraints_seen: int,
) -> Overflow:
    """What was dropped where.

    Args:
        bits: ``mujoco_warp.OverflowType`` of each environment, on the CPU, ``(num_envs,)``.
        max_contacts: see `Overflow`.
        max_constraints: see `Overflow`.
        contacts_seen: see `Overflow`.
        constraints_seen: see `Overflow`.
    """
    contacts = bits & int(_CONTACTS) != 0
    constraints = bits & int(_CONSTRAINTS) != 0
    anything = contacts | constraints
    others = {}
    for flag, text in _OTHERS.items():
        dropped = bits & int(flag) != 0
        if dropped.any():
            others[flag.name.lower()] = text
            anything |= dropped
    return Overflow(
        num_envs=int(anything.sum()),
        contacts=bool(contacts.any()),
        constraints=bool(constraints.any()),
        max_contacts=max_contacts,
        max_constraints=max_constraints,
        contacts_seen=contacts_seen,
        constraints_seen=constraints_seen,
        others=others,
    )
