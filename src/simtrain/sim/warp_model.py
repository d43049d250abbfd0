"""A MuJoCo model on MuJoCo Warp: its check, fields under MuJoCo's names, sizes of buffers.

The sizes are probed on the CPU and checked against a GPU's memory; overflows are reported.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mujoco
import mujoco.batch
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from torch import Tensor

from simtrain.errors import ConfigError, did_you_mean
from simtrain.sim import warp_kernels as kernels
from simtrain.sim.engine import Overflow
from simtrain.sim.mujoco_engine import ignore_warning
from simtrain.sim.warp_graphs import init_warp

GEOM_GROUPS = wp.types.vector(length=mujoco.mjNGROUP, dtype=float)
"""Which of MuJoCo's groups of geoms rays meet."""
_SWITCHED_ON = {
    **dict.fromkeys(("geom_adhesion", "pair_adhesion"), "flg_adhesion"),
    "geom_surfacevel": "flg_surfacevel",
    **dict.fromkeys(("opt.density", "opt.viscosity", "opt.wind"), "has_fluid"),
    "tendon_damping": "has_tendon_damping",
    "tendon_stiffness": "has_tendon_stiffness",
}
"""Features that MuJoCo Warp turns off for a model whose own values are zero."""
_SIMULATIONS, _SAMPLES, _DURATION_S, _MARGIN = 16, 40, 1.5, 1.5
_CONTACTS = mjw.OverflowType.BROADPHASE | mjw.OverflowType.NARROWPHASE | mjw.OverflowType.CCD
_CONSTRAINTS = mjw.OverflowType.NEFC | mjw.OverflowType.NJMAX_NNZ
_OTHERS = {
    mjw.OverflowType.HFIELD: (
        f"a geom met {mujoco.mjMAXCONPAIR} or more cells of a height field, and further ones were "
        f"left out: make the height field coarser or the geom smaller"
    ),
    mjw.OverflowType.CONTACT_MATCH: (
        "a contact sensor matched too many contacts, and the rest were left out: give the model "
        "a <custom><numeric name='contact_sensor_maxmatch'/> above 64"
    ),
    mjw.OverflowType.EPA_HORIZON: (
        "the depth of two convex geoms in each other needs more room: give them simpler meshes"
    ),
    mjw.OverflowType.TACTILE: "a tactile sensor met too many geoms, and the rest were left out",
}
"""Overflows that no flag fixes. Solvers that reach their number of iterations are not included."""


def check_model(model: mujoco.MjModel) -> None:
    """Raise `ConfigError` if MuJoCo Warp cannot simulate a model; takes 0.1 s and no GPU."""
    init_warp()
    with wp.ScopedDevice("cpu"):
        put_model(model)


def put_model(model: mujoco.MjModel) -> mjw.Model:
    """The model on Warp's current device; `ConfigError` if the engine cannot simulate it.

    A dense Jacobian of more than 60 degrees of freedom, which Warp does not have, becomes sparse in
    place.
    """
    # A delayed sensor is recorded whenever it is computed, also by a `forward` of others.
    delayed = np.any(model.sensor_delay) or np.any(model.sensor_interval)
    unsupported = {
        "flexes (deformable bodies)": model.nflex,
        "the flag 'sleep'": model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP,
        "sensors with a delay or an interval": delayed,
    }
    way = "use --engine mujoco, or change the model"
    if features := [name for name, is_used in unsupported.items() if is_used]:
        raise ConfigError(f"the warp engine does not support {features[0]}: {way}")
    if model.nv > 60 and model.opt.jacobian == mujoco.mjtJacobian.mjJAC_DENSE:
        model.opt.jacobian = mujoco.mjtJacobian.mjJAC_AUTO
    try:
        warp_model = mjw.put_model(model)
    except (NotImplementedError, ValueError) as error:
        raise ConfigError(f"MuJoCo Warp does not support this model: {error} ({way})") from error
    if np.any(model.geom_type == mujoco.mjtGeom.mjGEOM_HFIELD):
        warp_model.callback.contactfilter = _drop_false_contacts
    return warp_model


