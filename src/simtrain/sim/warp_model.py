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
    """Find out whether MuJoCo Warp can simulate a model, without building a simulation.

    Takes about a tenth of a second and no GPU.

    Raises:
        ConfigError: it cannot; the text names the feature.
    """
    with wp.ScopedDevice("cpu"):
        put_model(model)


def put_model(model: mujoco.MjModel) -> mjw.Model:
    """The model on Warp's current device.

    Raises:
        ConfigError: MuJoCo Warp, or the engine's use of it, cannot simulate the model.
    """
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


def check_memory(num_envs: int, bytes_per_env: int, free: int) -> None:
    """Refuse more environments than fit into a GPU's free memory, in bytes.

    Raises:
        ConfigError: they do not fit; the text says how many would.
    """
    if num_envs * bytes_per_env > free:
        raise ConfigError(
            f"{num_envs} environments need at least {num_envs * bytes_per_env / 2**30:.1f} GiB of "
            f"GPU memory and {free / 2**30:.1f} GiB are free: "
            f"use --num-envs {free // bytes_per_env} or fewer"
        )


def bytes_per_env(model: mujoco.MjModel, max_contacts: int, max_constraints: int) -> int:
    """Memory that MuJoCo Warp keeps for each environment; steps need some more while they run."""
    with wp.ScopedDevice("cpu"):
        one, three = (
            _bytes(mjw.make_data(model, n, nconmax=max_contacts, njmax=max_constraints))
            for n in (1, 3)
        )
    return (three - one) // 2


def _bytes(data: Any) -> int:
    values = [getattr(data, spec.name) for spec in dataclasses.fields(data)]
    return sum(
        _bytes(value) if dataclasses.is_dataclass(value) else value.capacity
        for value in values
        if dataclasses.is_dataclass(value) or isinstance(value, wp.array)
    )


def data_array(data: mjw.Data, field: str) -> wp.array:
    """The Warp array of an MjData field.

    Raises:
        ValueError: MuJoCo Warp has no such field.
    """
    array = getattr(data, field, None)
    if not isinstance(array, wp.array):
        shared = [
            spec.name
            for spec in dataclasses.fields(mjw.Data)
            if spec.name in mujoco.batch.DATA_FIELDS
        ]
        raise ValueError(f"MuJoCo Warp has no MjData field {field!r}{did_you_mean(field, shared)}")
    return array


def data_shape(model: mujoco.MjModel, field: str) -> tuple[int, ...]:
    """MuJoCo's own shape of an MjData field, without the environments."""
    return np.shape(getattr(mujoco.MjData(model), field))


def expand_array(model: mujoco.MjModel, warp_model: mjw.Model, field: str, num_envs: int) -> Tensor:
    """Give a model field one row per environment, in place on `warp_model`; a view of the rows.

    Shape ``(num_envs, *MuJoCo's shape)``. Graphs captured before still use the shared values.

    Raises:
        ValueError: MuJoCo Warp does not batch the field.
    """
    owner: Any = warp_model
    mujoco_owner: Any = model
    name = field
    if field.startswith("opt."):
        owner, mujoco_owner, name = warp_model.opt, model.opt, field.removeprefix("opt.")
    if field not in expandable_fields():
        if field in mujoco.batch.DATA_FIELDS:
            raise ValueError(f"{field!r} is an MjData field: use bind({field!r})")
        if field in mujoco.batch.MODEL_FIELDS:
            raise ValueError(
                f"MuJoCo Warp shares {field!r} between all environments; fields that can differ: "
                f"{', '.join(expandable_fields())}"
            )
        raise ValueError(
            f"{field!r} is not an MjModel array that can differ between environments"
            f"{did_you_mean(field, expandable_fields())}"
        )
    array: Any = getattr(owner, name)
    shape = (num_envs, *np.shape(getattr(mujoco_owner, name)))
    if array.shape[0] != num_envs:
        rows = wp.empty((num_envs, *array.shape[1:]), dtype=array.dtype)
        view(rows, shape).copy_(view(array, (1, *shape[1:])))
        setattr(owner, name, rows)
        array = rows
    if field in _SWITCHED_ON:
        setattr(warp_model, _SWITCHED_ON[field], True)
    return view(array, shape)


def expandable_fields() -> list[str]:
    """MjModel fields that can differ between environments; options are named ``opt.<name>``."""
    fields = []
    for prefix, owner in (("", mjw.Model), ("opt.", mjw.Option)):
        for spec in dataclasses.fields(owner):
            array: Any = spec.type
            batched = getattr(array, "shape", ())[:1] == ("*",)
            if batched and prefix + spec.name in mujoco.batch.MODEL_FIELDS:
                scalar = getattr(array.dtype, "_wp_scalar_type_", array.dtype)
                if scalar in (float, wp.float32):
                    fields.append(prefix + spec.name)
    return fields


def view(array: wp.array, shape: tuple[int, ...]) -> Tensor:
    """The memory of a Warp array as a tensor of the given shape."""
    if prod(shape) == 0:
        return torch.zeros(shape, device=wp.device_to_torch(array.device))
    tensor: Tensor = wp.to_torch(array)
    return tensor.view(shape)


def rows_of(tensor: Tensor) -> wp.array:
    """The memory of a tensor as a two-dimensional Warp array, one row per environment."""
    return wp.from_torch(tensor.view(tensor.shape[0], -1))
