"""Domain randomization: events that set fields of the model for each environment separately.

Draws are relative to the values of the model, not to those of the last draw, so that an event can
run at start-up, at resets or at intervals. Parameters are bounds. Actuators of `joints` are
position actuators, of one slide or hinge each. Constants that depend on masses, poses and sizes
(``mj_setConst``) are recomputed once, after all events of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal

import mujoco
import mujoco.batch
import numpy as np
import torch

from simtrain.env.control.transmission import find_servos
from simtrain.env.names import KINDS, as_index
from simtrain.env.randomness import Distribution, Draws
from simtrain.env.reading import checked_by
from simtrain.errors import ConfigError, choices, did_you_mean
from simtrain.mdp.rotations import principal_axes, quat_from_euler, quat_mul, rotate
from simtrain.sim.engine import ALL

if TYPE_CHECKING:
    from torch import Tensor

    from simtrain.env.control.cfg import Names
    from simtrain.env.env import Env
    from simtrain.env.names import Bounds, Entities, Joints
    from simtrain.sim.engine import Index

Operation = Literal["abs", "add", "scale"]
_KINDS = {
    **{kind: names for names, kind in KINDS.items() if kind != "sensor"},
    **dict.fromkeys(("jnt", "dof", "qpos"), "joints"),
}
"""The parameter that names a field's entries, by the prefix of the field's name."""
_TURNED = ("roll", "pitch", "yaw")
_NEVER_NEGATIVE = (
    *("body_mass", "body_inertia", "geom_size", "geom_friction", "pair_friction"),
    *("dof_armature", "dof_damping", "dof_frictionloss"),
)
_COLUMNS = {
    "geom_friction": ("sliding", "torsional", "rolling"),
    "pair_friction": ("sliding1", "sliding2", "torsional", "rolling1", "rolling2"),
}
_WITHOUT_SIZE = [int(getattr(mujoco.mjtGeom, f"mjGEOM_{n}")) for n in ("MESH", "HFIELD", "SDF")]


def _check_simple(
    model: mujoco.MjModel, step_dt: float = 0.0, *, bodies: Entities, **params: Any
) -> None:
    """Raise ConfigError for simple bodies, whose inertial frame MuJoCo takes for the body frame."""
    for name in np.array(bodies.names)[model.body_simple[bodies.ids] != 0].tolist():
        text = f'MuJoCo moves the centre of mass of body {name!r} only if it has simple="false"'
        raise ConfigError(f"{text} in the model")


@dataclass(eq=False, repr=False)
class randomize_field:
    """Randomize a field of the model for each environment, relative to the values of the model.

    `field` is MuJoCo's name of the field, such as ``dof_armature`` or ``opt.gravity``, or several
    names of fields that get the same numbers. Its elements are selected by the parameter for their
    kind: `bodies` for ``body_...``, `joints` for ``jnt_...``, ``dof_...`` and ``qpos0``, none for
    ``opt.``.

    Numbers are drawn within `ranges`, one for each element or, if `shared`, one for all. They
    replace the value of the model (`operation` ``abs``), are added to it (``add``) or multiply it
    (``scale``). An element with several columns gets one number for all columns, or one for each
    named column: x, y, z; lower, upper of a range; sliding, torsional, rolling; 0, 1, 2, ... for
    other fields. A ``..._quat`` is rotated (``add``) by roll, pitch, yaw about its own axes, rad.

    With the `distribution` ``gaussian``, the mean is the middle of the range, and the range ends at
    three standard deviations. If two geoms touch, MuJoCo uses the friction of the geom with the
    higher priority, or the larger friction if the priorities are equal.
    """

    env: InitVar[Env]
    field: Names
    ranges: Bounds | Mapping[str, Bounds]
    operation: Operation = "scale"
    distribution: Distribution = "uniform"
    shared: bool = False
    bodies: Entities | None = None
    geoms: Entities | None = None
    sites: Entities | None = None
    joints: Joints | None = None
    actuators: Entities | None = None
    tendons: Entities | None = None
    pairs: Entities | None = None

    def __post_init__(self, env: Env) -> None:
        fields = _names(self.field)
        self._parts = [_Part(env, name, _entries(name, vars(self)), self.ranges) for name in fields]
        count = 1 if self.shared else self._parts[0].nominal.shape[0]
        bounds = ([pair] * count for _, pair in _by_column(env.model, fields[0], self.ranges))
        self._draws = Draws(env, *bounds, distribution=self.distribution)
        self._sets_constants = any(field in mujoco.MjModel._setconst_inputs for field in fields)

    @staticmethod
    def check(
        model: mujoco.MjModel,
        step_dt: float,
        field: Names,
        ranges: Any,
        operation: str = "scale",
        **params: Any,
    ) -> None:
        """Raise ConfigError unless this can be drawn in `model`."""
        for name in _names(field):
            _check_field(model, name, operation, params)
            for _, (low, high) in _by_column(model, name, ranges):
                if params.get("distribution") == "log_uniform" and low <= 0.0:
                    raise ConfigError(f"ranges has {low} {high}; log_uniform needs numbers above 0")
                least = _values(model, name)[_entries(name, params)].min()
                least = least + low if operation == "add" else low
                if name in _NEVER_NEGATIVE and least < 0.0:
                    raise ConfigError(f"{name} could be {least:g}; it must not be negative")

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        numbers = self._draws.draw().movedim(0, 2)
        for part in self._parts:
            part.write(env, mask, numbers, self.operation)
        if self._sets_constants:
            env.set_const(mask)


@checked_by(_check_simple)
class randomize_pseudo_inertia:
    """Change mass, centre of mass and inertia of bodies together, to physically possible values.

    In its frame of principal axes, the pseudo-inertia J of a body becomes U J U^T, where U is
    e^alpha [[e^d1, s12, s13, t1], [0, e^d2, s23, t2], [0, 0, e^d3, t3], [0, 0, 0, 1]]. Thus the
    mass distribution is stretched by e^d, sheared by s and moved by t, m, and the mass is
    multiplied by e^(2 alpha). Every d, s and t is drawn within the bounds of its letter. See Rucker
    and Wensing, "Smooth Parameterization of Rigid-Body Inertia", IEEE RA-L 2022.
    """

    def __init__(
        self,
        env: Env,
        bodies: Entities,
        alpha: Bounds = (0.0, 0.0),
        d: Bounds = (0.0, 0.0),
        s: Bounds = (0.0, 0.0),
        t: Bounds = (0.0, 0.0),
    ) -> None:
        self._ids = bodies.ids
        bounds = (alpha, *[d] * 3, *[s] * 3, *[t] * 3)
        self._draws = Draws(env, *([pair] * len(bodies) for pair in bounds))
        fields = ("body_mass", "body_inertia", "body_ipos", "body_iquat")
        self._mass, inertia, self._position, self._axes = (
            _nominal(env, field, bodies.ids) for field in fields
        )
        # Second moments of mass along the principal axes, whose sums by two are the inertia.
        moments = 0.5 * inertia.sum(1, keepdim=True) - inertia
        self._root = moments.clamp(min=0.0).sqrt().unsqueeze(1)

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        alpha, d1, d2, d3, s12, s13, s23, *shift = self._draws.draw()
        zero = torch.zeros_like(alpha)
        rows = (d1.exp(), s12, s13, zero, d2.exp(), s23, zero, zero, d3.exp())
        stretched = torch.stack(rows, dim=-1).unflatten(-1, (3, 3)) * self._root
        moments, turn = principal_axes(stretched @ stretched.mT)
        factor = (2.0 * alpha).exp()
        inertia = (moments.sum(-1, keepdim=True) - moments) * factor.unsqueeze(-1)
        position = self._position + rotate(self._axes, torch.stack(shift, dim=-1))
        env.sim.write("body_mass", self._mass * factor, mask, self._ids)
        env.sim.write("body_inertia", inertia, mask, self._ids)
        env.sim.write("body_ipos", position, mask, self._ids)
        env.sim.write("body_iquat", quat_mul(self._axes, turn), mask, self._ids)
        env.set_const(mask)


class randomize_actuator_gains:
    """Scale stiffness, kp, and damping, kv, of position actuators, each by its own factors."""

    def __init__(self, env: Env, joints: Joints, stiffness: Bounds, damping: Bounds) -> None:
        self._actuators = find_servos(env.model, joints, env.device)
        self._draws = Draws(env, [stiffness] * len(joints), [damping] * len(joints))
        self._gain = _nominal(env, "actuator_gainprm", self._actuators)
        self._bias = _nominal(env, "actuator_biasprm", self._actuators)
        self._biases = env.sim.expand("actuator_biasprm")

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        # Force: gainprm[0] ctrl + biasprm[0] + biasprm[1] q + biasprm[2] qvel, with
        # biasprm[1] = -kp and biasprm[2] = -kv; biasprm[0] scales along, for an encoder's bias.
        kp, kv = self._draws.draw()
        gain = self._gain.repeat(env.num_envs, 1, 1)
        gain[:, :, 0].mul_(kp)
        bias = self._bias.repeat(env.num_envs, 1, 1)
        bias[:, :, 1].mul_(kp)
        bias[:, :, 2].mul_(kv)
        now = self._biases[:, self._actuators]
        bias[:, :, 0] = now[:, :, 0] * bias[:, :, 1] / now[:, :, 1]
        env.sim.write("actuator_gainprm", gain, mask, self._actuators)
        env.sim.write("actuator_biasprm", bias, mask, self._actuators)


class randomize_motors:
    """Randomize friction, armature and strength of the motors of position actuators, each alone.

    `friction` is added to the friction loss of the model (``dof_frictionloss``), as a fraction of
    the largest torque (``forcerange``); a motor without this limit has no friction added.
    `armature` and `strength` are factors of ``dof_armature`` and of the largest torque.
    """

    def __init__(
        self,
        env: Env,
        joints: Joints,
        friction: Bounds = (0.0, 0.0),
        armature: Bounds = (1.0, 1.0),
        strength: Bounds = (1.0, 1.0),
    ) -> None:
        self._dofs, self._actuators = joints.qvel, find_servos(env.model, joints, env.device)
        self._draws = Draws(env, *([pair] * len(joints) for pair in (friction, armature, strength)))
        self._loss = _nominal(env, "dof_frictionloss", self._dofs)
        self._armature = _nominal(env, "dof_armature", self._dofs)
        self._range = _nominal(env, "actuator_forcerange", self._actuators)
        self._torque = self._range.abs().amax(dim=1)

    @staticmethod
    def check(model: mujoco.MjModel, step_dt: float, joints: Joints, **bounds: Bounds) -> None:
        """Raise ConfigError for bounds below zero."""
        for name, (low, _) in bounds.items():
            if low < 0.0:
                raise ConfigError(f"{name} could be {low:g}; it must not be negative")

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        friction, armature, strength = self._draws.draw()
        loss = torch.addcmul(self._loss, self._torque, friction)
        env.sim.write("dof_frictionloss", loss, mask, self._dofs)
        env.sim.write("dof_armature", self._armature * armature, mask, self._dofs)
        limits = self._range * strength.unsqueeze(-1)
        env.sim.write("actuator_forcerange", limits, mask, self._actuators)
        env.set_const(mask)


class randomize_encoder_bias:
    """Add a constant error to each joint encoder, in m or rad.

    The error changes both users of the encoder: the servo, which controls the measured position,
    and `joint_pos_rel` with ``biased=True``. The bias is stored in the servo, whose force becomes
    kp (ctrl - (q + bias)) - kv qvel: ``biasprm[0] = -kp bias``.
    """

    def __init__(self, env: Env, joints: Joints, bias: Bounds) -> None:
        self._actuators = find_servos(env.model, joints, env.device)
        self._draws = Draws(env, [bias] * len(joints))
        self._biases = env.sim.expand("actuator_biasprm")

    def __call__(self, env: Env, mask: Tensor) -> None:
        """Change the environments in `mask`."""
        values = self._biases[:, self._actuators].clone()
        values[:, :, 0] = values[:, :, 1] * self._draws.draw()[0]
        env.sim.write("actuator_biasprm", values, mask, self._actuators)


class _Part:
    """Some entries of one field, and the columns of them that are drawn."""

    def __init__(self, env: Env, field: str, index: Index, ranges: object) -> None:
        self._field, self._index = field, index
        self._turns = field.endswith("quat")
        values, columns = _nominal(env, field, index), _columns(field, _values(env.model, field))
        rows = values.reshape(1 if index is ALL else len(values), -1)
        drawn = [columns.index(name) for name, _ in _by_column(env.model, field, ranges) if name]
        self._keeps_columns = len(drawn) not in (0, rows.shape[1])
        self._places = as_index(drawn or [*range(max(1, len(columns)))], env.device)
        # The values that are changed, ``(entries, columns)``.
        self.nominal = rows if self._turns else rows[:, self._places]

    def write(self, env: Env, mask: Tensor, numbers: Tensor, operation: str) -> None:
        """Write values by `numbers`, ``(num_envs, entries or 1, columns or 1)``, in place."""
        now = env.sim.expand(self._field)[:, self._index]
        if self._turns:
            angles = torch.zeros(*numbers.shape[:2], 3, device=env.device)
            angles[..., self._places] = numbers
            values = quat_mul(self.nominal, quat_from_euler(*angles.unbind(-1)))
        else:
            if operation != "abs":
                change = torch.add if operation == "add" else torch.mul
                numbers = change(self.nominal, numbers)
            values = numbers.expand(env.num_envs, *self.nominal.shape)
            if self._keeps_columns:
                rows = now.reshape(*values.shape[:2], -1).clone()
                rows[..., self._places] = values
                values = rows
        env.sim.write(self._field, values.reshape(now.shape), mask, self._index)


def _names(field: Names) -> tuple[str, ...]:
    return (field,) if isinstance(field, str) else tuple(field)


def _values(model: mujoco.MjModel, field: str) -> np.ndarray:
    """The model's own values of a field; options are named ``opt.<name>``."""
    return np.asarray(attrgetter(field)(model))


