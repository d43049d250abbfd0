"""A MuJoCo model on MuJoCo Warp: what it supports, and which fields it has under MuJoCo's names."""

from __future__ import annotations

import dataclasses
from math import prod
from typing import Any

import mujoco
import mujoco.batch
import mujoco_warp as mjw
import numpy as np
import torch
import warp as wp
from torch import Tensor

from simtrain.errors import ConfigError, did_you_mean

# Warp would announce itself and every kernel that it loads on standard output.
wp.config.log_level = max(wp.config.log_level, wp.LOG_WARNING)

_SWITCHED_ON = {
    "geom_adhesion": "flg_adhesion",
    "geom_surfacevel": "flg_surfacevel",
    "opt.density": "has_fluid",
    "opt.viscosity": "has_fluid",
    "opt.wind": "has_fluid",
    "pair_adhesion": "flg_adhesion",
    "tendon_damping": "has_tendon_damping",
    "tendon_stiffness": "has_tendon_stiffness",
}
"""Features that MuJoCo Warp turns off for a model whose own values are zero."""


def check_model(model: mujoco.MjModel) -> None:
    """Raise `ConfigError` if MuJoCo Warp cannot simulate a model; takes 0.1 s and no GPU."""
    with wp.ScopedDevice("cpu"):
        put_model(model)


def put_model(model: mujoco.MjModel) -> mjw.Model:
    """The model on Warp's current device; `ConfigError` if the engine cannot simulate it."""
    unsupported = None
    if model.nflex:
        unsupported = "flexes (deformable bodies)"
    elif model.opt.enableflags & mujoco.mjtEnableBit.mjENBL_SLEEP:
        unsupported = "the flag 'sleep'"
    elif np.any(model.sensor_delay) or np.any(model.sensor_interval):
        # A delayed sensor is read and recorded whenever it is computed, and `forward` computes the
        # sensors of all environments once more.
        unsupported = "sensors with a delay or an interval"
    if unsupported:
        raise ConfigError(
            f"the warp engine does not support {unsupported}: use --engine mujoco, or take it "
            f"out of the model"
        )
    try:
        return mjw.put_model(model)
    except (NotImplementedError, ValueError) as error:
        raise ConfigError(
            f"MuJoCo Warp does not support this model: {error} "
            f"Use --engine mujoco, or change the model."
        ) from error


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
    """Give a model field one row per environment, in place on `warp_model`; a view of the rows.

    Shape ``(num_envs, *MuJoCo's shape)``. Graphs captured before still use the shared values.
    """
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
    expandable = _expandable_fields()
    if field in expandable:
        return
    if field in mujoco.batch.DATA_FIELDS:
        raise ValueError(f"{field!r} is an MjData field: use bind({field!r})")
    if field in mujoco.batch.MODEL_FIELDS:
        raise ValueError(
            f"MuJoCo Warp shares {field!r} between all environments; fields that can differ: "
            f"{', '.join(expandable)}"
        )
    raise ValueError(
        f"{field!r} is not an MjModel array that can differ between environments"
        f"{did_you_mean(field, expandable)}"
    )


def _expandable_fields() -> list[str]:
    """MjModel fields that can differ between environments; options are named ``opt.<name>``."""
    types = {spec.name: spec.type for spec in dataclasses.fields(mjw.Model)}
    types |= {f"opt.{spec.name}": spec.type for spec in dataclasses.fields(mjw.Option)}
    return [n for n, t in types.items() if n in mujoco.batch.MODEL_FIELDS and _is_batched(t)]


def _is_batched(array: Any) -> bool:
    """Whether a type is that of a Warp array of real numbers with an axis of environments."""
    if getattr(array, "shape", ())[:1] != ("*",):
        return False
    return getattr(array.dtype, "_wp_scalar_type_", array.dtype) in (float, wp.float32)


def _view(array: wp.array, shape: tuple[int, ...]) -> Tensor:
    """The memory of a Warp array as a tensor of the given shape."""
    if prod(shape) == 0:
        return torch.zeros(shape, device=wp.device_to_torch(array.device))
    tensor: Tensor = wp.to_torch(array)
    return tensor.view(shape)


def rows_of(tensor: Tensor) -> wp.array:
    """The memory of a tensor as a two-dimensional Warp array, one row per environment."""
    return wp.from_torch(tensor.view(tensor.shape[0], -1))