def _drop_false_contacts(model: mjw.Model, data: mjw.Data) -> None:
    contact = data.contact
    inputs = [data.nacon, contact.geom, contact.worldid, contact.dist, contact.frame]
    inputs += [model.geom_type, model.geom_rbound, data.geom_xmat]
    wp.launch(kernels.drop_false_contacts, data.naconmax, inputs, [contact.type])


def view_data(model: mujoco.MjModel, data: mjw.Data, field: str) -> Tensor:
    """A zero-copy view of an MjData field, ``(num_envs, *MuJoCo's shape)``."""
    array = getattr(data, field, None)
    if not isinstance(array, wp.array):
        names = {spec.name for spec in dataclasses.fields(mjw.Data)}
        shared = [name for name in mujoco.batch.DATA_FIELDS if name in names]
        raise ValueError(f"MuJoCo Warp has no MjData field {field!r}{did_you_mean(field, shared)}")
    return _view(array, (data.nworld, *np.shape(getattr(mujoco.MjData(model), field))))


def owner_of(model: Any, field: str) -> tuple[Any, str]:
    """The object that holds a model field, and its name there: `model`, or its options."""
    name = field.removeprefix("opt.")
    return (model if name == field else model.opt), name


def expand_array(model: mujoco.MjModel, warp_model: mjw.Model, field: str, num_envs: int) -> Tensor:
    """Give a field rows, in place on `warp_model`; a view, ``(num_envs, *MuJoCo's shape)``."""
    _check_expandable(field)
    owner, name = owner_of(warp_model, field)
    array = getattr(owner, name)
    shape = (num_envs, *np.shape(getattr(*owner_of(model, field))))
    if array.shape[0] != num_envs:
        rows = wp.empty((num_envs, *array.shape[1:]), dtype=array.dtype)
        _view(rows, shape).copy_(_view(array, (1, *shape[1:])))
        setattr(owner, name, rows)
        array = rows
    if field in _SWITCHED_ON:
        setattr(warp_model, _SWITCHED_ON[field], True)
    return _view(array, shape)


def _check_expandable(field: str) -> None:
    types = {spec.name: spec.type for spec in dataclasses.fields(mjw.Model)}
    types |= {f"opt.{spec.name}": spec.type for spec in dataclasses.fields(mjw.Option)}
    known = mujoco.batch.MODEL_FIELDS
    expandable = [name for name, kind in types.items() if name in known and _is_batched(kind)]
    if field in expandable:
        return
    if field in mujoco.batch.DATA_FIELDS:
        raise ValueError(f"{field!r} is an MjData field: use bind({field!r})")
    if field in known:
        text = "between all environments; fields that can differ"
        raise ValueError(f"MuJoCo Warp shares {field!r} {text}: {', '.join(expandable)}")
    text = "is not an MjModel array that can differ between environments"
    raise ValueError(f"{field!r} {text}{did_you_mean(field, expandable)}")


def _is_batched(array: Any) -> bool:
    """Whether a type is that of a Warp array of real numbers with an axis of environments."""
    if getattr(array, "shape", ())[:1] != ("*",):
        return False
    return getattr(array.dtype, "_wp_scalar_type_", array.dtype) in (float, wp.float32)


def _view(array: wp.array, shape: tuple[int, ...]) -> Tensor:
    if 0 in shape:
        return torch.zeros(shape, device=wp.device_to_torch(array.device))
    tensor: Tensor = wp.to_torch(array)
    return tensor.view(shape)


class RowCopies:
    """Copies of rows between tensors, in one launch; made once, for it copies from the host."""

    def __init__(self, copies: Sequence[tuple[Tensor, Tensor, np.ndarray | None]]) -> None:
        """`copies` are sources, targets and columns, None for all; a source may have a single row.

        The first axis is that of environments; all numbers behind it count as columns.
        """
        self._copies: list[Any] = []  # whose memory the device refers to
        entries = []
        for source, target, selected in copies:
            if target.numel():
                columns = np.arange(target[0].numel()) if selected is None else selected
                entries += [(len(self._copies), column) for column in columns]
                copy = kernels.Copy()
                rows = (wp.from_torch(tensor.view(len(tensor), -1)) for tensor in (source, target))
                copy.source, copy.target = rows
                self._copies.append(copy)
        numbers, columns = np.array(entries).T
        self._shape = len(copies[0][1]), len(entries)
        self._inputs = [wp.array(self._copies, dtype=kernels.Copy)]
        self._inputs += [wp.array(array, dtype=int) for array in (numbers, columns)]

    def launch(self, mask: wp.array, *, where: bool) -> None:
        """Copy the rows where ``mask == where``, in place."""
        wp.launch(kernels.copy_rows, self._shape, [mask, where, *self._inputs])