def _nominal(env: Env, field: str, index: Index) -> Tensor:
    """The model's own values of some entries of a field that is expanded here, on the device."""
    try:
        env.sim.expand(field)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    values = torch.as_tensor(_values(env.model, field), dtype=torch.float32, device=env.device)
    return values.clone()[index] if values.ndim else values.clone()


def _kind(field: str) -> str | None:
    """The parameter that names a field's entries, None for one of options."""
    return None if field.startswith("opt.") else _KINDS.get(field.split("_")[0].rstrip("0"))


def _entries(field: str, named: Mapping[str, Any]) -> Index:
    """The entries of a field that are drawn."""
    kind = _kind(field)
    if kind is None:
        return ALL
    index: Index = getattr(named[kind], {"dof": "qvel", "qpo": "qpos"}.get(field[:3], "ids"))
    return index


def _columns(field: str, values: np.ndarray) -> Sequence[str]:
    """The names of the columns of a field's entries; none for single numbers."""
    if field.endswith("quat"):
        return _TURNED
    if values.ndim < (1 if field.startswith("opt.") else 2):
        return ()
    size = values.shape[-1]
    if field.endswith("range"):
        return ("lower", "upper")
    digits = tuple(map(str, range(size)))
    return _COLUMNS.get(field, ("x", "y", "z") if size == 3 else digits)


