"""A saved policy as files: for a robot's program, or as the shipped policy of its task.

Nothing is written before the files, read back, have given the same actions as the policy.
"""

import dataclasses
import json
import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, cast

import yaml

from simtrain.algorithms.export import (
    FORMATS,
    INPUT,
    METADATA,
    OUTPUT,
    PolicyStep,
    export,
    random_observations,
)
from simtrain.config.tasks import default_config, discover
from simtrain.config.train import TrainConfig
from simtrain.config.tree import DECISIVE, POPULATION, as_plain
from simtrain.deployment.interface import Interface, describe_interface
from simtrain.deployment.robot import FILE, RobotInputs, RobotStep, export_robot
from simtrain.deployment.unitree import cannot_be_told, deploy_yaml
from simtrain.env.env import Env
from simtrain.env.model import evaluation_task, self_contained_xml
from simtrain.errors import ConfigError, flag
from simtrain.files import written_whole
from simtrain.limits import Leaves, leaves
from simtrain.run.checkpoint import packed
from simtrain.run.directory import check_folder, make_folder, read_config_file, versions
from simtrain.sim import EngineCfg, choose_engine
from simtrain.training.evaluator import Evaluation, Evaluator
from simtrain.training.saved_policy import SavedPolicy, observed, read_configuration

_PROGRAMS = ("run_policy.py", "mujoco_robot.py")  # exported beside the graph; import no simtrain
_MOST_BYTES = 3 * 10**6  # of networks that ship: they lie in everyone's clone
_MOST_ENVS, _SEED = 1024, 0  # of its evaluation
_REPEATED = (
    *(*DECISIVE, *POPULATION, "gpu_ids", "cpu_workers", "cpu_threads"),
    *("init_from", "init_only", "teacher", "distillation"),
)


@dataclass(frozen=True)
class Exported:
    """A policy's exported files."""

    files: list[Path]
    difference: float
    """Largest difference to the policy's actions, over all formats."""
    interface: Interface
    unknown_to_unitree: str | None
    """Why there is no ``deploy.yaml``; None if there is one."""


def export_policy(saved: SavedPolicy, folder: Path, formats: Sequence[str]) -> Exported:
    """Write a policy for deployment, all files or none.

    The networks are those of `simtrain.algorithms.export.export`. Each contains the content of
    ``policy.json``: a `simtrain.deployment.interface.Interface` and the policy's origin. The other
    files are the model, the graph, the programs that run the policy without simtrain, and
    ``deploy.yaml`` if `simtrain.deployment.unitree` can write it.

    Raises:
        ConfigError: the policy does not fit its task, a term uses data that a robot's program does
            not have, actions are not finite, or `folder` cannot be written.
        ExportError: a file gives other actions than the policy.
    """
    cfg = saved.config
    env = Env(cfg.env, 1, EngineCfg(threads=1))
    policy = saved.policy(env.get_observations(), env.num_actions)
    interface = describe_interface(env, cfg.ppo.actor.obs_groups)
    names = {kind: FORMATS[kind].file for kind in formats}
    obs = random_observations(policy, env.get_observations())
    step = PolicyStep(policy, obs[0])
    if not policy(obs[0]).isfinite().all():
        raise ConfigError(f"{saved.checkpoint} gives actions that are not finite numbers")
    programs: dict[str, bytes] = {}
    robot: RobotInputs | None = None
    if "onnx" in formats:
        programs[FILE], robot = export_robot(RobotStep(env, step))
        programs |= {n: Path(__file__).with_name(n).read_bytes() for n in _PROGRAMS}
    metadata = _metadata(saved, interface, step, names, robot)
    properties = _properties(metadata)
    exports = {name: export(policy, step, kind, properties, obs) for kind, name in names.items()}
    files = {METADATA: _readable(metadata).encode()}
    files |= {name: content for name, (content, _) in exports.items()}
    files |= {"model.xml": self_contained_xml(cfg.env).encode(), **programs}
    lacking = cannot_be_told(interface, bool(step.states))
    if lacking is None:
        files["deploy.yaml"] = deploy_yaml(env.model, interface).encode()
    _write_all(folder, files, "--output")
    difference = max(difference for _, difference in exports.values())
    return Exported([folder / name for name in files], difference, interface, lacking)


def _metadata(
    saved: SavedPolicy,
    interface: Interface,
    step: PolicyStep,
    names: dict[str, str],
    robot: RobotInputs | None,
) -> dict[str, Any]:
    shapes = zip(step.input_names, step.example, strict=True)
    metadata = {
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
        "robot": None if robot is None else {"file": FILE, **dataclasses.asdict(robot)},
        **dataclasses.asdict(interface),
    }
    # As JSON can hold it: None for infinities, a text for what it does not know.
    text = json.dumps(metadata, default=str)
    return cast(dict[str, Any], json.loads(text, parse_constant=lambda infinity: None))


def _properties(metadata: dict[str, Any]) -> dict[str, str]:
    """The metadata for ONNX: strings under the keys of mjlab's exporter, and all as JSON.

    Lists are separated by commas; numbers have full precision.
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


def _write_all(folder: Path, files: dict[str, bytes], of: str) -> None:
    """Write files into a folder, given by the flag `of`; rename them once all are complete."""
    for name in files:
        if (folder / name).is_dir():
            raise ConfigError(f"{of} {folder} cannot be used: {name} in it is a folder")
    make_folder(folder, of)
    try:
        with ExitStack() as stack:
            for name, content in files.items():
                file = stack.enter_context(written_whole(folder / name))
                file.write(content)
                file.flush()
    except OSError as error:
        raise ConfigError(f"{of} {folder} cannot be written: {error.strerror}") from error


@dataclass(frozen=True)
class Shipped:
    """A policy next to its task's file."""

    files: list[Path]
    command: str
    """The command that repeats the training."""
    evaluation: Evaluation


