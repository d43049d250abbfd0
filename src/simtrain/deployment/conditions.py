"""Under which conditions an exported policy is played in plain MuJoCo, and what describes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mujoco

from simtrain.deployment.other_model import read_other_model
from simtrain.errors import ConfigError
from simtrain.files import damage_as_config_error, read_file
from simtrain.run.checkpoint import check_kinds

AS_TRAINED = "the task's physics"
"""The first condition, which decides where no other is named."""
Condition = dict[str, Any]
_SOLVERS = {"PGS": 0, "CG": 1, "Newton": 2}
_LARGEST = 10_000_000  # bytes of policy.json, and numbers of an observation
_KINDS: dict[str, Any] = dict.fromkeys(("observations", "commands"), list[dict[str, Any]])
_KINDS |= {"robot": dict[str, Any], "control_period": float, "actuators": list[int]}
_KINDS |= {"held_joint_pos": dict[str, float], "base": str | None, "keyframe": str | None}
_KINDS |= {"base_quat": str}
_ROBOT_KINDS: dict[str, Any] = dict.fromkeys(("names", "joints", "contacts", "places"), list[str])
_ROBOT_KINDS |= {"file": str, "given": dict[str, dict[str, Any]]}
_PART_KINDS: dict[str, Any] = dict.fromkeys(("group", "term", "function"), str)
_PART_KINDS |= {"size": int, "history_length": int, "noise": dict[str, list[float]]}


def find_conditions(folder: Path, other_model: Path | None = None) -> dict[str, Condition]:
    """The conditions that make sense for the policy exported to `folder`, by name.

    The task's physics; other solvers, time steps and masses; a control step late; noise. With
    `other_model`, the file of another model of the robot, also that one, in time and late.
    Raises ConfigError for a policy or a model that plain MuJoCo cannot play.
    """
    about = read_interface(folder)
    with damage_as_config_error(f"{folder / 'model.xml'} cannot be read"):
        model = mujoco.MjModel.from_xml_path(str(folder / "model.xml"))
    solvers = {name: i for name, i in _SOLVERS.items() if i != model.opt.solver}
    conditions: dict[str, Condition] = {AS_TRAINED: {}}
    conditions |= {f"solver {name}": {"options": {"solver": i}} for name, i in solvers.items()}
    conditions["half the time step"] = {"timestep": 0.5}
    if round(about["control_period"] / model.opt.timestep) % 2 == 0:
        conditions["twice the time step"] = {"timestep": 2.0}
    conditions["one step late"] = {"delay": 1}
    if any(part["noise"] for part in about["observations"]):
        conditions["noise of training"] = {"noise": True}
    conditions |= {"10 % heavier": {"mass": 1.1}, "10 % lighter": {"mass": 0.9}}
    if other_model is not None:
        other = {"other": read_other_model(other_model, model, about["robot"]["contacts"])}
        name = f"in {other_model.name}"
        conditions |= {name: other, f"{name}, one step late": other | {"delay": 1}}
    return conditions


def read_interface(folder: Path) -> dict[str, Any]:
    """The content of ``policy.json``; ConfigError if it is damaged or needs what MuJoCo lacks."""
    file = folder / "policy.json"
    with damage_as_config_error(f"{file} does not describe a policy"):
        about: dict[str, Any] = json.loads(read_file(file, "the description", _LARGEST))
        check_kinds(file, about, {"files": dict[str, str]})
    if "onnx" not in about["files"]:
        raise ConfigError("--verify runs the policy as ONNX; leave onnx among --formats")
    if "robot" not in about:
        text = f"{folder} was exported by an earlier version, without robot.onnx"
        raise ConfigError(f"{text}; export the policy again, or verify it with that version")
    check_kinds(file, about, _KINDS)
    check_kinds(file, about["robot"], _ROBOT_KINDS)
    for part in about["observations"]:
        check_kinds(file, part, _PART_KINDS)
    with damage_as_config_error(f"{file} does not describe a policy"):
        if not 0.0 < about["control_period"] < 1e3:
            raise ValueError(f"its control_period is {about['control_period']}")
        if max(part["size"] for part in about["observations"]) > _LARGEST:
            raise ValueError("an observation is too large")
        if Path(about["robot"]["file"]).name != about["robot"]["file"]:
            raise ValueError(f"its graph {about['robot']['file']} lies elsewhere")
    for name, facts in about["robot"]["given"].items():
        if "points" not in facts:
            text = f"--verify cannot read {name} from MuJoCo: the robot's program gives it"
            raise ConfigError(text)
    return about
