"""Exported files act as the policy does, say what they read and do, and appear together or not."""

from __future__ import annotations

import dataclasses
import json
import warnings
from dataclasses import dataclass
from math import inf
from pathlib import Path

import mujoco
import numpy as np
import onnxruntime
import pytest
import torch
import yaml
from random_policy import random_policy
from tiny_task import steps_lived, tiny_env, tiny_task
from torch import Tensor

from simtrain import (
    ActionTermCfg,
    CommandTermCfg,
    DcMotorActuatorCfg,
    JointPositionActionCfg,
    JointVelocityActionCfg,
    ObservationTermCfg,
    TaskCfg,
    UniformNoiseCfg,
    mdp,
)
from simtrain.algorithms.cfg import ActorCfg, PpoCfg
from simtrain.algorithms.export import PolicyStep
from simtrain.algorithms.networks import Policy
from simtrain.config.tasks import discover
from simtrain.deployment.export import export_policy
from simtrain.deployment.interface import Interface, ObservationPart, describe_interface
from simtrain.deployment.robot import RobotStep, export_robot
from simtrain.deployment.unitree import cannot_be_told, deploy_yaml, unknown_observations
from simtrain.env.commands import CommandTerm
from simtrain.env.control.cfg import ActionTerm
from simtrain.env.env import Env
from simtrain.env.model import compile_model, self_contained_xml
from simtrain.env.reading import read_as
from simtrain.errors import ConfigError, ExportError
from simtrain.sim import EngineCfg
from simtrain.training.saved_policy import SavedPolicy

GO1 = "go1-velocity-flat"
LEFT = "left_slide"


@pytest.fixture(scope="module")
def go1(tmp_path_factory: pytest.TempPathFactory) -> tuple[SavedPolicy, Path]:
    """An untrained policy of the Go1, exported into a folder."""
    torch.manual_seed(0)
    saved = random_policy(discover().find(GO1).configuration(), GO1, std=0.1)
    folder = tmp_path_factory.mktemp("robot") / "new" / "folder"
    exported = export_policy(saved, folder, ("onnx", "pt2", "torchscript"))
    assert exported.difference < 1e-5
    assert [path.name for path in exported.files] == [
        "policy.json", "policy.onnx", "policy.pt2", "policy.pt",
        "model.xml", "robot.onnx", "run_policy.py", "mujoco_robot.py",
    ]  # fmt: skip
    return saved, folder


def _told(task: TaskCfg) -> Interface:
    return describe_interface(Env(task, 1, EngineCfg(threads=1)), ("actor",))


def test_policy_json_tells_what_a_robots_program_needs(go1) -> None:
    told = json.loads((go1[1] / "policy.json").read_text())
    assert (told["task"], told["iteration"], told["run"]) == (GO1, 7, "some-run")
    names = {"onnx": "policy.onnx", "pt2": "policy.pt2", "torchscript": "policy.pt"}
    assert told["files"] == names
    assert told["control_period"] == pytest.approx(0.02)
    assert told["joint_names"][2:4] == ["FR_calf_joint", "FL_hip_joint"]
    # The numbers of go1.xml: its keyframe's qpos and ctrl, gains and ranges.
    assert told["default_joint_pos"][:3] == [0.1, 0.9, -1.8]
    assert told["action_offset"][:3] == [0.164, 0.922, -1.661]
    assert told["joint_stiffness"][:3] == [15.8952427, 15.8952427, 35.764296]
    assert told["base"] == "trunk"
    assert told["commands"][0]["params"]["lin_vel_x"] == [-1.0, 2.0]
    assert [c["runs"] for c in told["commands"]] == [None, {"places": [], "starts": {}}]
    assert told["robot"]["names"] == [
        "joint_pos", "joint_vel", "base_quat", "base_ang_vel", "command.velocity",
    ]  # fmt: skip
    assert told["robot"]["joints"] == list(told["initial_joint_pos"])