def _by_column(model: mujoco.MjModel, field: str, ranges: Any) -> list[tuple[str, Bounds]]:
    """Bounds of each named column; without names of columns, those of one number for all."""
    if not isinstance(ranges, Mapping):
        return [("", ranges)]
    columns = _columns(field, _values(model, field))
    ranges = {str(name): pair for name, pair in ranges.items()}
    if unknown := ranges.keys() - set(columns):
        raise ConfigError(f"no column {min(unknown)!r}{choices(min(unknown), columns)}")
    return [(name, ranges[name]) for name in columns if name in ranges]


def _check_field(
    model: mujoco.MjModel, field: str, operation: str, params: Mapping[str, Any]
) -> None:
    """Raise ConfigError for a field that cannot be drawn, or names of entries that do not fit."""
    kind = _kind(field)
    known = [name for name in mujoco.batch.MODEL_FIELDS if name.startswith("opt.") or _kind(name)]
    if field not in known or _values(model, field).dtype.kind != "f":
        raise ConfigError(f"no field {field!r} can be drawn{did_you_mean(field, known)}")
    given = [name for name in dict.fromkeys(_KINDS.values()) if params.get(name) is not None]
    if set(given) != {kind} - {None}:
        takes = f"needs {kind}=..." if kind else "takes no names"
        raise ConfigError(f"{field} {takes}, and nothing else; given: {', '.join(given) or 'none'}")
    if field.endswith("quat") and operation != "add":
        raise ConfigError(f"operation is {operation!r}; {field} supports only 'add'")
    index = _entries(field, params)
    values = _values(model, field)[index]
    if operation == "scale" and not values.any():
        raise ConfigError(f"{field} is 0 in the model; a factor leaves it 0: use abs or add")
    flags = f"{field.removesuffix('range')}limited"
    if field.endswith("range") and hasattr(model, flags) and not getattr(model, flags)[index].all():
        raise ConfigError(f"{field} has no effect where {flags} is false; give the model a range")
    if kind == "joints" and field[0] == "q" and len(values) != len(params["joints"]):
        raise ConfigError(f"{field} can be drawn only for slides and hinges")
    if field in ("body_ipos", "body_iquat"):
        _check_simple(model, bodies=params["bodies"])
    if kind in ("bodies", "geoms"):
        _check_place(model, field, np.arange(len(_values(model, field)))[index])


def _check_place(model: mujoco.MjModel, field: str, ids: np.ndarray) -> None:
    """Raise ConfigError for places fixed to the world and mesh sizes, which engines may ignore."""
    what = field.split("_")[0]
    if field in ("body_pos", "body_quat", "geom_pos", "geom_quat"):
        bodies = ids if what == "body" else model.geom_bodyid[ids]
        is_moved = model.body_mocapid[model.body_rootid[bodies]] >= 0
        for i in ids[(model.body_weldid[bodies] == 0) & ~is_moved]:
            text = f"{what} {getattr(model, what)(i).name!r} is fixed to the world, where {field}"
            raise ConfigError(f'{text} must stay; give it a body with mocap="true"')
    if field == "geom_size" and np.isin(model.geom_type[ids], _WITHOUT_SIZE).any():
        raise ConfigError("geom_size can be drawn only for primitive geoms, not for meshes")
