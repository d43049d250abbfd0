"""A policy as ONNX or TorchScript, with its normalization; each compared with the policy itself."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import torch
from tensordict import TensorDict

from simtrain.algorithms.policy import Policy
from simtrain.errors import ExportError

TOLERANCE = 1e-5
"""Largest difference of an action, relative to the action where that is larger than 1."""
METADATA = "policy.json"  # the property that has all metadata as JSON
INPUT, OUTPUT = "obs", "actions"


def export(
    policy: Policy, kind: str, properties: dict[str, str], obs: TensorDict
) -> tuple[bytes, float]:
    """A file's content in one of `FORMATS`, and the largest difference to the policy's actions.

    It reads ``obs``, float32 ``(batch, observation_size)``, gives ``actions``, ``(batch,
    action_size)``, and carries `properties`; TorchScript only `METADATA`. On `obs` it is compared:
    ExportError if it gives other actions than the policy.
    """
    content = FORMATS[kind].convert(policy, properties)
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
    """Always the same ``{group: (100, size)}``, spread as in training, else standard normal."""
    generator = torch.Generator().manual_seed(0)
    groups = policy.actor.obs_groups
    sizes = [obs[group].shape[1] for group in groups]
    values = torch.randn(100, sum(sizes), generator=generator)
    if policy.actor.obs_normalization:
        normalizer = policy.actor.obs_normalizer
        values = normalizer.mean + normalizer.std * values
    parts = dict(zip(groups, values.split(sizes, dim=1), strict=True))
    return TensorDict(parts, batch_size=[len(values)])


def _to_onnx(policy: Policy, properties: dict[str, str]) -> bytes:
    module = policy.actor.as_onnx(verbose=False).eval()
    # Two rows: torch.export takes the sizes 0 and 1 for constants.
    example = torch.zeros(2, module.input_size)
    # It warns of packages that a policy has no use for.
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    names: dict[str, Any] = {"input_names": [INPUT], "output_names": [OUTPUT]}
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.onnx.export(
        module, (example,), **names, dynamic_shapes=shapes, dynamo=True, verbose=False
    )
    assert program is not None
    model = program.model_proto
    for node in model.graph.node:
        del node.metadata_props[:]  # stack traces of the exporter, with paths of this machine
    onnx.helper.set_model_props(model, properties)
    return bytes(model.SerializeToString())


def _run_onnx(content: bytes, obs: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return np.asarray(session.run([OUTPUT], {INPUT: obs})[0])


def _to_torchscript(policy: Policy, properties: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with _deprecated_torchscript():
        module = torch.jit.script(policy.actor.as_jit().eval())
        torch.jit.save(module, file, _extra_files={METADATA: properties[METADATA]})
    return file.getvalue()


def _run_torchscript(content: bytes, obs: np.ndarray) -> np.ndarray:
    with _deprecated_torchscript(), torch.inference_mode():
        return np.asarray(torch.jit.load(io.BytesIO(content))(torch.from_numpy(obs)))


def _deprecated_torchscript() -> warnings.catch_warnings[None]:
    """No warnings of it: programs of robots in C++ still load TorchScript."""
    return warnings.catch_warnings(action="ignore", category=FutureWarning)


class Format(NamedTuple):
    """A format of exported policies: its file, how to make and how to run the content."""

    file: str
    convert: Callable[[Policy, dict[str, str]], bytes]
    run: Callable[[bytes, np.ndarray], np.ndarray]


FORMATS = {
    "onnx": Format("policy.onnx", _to_onnx, _run_onnx),
    "torchscript": Format("policy.pt", _to_torchscript, _run_torchscript),
}