def test_deploy_yaml_has_what_the_controllers_of_unitree_read(tmp_path) -> None:
    """Of the Go1 with targets that nothing moves, seen twice."""
    task = discover().find(GO1).make()
    task.actions["joint_pos"].reference = None  # type: ignore[attr-defined]
    actor = task.observation_terms()["actor"]
    actor["joint_vel_again"] = ObservationTermCfg(mdp.joint_vel, joints=".*_(hip|thigh|calf)_joint")
    told = _told(task)
    assert cannot_be_told(told, remembers=False) is None
    assert cannot_be_told(told, remembers=True) == "recurrent networks"
    deploy = yaml.safe_load(deploy_yaml(compile_model(task), told))
    assert list(deploy) == ["joint_ids_map", "step_dt", "stiffness", "damping",
                            "default_joint_pos", "commands", "actions", "observations"]  # fmt: skip
    assert deploy["joint_ids_map"] == list(range(12))
    assert deploy["step_dt"] == pytest.approx(0.02)
    assert deploy["stiffness"] == told.joint_stiffness
    assert deploy["commands"]["base_velocity"]["ranges"]["lin_vel_y"] == [-0.5, 0.5]
    targets = deploy["actions"]["JointPositionAction"]
    assert (targets["scale"], targets["offset"]) == ([0.5] * 12, told.action_offset)
    assert targets["clip"][2] == [-2.818, -0.888]
    assert list(deploy["observations"]) == [
        "base_ang_vel", "projected_gravity", "velocity_commands", "gait",
        "joint_pos_rel", "joint_vel_rel", "last_action", "joint_vel_again",
    ]  # fmt: skip
    assert deploy["observations"]["joint_vel_rel"] == {
        "params": {}, "clip": None, "scale": [1.0] * 12, "history_length": 3
    }  # fmt: skip
    params = {name: term["params"] for name, term in deploy["observations"].items()}
    assert (params["gait"], params["velocity_commands"]) == ({}, {"command_name": "base_velocity"})


def test_there_is_no_deploy_yaml_for_what_the_controllers_of_unitree_do_not_know(go1) -> None:
    saved, folder = go1
    assert not (folder / "deploy.yaml").exists()
    for task, why in (
        (saved.config.env, "joint targets relative to a moving reference (gait)"),
        (tiny_task(), "actions other than one term of target positions"),
    ):
        assert cannot_be_told(_told(task), remembers=False) == why


def test_what_training_simulated_of_hardware_is_told() -> None:
    task = discover().find(GO1).make()
    task.actions["joint_pos"].delay_max_lag = 2
    gyro = task.observation_terms()["actor"]["base_ang_vel"]
    gyro.delay_min_lag = gyro.delay_max_lag = 1
    gyro.bias = UniformNoiseCfg(-0.2, 0.3)
    legs = DcMotorActuatorCfg(".*_hip_joint", saturation_effort=20.0, velocity_limit=30.0)
    task.actuators = {"legs": legs}
    told = _told(task)
    assert told.actions[0].delay == [0, 2]
    part = told.observations[0]
    assert (part.term, part.delay, part.bias) == ("base_ang_vel", [1, 1], {"uniform": [-0.2, 0.3]})
    assert told.motors["legs"]["kind"] == "DcMotorActuatorCfg"
    assert told.motors["legs"]["velocity_limit"] == 30.0