@dataclass(frozen=True)
class BufferSizes:
    """Contacts (and pairs of geoms near each other) on average, rows of constraints in each."""

    max_contacts: int
    max_constraints: int


def find_sizes(
    model: mujoco.MjModel,
    keyframe: int | None = None,
    max_contacts: int | None = None,
    max_constraints: int | None = None,
) -> BufferSizes:
    """The given sizes, but at least 1; in place of None, the result of `_probe`."""
    sizes = [max_contacts, max_constraints]
    if None in sizes:
        pairs = zip(sizes, _probe(model, keyframe), strict=True)
        sizes = [probed if size is None else size for size, probed in pairs]
    # Without any room MuJoCo Warp skips steps whose results the integrators need.
    return BufferSizes(*(max(1, size or 0) for size in sizes))


def _probe(model: mujoco.MjModel, keyframe: int | None) -> tuple[int, int]:
    """The most seen in simulations under random controls, and a margin; 0.2 s for a quadruped."""
    mujoco.set_mju_user_warning(ignore_warning)  # random controls may be unstable
    random = np.random.default_rng(0)
    batch = mujoco.batch.Batch(model, _SIMULATIONS)
    ncon, nefc = batch.bind("ncon"), batch.bind("nefc")
    xpos, xmat = batch.bind("geom_xpos"), batch.bind("geom_xmat")
    batch.reset(keyframe=-1 if keyframe is None else keyframe)
    with wp.ScopedDevice("cpu"):
        pairs = put_model(model).nxn_geom_pair_filtered.numpy()
    ranges = model.actuator_ctrlrange
    low, high = np.where(ranges[:, :1] < ranges[:, 1:], ranges, (-1.0, 1.0)).T
    nstep = max(1, round(_DURATION_S / _SAMPLES / model.opt.timestep))
    contacts, constraints = 0, 0
    for _ in range(_SAMPLES):
        contacts = max(contacts, int(ncon.max()), _most_near_pairs(model, pairs, xpos, xmat))
        constraints = max(constraints, int(nefc.max()))
        batch.bind("ctrl")[:] = random.uniform(low, high, (_SIMULATIONS, model.nu))
        batch.step(nstep=nstep)
    # Random motion rarely meets all joint limits at once; a policy may.
    limits = int(np.sum(model.jnt_limited)) + int(np.sum(model.tendon_limited))
    # Joints without friction loss may get some by randomization.
    is_joint = model.jnt_type[model.dof_jntid] >= int(mujoco.mjtJoint.mjJNT_SLIDE)
    frictionless = int(np.sum(is_joint & (model.dof_frictionloss == 0.0)))
    return int(_MARGIN * contacts) + 4, int(_MARGIN * constraints) + limits + frictionless + 8


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
    """Raise `ConfigError` if `num_envs` do not fit into `free` bytes; steps need some more."""
    with wp.ScopedDevice("cpu"):
        one, three = (_bytes(make_data(model, n, sizes)) for n in (1, 3))
    per_env = (three - one) // 2
    if num_envs * per_env > free:
        raise ConfigError(
            f"{num_envs} environments need at least {num_envs * per_env / 2**30:.1f} GiB of GPU "
            f"memory and {free / 2**30:.1f} GiB are free: use --num-envs {free // per_env} or fewer"
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
    """The overflow by the ``OverflowType`` `bits`, ``(num_envs,)``; `peaks`: needed sizes."""
    anything = sum(_OTHERS, _CONTACTS | _CONSTRAINTS)
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
