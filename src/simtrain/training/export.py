"""A saved policy as files for a robot's program: ONNX or TorchScript, and what to know of it.

Nothing is written before the files, read back, have given the same actions as the policy itself.
"""

import dataclasses
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simtrain.algorithms.export import (
    FORMATS,
    INPUT,
    METADATA,
    OUTPUT,
    PolicyStep,
    export,
    random_observations,
)
from simtrain.env.env import Env
from simtrain.env.interface import Interface, describe_interface
from simtrain.env.model import evaluation_task
from simtrain.errors import ConfigError
from simtrain.run.directory import make_folder, versions, written_whole
from simtrain.sim import EngineCfg
from simtrain.training.saved_policy import SavedPolicy


@dataclass(frozen=True)
class Exported:
    """A policy's exported files."""

    files: list[Path]
    difference: float
    """Largest difference to the policy's actions, over all formats."""
    interface: Interface


def export_policy(saved: SavedPolicy, folder: Path, formats: Sequence[str]) -> Exported:
    """Write a policy for deployment, all files or none.

    ``policy.onnx`` and ``policy.pt`` are as `simtrain.algorithms.export.export` says. Both carry
    the content of ``policy.json``: a `simtrain.env.interface.Interface` and the policy's origin.

    Raises:
        ConfigError: the policy does not fit its task, its actions are not finite, or `folder`
            cannot be written.
        ExportError: a file gives other actions than the policy.
    """
    cfg = saved.config
    env = Env(evaluation_task(cfg.env), 1, EngineCfg(threads=1))
    policy = saved.policy(env.get_observations(), env.num_actions)
    interface = describe_interface(env, cfg.ppo.actor.obs_groups)
    names = {kind: FORMATS[kind].file for kind in formats}
    obs = random_observations(policy, env.get_observations())
    step = PolicyStep(policy, obs[0])
    metadata = _metadata(saved, interface, step, names)
    if not policy(obs[0]).isfinite().all():
        raise ConfigError(f"{saved.checkpoint} gives actions that are not finite numbers")
    properties = _properties(metadata)
    exports = {name: export(policy, kind, properties, obs) for kind, name in names.items()}
    files = {METADATA: _readable(metadata).encode()}
    files |= {name: content for name, (content, _) in exports.items()}
    _write_all(folder, files)
    difference = max(difference for _, difference in exports.values())
    return Exported([folder / name for name in files], difference, interface)


def _metadata(
    saved: SavedPolicy, interface: Interface, step: PolicyStep, names: dict[str, str]
) -> dict[str, Any]:
    shapes = zip(step.input_names, step.example, strict=True)
    return {
        "task": saved.config.task,
        "iteration": saved.iteration,
        "run": saved.run.resolve().name,
        "checkpoint": saved.checkpoint.name,
        "simtrain_version": versions()["simtrain"],
        "files": names,
        "input": INPUT,
        "output": OUTPUT,
        "image_inputs": {name: list(x.shape[1:]) for name, x in shapes if name in step.images},
        "state_inputs": {name: [n, units] for name, (n, _, units) in step.states.items()},
        "state_outputs": step.output_names[1:],
        **dataclasses.asdict(interface),
    }


def _properties(metadata: dict[str, Any]) -> dict[str, str]:
    """The metadata as ONNX keeps them: strings under the keys of mjlab's exporter, and all as JSON.

    Lists are separated by commas, numbers are in full precision.
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