def test_motors_are_in_the_order_of_the_models_actuators_and_other_observations_are_told() -> None:
    see = ObservationTermCfg(mdp.joint_pos_rel, joints="right_.*", scale=0.5, history_length=3)
    env = tiny_env(
        1,
        actions={"turn": JointPositionActionCfg("left_hinge", scale=0.3, clip=(-inf, 1.0))},
        observations={"actor": {"one": see}},
    )
    told = describe_interface(env, ("actor",))
    deploy = yaml.safe_load(deploy_yaml(env.model, told))
    assert (deploy["joint_ids_map"], deploy["stiffness"]) == ([1], [0.0, 5.0, 0.0, 0.0])
    assert deploy["actions"]["JointPositionAction"]["clip"] == [[-inf, 1.0]]
    assert unknown_observations(told) == ["one"]  # its joints are not those of the actions
    one = {"params": {}, "clip": None, "scale": [0.5, 0.5], "history_length": 3}
    assert deploy["observations"] == {"one": one}


def test_each_file_carries_the_metadata_itself(go1) -> None:
    _, folder = go1
    told = json.loads((folder / "policy.json").read_text())
    kept = onnxruntime.InferenceSession(folder / "policy.onnx").get_modelmeta()
    properties = kept.custom_metadata_map
    assert json.loads(properties["policy.json"]) == told
    # The names that mjlab's exporter gives, lists with commas.
    assert properties["joint_names"].split(",") == told["joint_names"]
    for name in ("joint_stiffness", "default_joint_pos"):
        assert [float(x) for x in properties[name].split(",")] == told[name]
    assert properties["observation_names"].startswith("base_ang_vel,projected_gravity,")
    extra = {"policy.json": ""}
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        torch.jit.load(folder / "policy.pt", _extra_files=extra)
    assert json.loads(extra["policy.json"]) == told
    program = torch.export.load(folder / "policy.pt2", extra_files=(of_program := dict(extra)))
    assert json.loads(of_program["policy.json"]) == told
    assert not [node for node in program.graph.nodes if "stack_trace" in node.meta]


def test_the_layout_finds_every_term_in_the_policys_input() -> None:
    env = tiny_env(
        observations={
            "actor": {
                "lived": ObservationTermCfg(steps_lived, scale=0.5, history_length=3),
                "sides": ObservationTermCfg(mdp.joint_pos, joints=".*_slide", clip=(-5.0, inf)),
            },
            "extra": {"speed": ObservationTermCfg(mdp.joint_vel, joints=LEFT, scale=(2.0,))},
        },
    )
    for _ in range(4):
        obs, *_ = env.step(torch.ones(2, 1))
    told = describe_interface(env, ("extra", "actor"))
    x = torch.cat([obs["extra"], obs["actor"]], dim=1)
    assert told.observation_size == x.shape[1] == 6
    assert told.observation_names == ["speed", "lived", "sides"]
    speed, lived, sides = told.observations
    assert speed.scale == [2.0]
    assert torch.equal(_part(x, speed), 2.0 * env.bind("qvel")[:, 6:7])
    assert (lived.scale, lived.history_length) == (0.5, 3)
    assert _part(x, lived).tolist() == [[1.0, 1.5, 2.0]] * 2
    assert sides.clip == [-5.0, inf]
    assert sides.params == {"joints": ["left_slide", "right_slide"]}
    assert torch.equal(_part(x, sides), env.bind("qpos")[:, [7, 9]])


def test_the_interface_follows_the_actions_through_their_motors() -> None:
    drive = JointVelocityActionCfg("right_slide", scale=3.0, clip=(-2.0, 2.0))
    actions = {"drive": drive, "turn": JointPositionActionCfg("left_hinge")}
    env = tiny_env(1, actions=actions, keyframe="bent")
    told = describe_interface(env, ("actor",))
    assert told.joint_names == ["right_slide", "left_hinge"]
    assert told.actuator_gear == [float(env.model.actuator_gear[i, 0]) for i in told.actuators]
    assert [(part.term, part.start, part.size) for part in told.actions] == [
        ("drive", 0, 1), ("turn", 1, 1)
    ]  # fmt: skip
    assert told.joint_stiffness == [0.0, 5.0]
    assert told.joint_damping == [2.0, 0.0]
    assert told.action_scale == [3.0, 1.0]
    assert told.action_clip == [[-2.0, 2.0], [-inf, inf]]
    assert told.default_joint_pos == [0.3, 0.2]
    assert told.action_offset == [0.0, 0.2]
    assert told.initial_joint_pos == {
        "left_slide": 0.1, "left_hinge": 0.2, "right_slide": 0.3, "right_hinge": 0.4
    }  # fmt: skip


