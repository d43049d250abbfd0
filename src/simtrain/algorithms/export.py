"""A policy as ONNX or TorchScript, each compared with the policy itself.

The normalization of observations is inside; exploration noise is not.
"""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from tensordict import TensorDict

from simtrain.algorithms.policy import Policy
from simtrain.errors import ExportError

TOLERANCE = 1e-5
"""Largest difference of an action, relative to the action where that is larger than 1."""

METADATA = "policy.json"
"""The key under which exported files carry their metadata, as JSON."""
INPUT, OUTPUT = "obs", "actions"
_CHECKED = 100


def export(
    policy: Policy, kind: str, metadata: dict[str, Any], obs: TensorDict
) -> tuple[bytes, float]:
    """A policy in a format; and the largest difference to the policy's actions.

    It reads ``obs``, float32 ``(batch, observation_size)``, and gives ``actions``, ``(batch,
    action_size)``.

    Args:
        policy: the policy.
        kind: one of `FORMATS`.
        metadata: plain data that the file carries, see `onnx_properties`.
        obs: observations to compare with, see `random_observations`.

    Raises:
        ExportError: the result gives other actions than the policy.
    """
    content = FORMATS[kind].convert(policy, metadata)
    vector = torch.cat([obs[group] for group in policy.actor.obs_groups], dim=1)
    actions, expected = FORMATS[kind].run(content, vector.numpy()), policy(obs).numpy()
    difference = (np.abs(actions - expected) / np.maximum(1.0, np.abs(expected))).max()
    if not difference < TOLERANCE:
        raise ExportError(
            f"the {kind} export differs from the policy by {difference:.1e} "
            f"(allowed: {TOLERANCE:.0e}); nothing was written"
        )
    return content, float(difference)


def random_observations(policy: Policy, obs: TensorDict) -> TensorDict:
    """Observations to try a policy with, spread as those that it was trained on.

    Args:
        policy: the policy; without normalization, observations are standard normal.
        obs: an observation of its environment, for names and sizes.

    Returns:
        ``{group: (100, size)}``, always the same.
    """
    generator = torch.Generator().manual_seed(0)
    groups = policy.actor.obs_groups
    sizes = [obs[group].shape[1] for group in groups]
    values = torch.randn(_CHECKED, sum(sizes), generator=generator)
    if policy.actor.obs_normalization:
        normalizer = policy.actor.obs_normalizer
        values = normalizer.mean + normalizer.std * values
    parts = dict(zip(groups, values.split(sizes, dim=1), strict=True))
    return TensorDict(parts, batch_size=[_CHECKED])


def _to_onnx(policy: Policy, metadata: dict[str, Any]) -> bytes:
    module = policy.actor.as_onnx(verbose=False).eval()
    # Two rows: torch.export takes the sizes 0 and 1 for constants.
    example = torch.zeros(2, module.input_size)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of packages that a policy has no use for
    try:
        program = torch.onnx.export(
            module,
            (example,),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            dynamo=True,
            verbose=False,
        )
    finally:
        logger.setLevel(level)
    assert program is not None
    model = program.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]  # stack traces of the exporter, with paths of this machine
    onnx.helper.set_model_props(model, onnx_properties(metadata))
    return bytes(model.SerializeToString())


def onnx_properties(metadata: dict[str, Any]) -> dict[str, str]:
    """The metadata as ONNX keeps them: strings.

    The keys of mjlab's exporter are here with their meaning, lists separated by commas, numbers in
    full precision. ``policy.json`` has all of it as JSON.
    """
    names = (
        "task", "iteration", "simtrain_version", "control_period", "joint_names", "joint_stiffness",
        "joint_damping", "default_joint_pos", "action_scale", "action_offset", "observation_names",
        "command_names",
    )  # fmt: skip
    properties = {"run_path": f"{metadata['task']}/{metadata['run']}"}
    for name in names:
        value = metadata[name]
        properties[name] = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return properties | {METADATA: json.dumps(metadata)}


def _run_onnx(content: bytes, obs: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return np.asarray(session.run([OUTPUT], {INPUT: obs})[0])


def _to_torchscript(policy: Policy, metadata: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    with _deprecated_torchscript():
        module = torch.jit.script(policy.actor.as_jit().eval())
        torch.jit.save(module, file, _extra_files={METADATA: json.dumps(metadata)})
    return file.getvalue()


def _run_torchscript(content: bytes, obs: np.ndarray) -> np.ndarray:
    with _deprecated_torchscript(), torch.inference_mode():
        module = torch.jit.load(io.BytesIO(content))
        return np.asarray(module(torch.from_numpy(obs)))


def _deprecated_torchscript() -> warnings.catch_warnings[None]:
    """No warnings of it: programs of robots in C++ still load TorchScript."""
    return warnings.catch_warnings(action="ignore", category=FutureWarning)


@dataclass(frozen=True)
class Format:
    """A format of exported policies."""

    file: str
    convert: Callable[[Policy, dict[str, Any]], bytes]
    """The file's content, with metadata."""
    run: Callable[[bytes, np.ndarray], np.ndarray]
    """Actions by that content for observations, ``(n, observation_size)``."""


FORMATS = {
    "onnx": Format("policy.onnx", _to_onnx, _run_onnx),
    "torchscript": Format("policy.pt", _to_torchscript, _run_torchscript),
}
