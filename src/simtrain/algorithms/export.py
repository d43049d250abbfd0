"""A trained policy as files for a robot's program: ONNX or TorchScript, and what to know of it.

The normalization of observations is inside; exploration noise is not. Nothing is written before the
files, read back, have given the same actions as the policy itself.
"""

from __future__ import annotations

import dataclasses
import io
import json
import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from tensordict import TensorDict

from simtrain import __version__
from simtrain.env.env import Env
from simtrain.env.interface import Interface, describe_interface
from simtrain.env.model import evaluation_task
from simtrain.errors import ConfigError, ExportError
from simtrain.run.directory import make_folder, written_whole
from simtrain.sim import EngineCfg
from simtrain.training.saved_policy import Policy, SavedPolicy

TOLERANCE = 1e-5
"""Largest difference of an action, relative to the action where that is larger than 1."""

METADATA_FILE = "policy.json"

_INPUT, _OUTPUT = "obs", "actions"
_CHECKED = 100

Run = Callable[[np.ndarray], np.ndarray]
"""An exported policy at work: observations ``(n, observation_size)`` to actions."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    files: list[Path]
    difference: float
    """Largest difference to the policy's actions, over all formats."""
    interface: Interface


def export_policy(saved: SavedPolicy, folder: Path, formats: Sequence[str]) -> Exported:
    """Write a policy for deployment, all files or none.

    ``policy.onnx`` reads ``obs``, float32 ``(batch, observation_size)``, and gives ``actions``,
    ``(batch, action_size)``; ``policy.pt`` is a TorchScript module that does the same. Both carry
    the content of ``policy.json``: a `simtrain.env.interface.Interface` and where the policy
    comes from.

    Args:
        saved: the policy.
        folder: where the files go; made if it is missing.
        formats: ``onnx``, ``torchscript`` or both.

    Raises:
        ConfigError: the policy does not fit its task, its actions are not finite, or `folder`
            cannot be written.
        ExportError: a file gives other actions than the policy.
    """
    cfg = saved.config
    env = Env(evaluation_task(cfg.env), 1, EngineCfg(threads=1))
    policy = saved.policy(env.get_observations(), env.num_actions)
    interface = describe_interface(env, cfg.ppo.actor.obs_groups)
    names = {kind: _FORMATS[kind].file for kind in formats}
    metadata = _metadata(saved, interface, names)
    obs = random_observations(policy, env.get_observations())
    actions = policy(obs).numpy()
    if not np.isfinite(actions).all():
        raise ConfigError(f"{saved.checkpoint} gives actions that are not finite numbers")
    files = {METADATA_FILE: _readable(metadata).encode()}
    vector = torch.cat([obs[group] for group in cfg.ppo.actor.obs_groups], dim=1).numpy()
    differences = []
    for kind, name in names.items():
        files[name] = _FORMATS[kind].convert(policy, metadata)
        differences.append(_difference(_FORMATS[kind].open(files[name])(vector), actions))
        if not differences[-1] < TOLERANCE:
            raise ExportError(
                f"the {kind} export differs from the policy by {differences[-1]:.1e} "
                f"(allowed: {TOLERANCE:.0e}); nothing was written"
            )
    _write_all(folder, files)
    return Exported([folder / name for name in files], max(differences), interface)


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


def _difference(actions: np.ndarray, expected: np.ndarray) -> float:
    return float((np.abs(actions - expected) / np.maximum(1.0, np.abs(expected))).max())


def _metadata(saved: SavedPolicy, interface: Interface, names: dict[str, str]) -> dict[str, Any]:
    return {
        "task": saved.config.task,
        "iteration": saved.iteration,
        "run": saved.run.resolve().name,
        "checkpoint": saved.checkpoint.name,
        "simtrain_version": __version__,
        "files": names,
        "input": _INPUT,
        "output": _OUTPUT,
        **dataclasses.asdict(interface),
    }


def _readable(metadata: dict[str, Any]) -> str:
    """JSON with a line for every key, and for every part of observations, actions and commands."""
    lines = []
    for key, value in metadata.items():
        text = json.dumps(value, allow_nan=False)
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = "[\n    " + ",\n    ".join(json.dumps(part) for part in value) + "\n  ]"
        lines.append(f"  {json.dumps(key)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _write_all(folder: Path, files: dict[str, bytes]) -> None:
    """Write files into a folder; each takes its name only once all are complete."""
    for name in files:
        if (folder / name).is_dir():
            raise ConfigError(f"--output {folder} cannot be used: {name} in it is a folder")
    make_folder(folder, "--output")
    try:
        with ExitStack() as stack:
            for name, content in files.items():
                file = stack.enter_context(written_whole(folder / name))
                file.write(content)
                file.flush()
    except OSError as error:
        raise ConfigError(f"--output {folder} cannot be written: {error.strerror}") from error


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
            input_names=[_INPUT],
            output_names=[_OUTPUT],
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
    return properties | {METADATA_FILE: json.dumps(metadata)}


def _open_onnx(content: bytes) -> Run:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda obs: np.asarray(session.run([_OUTPUT], {_INPUT: obs})[0])


def _to_torchscript(policy: Policy, metadata: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    with _deprecated_torchscript():
        module = torch.jit.script(policy.actor.as_jit().eval())
        torch.jit.save(module, file, _extra_files={METADATA_FILE: json.dumps(metadata)})
    return file.getvalue()


def _open_torchscript(content: bytes) -> Run:
    with _deprecated_torchscript():
        module = torch.jit.load(io.BytesIO(content))

    def run(obs: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(module(torch.from_numpy(obs)))

    return run


def _deprecated_torchscript() -> warnings.catch_warnings[None]:
    """Quietly: robots' C++ programs load TorchScript still, whatever torch thinks of it."""
    return warnings.catch_warnings(action="ignore", category=FutureWarning)


@dataclass(frozen=True)
class _Format:
    file: str
    convert: Callable[[Policy, dict[str, Any]], bytes]
    open: Callable[[bytes], Run]


_FORMATS = {
    "onnx": _Format("policy.onnx", _to_onnx, _open_onnx),
    "torchscript": _Format("policy.pt", _to_torchscript, _open_torchscript),
}