class Pulls(ActionTerm):
    dim, actuators = 1, (0,)

    def apply(self, actions: Tensor, ctrl: Tensor) -> None:
        ctrl[:, :1] = 2.0 * actions.tanh()


class PullsHarder(Pulls):
    def substep(self, ctrl: Tensor) -> None:
        ctrl.mul_(1.1)


class Unnamed(Pulls):
    actuators = ()


@dataclass
class Pull(ActionTermCfg):
    """An action of one's own."""

    term: type[ActionTerm] = Pulls

    def build(self, model, start, device) -> ActionTerm:
        return self.term()


class Wave(CommandTerm):
    """A command that runs by itself."""

    is_driven = False

    def __init__(self, env: Env) -> None:
        self._env = env
        self.command = env.buffer("command", (1,), reset=None)

    def resample(self, mask: Tensor) -> None:
        """Nothing is drawn."""

    def update(self) -> None:
        self.command.add_(0.25)


def heights(env: Env) -> Tensor:
    return env.bind("xpos")[:, 2:4, 2]


def heavy(env: Env) -> Tensor:
    return env.bind("subtree_com")[:, 0]


def _observing(func, **params) -> dict:
    return {"observations": {"actor": {"mine": ObservationTermCfg(func, **params)}}}


REFUSED = {
    "--env.actions.pull: what PullsHarder does cannot be told": {
        "actions": {"pull": Pull(PullsHarder)}
    },
    "--env.actions.pull: what Unnamed .* names no `act": {"actions": {"pull": Pull(Unnamed)}},
    "--env.observations.actor.mine: how a robot reads .*:heights is not known; write @read_as": (
        _observing(heights)
    ),
    "observations.actor.mine: a robot's program does not know MuJoCo's subtree_com": (
        _observing(heavy)
    ),
    "--env.observations.actor.mine: how a robot reads .*:joint_pos is not known": (
        _observing(mdp.joint_pos, joints=".*")
    ),
}


def _step(task: TaskCfg) -> RobotStep:
    env = Env(task, 1, EngineCfg(threads=1))
    obs = env.get_observations()
    return RobotStep(env, PolicyStep(random_policy(task).policy(obs, env.num_actions), obs))


@pytest.mark.parametrize("message", REFUSED)
def test_a_term_that_uses_what_a_robot_does_not_have_is_refused_by_name(message) -> None:
    with pytest.raises(ConfigError, match=message):
        _step(tiny_task(**REFUSED[message]))


def test_a_term_is_read_as_given_or_from_places() -> None:
    with pytest.raises(ConfigError, match=r"'joint_pos'.* write .given., or .places. with names"):
        read_as("joint_pos")


def test_actions_and_commands_of_ones_own_are_part_of_the_graph() -> None:
    task = tiny_task(
        actions={"mine": Pull()},
        commands={"wave": CommandTermCfg(Wave, (9.0, 9.0))},
        **_observing(mdp.generated_commands, command="wave"),
    )
    content, robot = export_robot(_step(task))
    assert robot.names == []
    session = onnxruntime.InferenceSession(content)
    names = [output.name for output in session.get_outputs()]
    memory, seen = {}, []
    for _ in range(3):
        values = dict(zip(names, session.run(None, memory), strict=True))
        memory = {n.replace("next.", "memory."): v for n, v in values.items() if "next." in n}
        np.testing.assert_allclose(values["targets"], 2.0 * np.tanh(values["actions"]), atol=1e-6)
        seen.append(values["obs"][0, 0])
    assert seen == [0.25, 0.5, 0.75]