def ship_policy(saved: SavedPolicy, episodes: int) -> Shipped:
    """Evaluate a run's policy undisturbed, and write it next to its task's file, or nothing.

    ``trained/<task>.pt`` contains its parameters and those of the critic. ``<task>.yaml`` contains
    its training, its figures as ``[value, low, high]``, and the settings that are not the task's
    own. ConfigError if the task has changed since, the networks are large, or nothing can be
    written.
    """
    if saved.ships:
        raise ConfigError(f"{saved.checkpoint} ships already; name a run or a checkpoint of it")
    config, trained = saved.config, discover().find(saved.config.task).trained
    own: dict[str, Any] = {"task": config.task, "ppo": {"actor": as_plain(config.ppo.actor)}}
    for path, value in _own_settings(config).items():
        if path[0] == "env":
            parent = reduce(lambda tree, name: tree.setdefault(name, {}), path[:-1], own)
            parent[path[-1]] = as_plain(value)
    of_run = read_config_file(saved.run)  # a population's best has another
    run, _ = read_configuration(saved.run / "config.yaml", of_run)
    training = {
        "command": _train_command(run, saved.iteration),
        "iteration": saved.iteration,
        **{name: value for name, value in saved.content["infos"].items() if name == "env_steps"},
        "seed": run.seed,
        **{name: of_run.get(name) for name in ("devices", "git", "versions")},
    }
    networks = {
        key: {
            name: (tensor.float() if tensor.is_floating_point() else tensor).clone()
            for name, tensor in saved.content[key].items()
        }
        for key in ("actor_state_dict", "critic_state_dict")  # a student has no critic
        if key in saved.content
    }
    weights = packed({**networks, "iter": saved.iteration, "infos": {"task": config.task}})
    if len(weights) > _MOST_BYTES:
        size = f"its networks take {len(weights):,} bytes, and {_MOST_BYTES:,} may ship"
        raise ConfigError(f"{saved.checkpoint}: {size} (--ppo.*.hidden-dims)")
    check_folder(trained.parent, "--ship")
    env = evaluation_task(config.env)
    env.model = default_config(config.task).env.model
    engine = choose_engine("mujoco", "cpu", len(os.sched_getaffinity(0)))
    evaluator = Evaluator(env, episodes, engine=engine, max_envs=_MOST_ENVS, seed=_SEED)
    evaluation = evaluator(config.ppo.actor, networks["actor_state_dict"])
    assert evaluation is not None  # it is given up only when asked to
    estimates = {
        name: [float(f"{number:.5g}") for number in dataclasses.astuple(estimate)]
        for name, estimate in evaluation.estimates.items()
    }
    described = {
        "training": training,
        "evaluation": {"episodes": episodes, "seed": _SEED, "estimates": estimates},
        "observations": observed(config),
        "config": own,
    }
    text = yaml.safe_dump(described, sort_keys=False, default_flow_style=None, width=100)
    files = {trained.name: weights, f"{trained.stem}.yaml": text.encode()}
    _write_all(trained.parent, files, "--ship")
    return Shipped([trained.with_name(name) for name in files], training["command"], evaluation)


def _own_settings(config: TrainConfig) -> Leaves:
    """Settings that are not the task's own; ConfigError if the task has other settings now."""
    default = default_config(config.task)
    of_run, of_task = (leaves(tree, suppressed=False) for tree in (config, default))
    absent = object()
    own = {path: value for path, value in of_run.items() if value != of_task.get(path, absent)}
    changed = of_run.keys() ^ of_task.keys()
    model = own.pop(("env", "model"), None)  # a run's may lie in another clone
    if model is not None and _model_name(model) != _model_name(default.env.model):
        changed.add(("env", "model"))
    if changed:
        text = f"the task {config.task} is not what the run was trained with"
        raise ConfigError(f"{text} ({', '.join(flag(*path) for path in sorted(changed)[:3])})")
    return own


def _model_name(model: Any) -> str:
    """The name of a model's file, without its folder, or of the function that makes it."""
    return model.__qualname__ if callable(model) else Path(model).name


def _train_command(config: TrainConfig, iterations: int) -> str:
    """The command that repeats the training."""
    words = ["uv", "run", "train", config.task, "--seed", str(config.seed)]
    if iterations != config.env.max_iterations:
        words += ["--max-iterations", str(iterations)]
    for path, value in _own_settings(config).items():
        if path[0] in _REPEATED and path != ("seed",):
            if path[0] in ("init_from", "teacher") and Path(value).is_absolute():
                value = Path(value).name
            # This flag is given once for each of its values.
            for part in value if path[0] == "population_mutate" else (value,):
                words += [flag(*path), *_words(part)]
    return shlex.join(words)


def _words(value: Any) -> list[str]:
    """A value as it is typed."""
    if isinstance(value, tuple | list):
        return [word for part in value for word in _words(part)]
    return [str(value)]