def test_the_model_is_one_file_with_its_meshes_and_heights(tmp_path) -> None:
    corners = "v 0 0 0\nv 1 0 0\nv 0 2 0\nv 0.3 0.2 1.5\n"
    (tmp_path / "part.obj").write_text(corners + "f 1 3 2\nf 1 2 4\nf 2 3 4\nf 3 1 4\n")
    heights = np.arange(12, dtype=np.float32)
    (tmp_path / "hills.bin").write_bytes(np.int32([3, 4]).tobytes() + heights.tobytes())
    (tmp_path / "model.xml").write_text("""
        <mujoco>
          <asset>
            <mesh name="part" file="part.obj" scale="0.2 0.1 0.1" refpos="0.01 0.02 0"/>
            <hfield name="hills" file="hills.bin" size="2 2 0.3 0.1"/>
          </asset>
          <worldbody>
            <geom type="hfield" hfield="hills"/>
            <body pos="0 0 1">
              <joint name="j" type="slide"/>
              <geom type="mesh" mesh="part" pos="0.1 0 0" euler="10 20 30"/>
              <geom size="0.2" contype="0" conaffinity="0" mass="0"/>
            </body>
          </worldbody>
          <actuator><motor joint="j"/></actuator>
        </mujoco>""")
    task = tiny_task(model=tmp_path / "model.xml")
    one = mujoco.MjModel.from_xml_string(self_contained_xml(task))  # finds no file
    model = compile_model(task, visuals=True)
    assert one.opt.timestep == 0.01
    for field in ("body_mass", "body_inertia", "body_ipos", "geom_pos", "geom_quat", "hfield_data"):
        expected = getattr(model, field)
        np.testing.assert_allclose(getattr(one, field), expected, atol=1e-5, err_msg=field)
    assert (one.ngeom, compile_model(task).ngeom) == (3, 2)


@pytest.fixture
def tiny() -> SavedPolicy:
    return random_policy(tiny_task(ppo=PpoCfg(actor=ActorCfg(hidden_dims=(8,)))))


@pytest.mark.parametrize("kind", ["onnx", "pt2", "torchscript"])
def test_what_acts_otherwise_than_the_policy_is_not_written(kind, tiny, tmp_path, monkeypatch):
    act = Policy.__call__

    def act_a_little_otherwise(*arguments) -> Tensor:
        actions = act(*arguments)
        return actions + 2e-5 * actions.abs().clamp(min=1.0)

    monkeypatch.setattr(Policy, "__call__", act_a_little_otherwise)
    with pytest.raises(ExportError, match=f"{kind} export differs from the policy by [12]"):
        export_policy(tiny, tmp_path / "out", (kind,))
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_diverged_is_refused(tiny, tmp_path) -> None:
    tiny.content["actor_state_dict"]["mlp.0.bias"][0] = torch.nan
    with pytest.raises(ConfigError, match=r"model_7.pt gives actions that are not finite"):
        export_policy(tiny, tmp_path / "out", ("pt2",))
    assert list(tmp_path.iterdir()) == []


def test_files_that_cannot_be_written_leave_the_old_ones_alone(tiny, tmp_path) -> None:
    export_policy(tiny, tmp_path, ("pt2",))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert sorted(before) == ["model.xml", "policy.json", "policy.pt2"]
    later = dataclasses.replace(tiny, content={**tiny.content, "iter": 8})
    (tmp_path / "policy.pt2").unlink()
    (tmp_path / "policy.pt2").mkdir()
    with pytest.raises(ConfigError, match=r"policy\.pt2 in it is a folder"):
        export_policy(later, tmp_path, ("pt2",))
    assert (tmp_path / "policy.json").read_bytes() == before["policy.json"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(before)


def _part(x: Tensor, part: ObservationPart) -> Tensor:
    return x[:, part.start : part.start + part.size]
