"""Exported policies act alike in plain MuJoCo, and mistakes in policy.json are found and named."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import onnx.parser
import pytest
import torch
from motions import write_clip
from random_policy import random_policy
from scipy.spatial.transform import Rotation
from tiny_task import tiny_task
from torch import Tensor

from simtrain import (
    ActorCfg,
    CommandTermCfg,
    EventTermCfg,
    JointPositionActionCfg,
    MetricTermCfg,
    ObservationTermCfg,
    PpoCfg,
    RewardTermCfg,
    TaskCfg,
    TerminationTermCfg,
    mdp,
)
from simtrain.deployment import verify
from simtrain.deployment.conditions import AS_TRAINED, find_conditions, read_other_model
from simtrain.deployment.export import export_policy
from simtrain.deployment.run_policy import Policy
from simtrain.deployment.verify import Verifier
from simtrain.env.env import Env
from simtrain.errors import ConfigError, ExportError
from simtrain.training.saved_policy import SavedPolicy

JOINTS = ("left_slide", "left_hinge", "right_slide", "right_hinge")
TURNED = ("left_hinge", "right_hinge")
CRATE = '<body name="crate" pos="5 0 1"> <freejoint/> <geom/> </body>'
AT_START = "5 0 1 1 0 0 0  "
MODEL = f"""
<mujoco>
  <option gravity="0 0 0"><flag contact="disable"/></option>
  <default><geom size="0.1" mass="1"/></default>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1" mass="0"/>
    {CRATE}
    <body name="box" pos="0 0 1"> <freejoint/> <geom/> </body>
    <body name="left_cart" pos="0 1 0">
      <joint name="left_slide" type="slide" axis="1 0 0"/> <geom/>
      <geom name="looks" size="0.05" contype="0" conaffinity="0" mass="0"/>
    </body>
    <body name="left" pos="0 2 0">
      <joint name="left_hinge" axis="0 0 1"/> <geom/>
    </body>
    <body name="right_cart" pos="0 -1 0">
      <joint name="right_slide" type="slide" axis="1 0 0"/> <geom/>
    </body>
    <body name="right" pos="0 -2 0">
      <joint name="right_hinge" axis="0 0 1"/> <geom/>
    </body>
  </worldbody>
  <actuator>
    <position joint="right_slide" kp="9" kv="1"/>
    <position joint="left_hinge" kp="5" kv="0.1" ctrlrange="-1 1"/>
    <position joint="right_hinge" kp="3" kv="0.1" ctrlrange="-0.8 0.9"/>
    <position joint="left_slide" kp="8" kv="1"/>
    <adhesion body="box" ctrlrange="0 1"/>
  </actuator>
  <keyframe> <key name="bent" qpos="{AT_START}0 0 1 1 0 0 0  0.1 0.2 0.3 0.4"/> </keyframe>
</mujoco>
"""


def angles(env: Env, joints: Any) -> Tensor:
    position = env.bind("qpos")[:, joints.qpos]
    return torch.cat((position.cos(), position.sin()), dim=1)


class seen_velocity:
    def __init__(self, env: Env) -> None:
        self._last = env.buffer("last", (2,))
        self._is_first = env.buffer("is_first", (1,), reset=True, dtype=torch.bool)

    def __call__(self, env: Env) -> Tensor:
        place = env.bind("qpos")[:, [7, 9]]
        moved = torch.where(self._is_first, 0.0, place - self._last)
        self._last.copy_(place)
        self._is_first.zero_()
        return moved / env.step_dt


def speed(env: Env) -> Tensor:
    return env.bind("qvel").square().sum(dim=1)


def tipped(env: Env) -> Tensor:
    return env.bind("xmat").view(env.num_envs, -1, 3, 3)[:, env.base.body, 2, 2] < 0.0


def _model() -> mujoco.MjSpec:
    return mujoco.MjSpec.from_string(MODEL)


def _task() -> TaskCfg:
    """Four servos, three of them driven, a base that flies, and a crate."""
    see, spins = ObservationTermCfg, ("x", "y", "z", "roll", "pitch", "yaw")
    on_reset = {"mode": "reset", "joints": JOINTS}
    return tiny_task(
        model=_model,
        keyframe="bent",
        episode_length_s=0.4,
        actions={
            "turn": JointPositionActionCfg(TURNED, scale={"left.*": 0.4, "right.*": 0.7}),
            "slide": JointPositionActionCfg("right_slide", scale=0.3, offset=0.05),
        },
        observations={
            "actor": {
                "lin_vel": see(mdp.base_lin_vel),
                "gravity": see(mdp.projected_gravity),
                "positions": see(
                    mdp.joint_pos_rel,
                    joints=(*TURNED, "right_slide"),
                    biased=True,
                    scale=0.5,
                    history_length=3,
                ),
                "angles": see(angles, joints=TURNED),
                "drift": see(seen_velocity),
                "last": see(mdp.last_action),
            }
        },
        rewards={
            "slow": RewardTermCfg(speed, weight=-0.1),
            "smooth": RewardTermCfg(mdp.action_acc_l2, weight=-0.2),
            "alive": RewardTermCfg(mdp.is_alive, weight=2.0),
        },
        terminations={
            "time_out": TerminationTermCfg(mdp.time_out, time_out=True),
            "tipped": TerminationTermCfg(tipped),
        },
        metrics={"speed": MetricTermCfg(speed)},
        events={
            "bias": EventTermCfg(
                mdp.randomize_encoder_bias, mode="reset", joints=TURNED, bias=(-0.1, 0.1)
            ),
            "mass": EventTermCfg(
                mdp.randomize_field,
                mode="startup",
                field="body_mass",
                bodies="left_cart",
                ranges=(0.5, 2.0),
            ),
            "throw": EventTermCfg(
                mdp.reset_root_state_uniform,
                mode="reset",
                pose_range={},
                velocity_range=dict.fromkeys(spins, (-8.0, 8.0)),
            ),
            "joints": EventTermCfg(mdp.reset_joints_uniform, velocity=(-1.0, 1.0), **on_reset),
        },
        ppo=PpoCfg(actor=ActorCfg(hidden_dims=(16,), model="gru", rnn_hidden_dim=6)),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[SavedPolicy, Path]:
    saved = random_policy(_task())
    folder = tmp_path_factory.mktemp("exported")
    export_policy(saved, folder, ("onnx",))
    return saved, folder


@pytest.fixture(scope="module")
def verifier(made) -> Verifier:
    return Verifier(made[0], 6)


def test_a_policy_is_the_same_outside_of_simtrain(made, verifier) -> None:
    """With hidden states, history, encoders' bias, masses, servos that nothing drives.

    Commands, clocks, motions and places are those of the policies that ship
    (`test_shipped_policies.py`).
    """
    _, folder = made
    conditions = {AS_TRAINED: {}, "late": {"delay": 1}, "heavy": {"mass": 3.0, "timestep": 0.5}}
    found = verifier(folder, conditions=conditions)
    assert found.differences == []
    own, played = found.own, found.played[AS_TRAINED]
    assert len({*own.lengths}) > 1
    assert any(own.failed)
    assert not all(own.failed)
    assert (played.lengths, played.failed) == (own.lengths, own.failed)
    assert played.returns == pytest.approx(own.returns, abs=1e-3)
    assert played.metrics["speed"] == pytest.approx(own.metrics["speed"], abs=1e-3)
    for other in ("late", "heavy"):
        assert found.played[other].returns != pytest.approx(own.returns, abs=1e-2)


def test_fewer_episodes_are_played_where_these_tell_enough(made) -> None:
    """Ten pairs that are equal give the fraction exactly; of late targets more is to be seen."""
    told: list[str] = []
    found = Verifier(made[0])(made[1], {AS_TRAINED: {}, "late": {"delay": 1}}, told.append)
    assert len(found.own.returns) == 40
    assert len(found.played[AS_TRAINED].returns) == 10
    late = found.kept("late")
    assert len(found.played["late"].returns) == 40 or late.high - late.low < 0.04
    assert told[0] == f"{AS_TRAINED}: episodes 1 to 10, 40 at most"


def test_nothing_of_simtrain_and_torch_is_imported_by_what_is_exported(made) -> None:
    _, folder = made
    program = (
        "import sys; sys.modules.update(simtrain=None, torch=None)"
        f"; sys.argv.append('--seconds=0.1'); sys.path.insert(0, {str(folder)!r}); import runpy"
        f"; runpy.run_path({str(folder / 'mujoco_robot.py')!r}, run_name='__main__')"
    )
    command = [sys.executable, "-P", "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert said.startswith("qpos [")


def test_a_sensor_that_gives_no_number_is_told_and_not_taken_for_0(made, monkeypatch) -> None:
    policy = Policy(made[1])
    monkeypatch.setattr(policy, "read", lambda name, state: [float("nan")])
    with pytest.raises(ValueError, match="the robot's joint_pos is not a number"):
        policy.step({})


def _swap(values: list[Any], one: int, other: int) -> None:
    values[one], values[other] = values[other], values[one]


Change = str | Callable[[dict[str, Any]], Any]
MISTAKES: dict[str, tuple[Change, str]] = {
    "two joints swapped in what is seen": (
        lambda told: _swap(told["robot"]["joints"], 0, 1), "actor.positions"
    ),
    "the base is another body": (lambda told: told.update(base="crate"), "actor.lin_vel"),
    "w last": (lambda told: told.update(base_quat="xyzw"), "actor.gravity"),
    "another group": (
        lambda told: told["observations"][0].update(group="robot"), "robot has lin_vel, in the task"
    ),
    "a term is missing": (lambda told: told["observations"].pop(), "actor has lin_vel, "),
    "another period": (lambda told: told.update(control_period=0.01), "control_period is 0.01 s"),
}  # fmt: skip


def _copy(folder: Path, to: Path, change: Change = lambda told: None) -> None:
    """Copy exported files, with a policy.json that is changed or is another text."""
    shutil.copytree(folder, to, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__*"))
    if callable(change):
        told = json.loads((folder / "policy.json").read_text())
        change(told)
        change = json.dumps(told)
    (to / "policy.json").write_text(change)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_policy_json_is_found(mistake, made, verifier, tmp_path) -> None:
    plant, named = MISTAKES[mistake]
    _copy(made[1], tmp_path, plant)
    differences = verifier(tmp_path, {}).differences
    assert any(sentence.startswith(named) for sentence in differences)


STRANGE: dict[str, Change] = {
    "empty": "",
    "deep": "[" * 100_000,
    "a number of 5,000 digits": '{"files": ' + "9" * 5000 + "}",
    "an endless period": lambda told: told.update(control_period=float("inf")),
    "a number for the robot": lambda told: told.update(robot=3),
    "no robot's joints": lambda told: told["robot"].pop("joints"),
    "a graph elsewhere": lambda told: told["robot"].update(file="../robot.onnx"),
    "a group that is none": lambda told: told["observations"][0].update(group=None),
    "a huge observation": lambda told: told["observations"][0].update(size=10**9),
    "actuators by names": lambda told: told.update(actuators=["left_hinge"]),
}


@pytest.mark.parametrize("strange", STRANGE)
def test_a_strange_policy_json_is_refused_in_a_line(strange, made, tmp_path) -> None:
    _copy(made[1], tmp_path, STRANGE[strange])
    with pytest.raises(ConfigError, match=r"policy\.json (does not describe|is damaged)") as error:
        find_conditions(tmp_path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("<worldbody>", "", "cannot be read: XML parse error"),
        ('timestep="', 'timestep="-', "has a time step of -0.01 s, of which control steps"),
    ],
)
def test_a_strange_model_is_refused_in_a_line(before, after, says, made, tmp_path) -> None:
    _copy(made[1], tmp_path)
    text = (tmp_path / "model.xml").read_text()
    assert before in text
    (tmp_path / "model.xml").write_text(text.replace(before, after, 1))
    with pytest.raises(ConfigError, match=says) as error:
        find_conditions(tmp_path)
    assert "\n" not in str(error.value)


# Each adds `extra` to the targets: 0 after 2**62 rounds, the sum of 32 GiB of zeros, another file.
STRANGE_GRAPHS = {
    "a step takes more than 2 s": """parts () => (float extra)
        <int64 rounds = {4611686018427387904}, bool always = {1}, float zero = {0.0}> {
            extra = Loop (rounds, always, zero) <
                body = body (int64 i, bool on, float x) => (bool go_on, float y) {
                    go_on = Identity (on)
                    y = Add (x, x)
                }>
        }""",
    "Failed to allocate memory": """parts () => (float extra) <int64[1] shape = {8589934592}> {
            zeros = ConstantOfShape (shape)
            extra = ReduceSum <keepdims = 0> (zeros)
        }""",
    "External data path escapes model directory": """parts () => (float[1] extra)
        <float[1] extra = ["location": "../numbers"]> { }""",
}


@pytest.mark.parametrize("says", STRANGE_GRAPHS)
def test_a_strange_graph_ends_in_a_line(says, made, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(verify, "_MOST_SECONDS", 2)
    (tmp_path / "numbers").write_bytes(bytes(4))
    folder = tmp_path / "exported"
    _copy(made[1], folder)
    model, parts = onnx.load(folder / "robot.onnx"), onnx.parser.parse_graph(STRANGE_GRAPHS[says])
    for node in model.graph.node:
        node.output[:] = ["own" if name == "targets" else name for name in node.output]
    model.graph.initializer.extend(parts.initializer)
    model.graph.node.extend([*parts.node, onnx.parser.parse_node("targets = Add (own, extra)")])
    onnx.save(model, folder / "robot.onnx")
    with pytest.raises(ExportError, match=f"the exported policy does not run: .*{says}") as error:
        Verifier(made[0], 1)(folder, {})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("model.xml", "the model .* cannot be read: it is no regular file"),
        ("robot.onnx", "the graph .* no regular file"),
    ],
)
def test_a_named_pipe_is_not_waited_for(name, says, made, tmp_path) -> None:
    _copy(made[1], tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ConfigError, match=says):
        find_conditions(tmp_path)


def test_what_an_earlier_version_exported_is_told(made, verifier, tmp_path) -> None:
    _copy(made[1], tmp_path, lambda told: told.pop("robot"))
    with pytest.raises(ConfigError, match="was exported by an earlier version"):
        verifier(tmp_path, {})


def test_no_code_that_lies_beside_the_policy_is_run(made, verifier, tmp_path) -> None:
    _copy(made[1], tmp_path)
    for planted in ("run_policy", "mujoco_robot", "argparse", "onnxruntime", "sitecustomize"):
        code = f"from pathlib import Path\nPath({str(tmp_path)!r}, 'ran').touch()\n"
        (tmp_path / f"{planted}.py").write_text(code)
    found = verifier(tmp_path, conditions={AS_TRAINED: {}})
    assert found.differences == []
    assert found.kept(AS_TRAINED).value == pytest.approx(1.0, abs=1e-3)
    assert not (tmp_path / "ran").exists()


ROBOT = """
<mujoco>
  <option timestep="0.005" gravity="0 0 0"/>
  <worldbody>
    <body name="trunk" pos="0 0 1"> <freejoint/> <geom type="box" size="0.2 0.1 0.05" mass="2"/>
      {legs}
    </body>
  </worldbody>
  <actuator> {servos} </actuator>
</mujoco>
"""
LEG = """<body name="{0}_leg" pos="0 {1} 0"> <joint name="{0}" axis="0 1 0" {2}/>
  <geom type="capsule" fromto="0 0 0 0 0 -0.2" size="0.02" mass="0.5"/> </body>"""


def _robot(*legs: str, servo: str, joint: str = 'armature="0.01"') -> str:
    places = {"left": 0.2, "right": -0.2, "driven": 0.4, "loose": -0.4}
    bodies = "".join(LEG.format(leg, places[leg], joint) for leg in legs)
    return ROBOT.format(legs=bodies, servos="".join(servo.format(leg) for leg in legs))


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> tuple[Verifier, Path]:
    """A policy that moves two legs of a floating box."""
    servo = '<position joint="{}" kp="6" kv="0.3"/>'
    xml = _robot("left", "right", servo=servo)
    task = _task()
    task.model, task.keyframe = (lambda: mujoco.MjSpec.from_string(xml)), None
    task.actions = {"turn": JointPositionActionCfg(("left", "right"), scale=0.4)}
    task.timestep, task.decimation = 0.005, 4
    task.events = {"throw": task.events["throw"]}
    joints = {"joints": ("left", "right")}
    task.observations = {
        "actor": {
            "lin_vel": ObservationTermCfg(mdp.base_lin_vel),
            "gravity": ObservationTermCfg(mdp.projected_gravity),
            "joint_pos": ObservationTermCfg(mdp.joint_pos_rel, **joints),
            "joint_vel": ObservationTermCfg(mdp.joint_vel, **joints),
        }
    }
    saved, folder = random_policy(task), tmp_path_factory.mktemp("robot")
    export_policy(saved, folder, ("onnx",))
    return Verifier(saved, 4), folder


def test_a_policy_is_played_in_a_model_by_somebody_else(robot, tmp_path) -> None:
    """Its joints stand in another order, and it has motors; only its armature matters."""
    verifier, folder = robot
    other, heavy = tmp_path / "other.xml", tmp_path / "heavy.xml"
    motor = '<motor joint="{}" gear="3"/>'
    other.write_text(_robot("right", "left", servo=motor))
    heavy.write_text(_robot("right", "left", servo=motor, joint='armature="0.2"'))
    conditions = find_conditions(folder, other)
    assert [*conditions][-2:] == ["in other.xml", "in other.xml, one step late"]
    conditions |= find_conditions(folder, heavy)
    names = (AS_TRAINED, "one step late", *[*conditions][-4:])
    played = verifier(folder, conditions={name: conditions[name] for name in names}).played
    for name, same in (("in other.xml", AS_TRAINED), (names[3], "one step late")):
        assert played[name].returns == pytest.approx(played[same].returns, rel=1e-3)
        assert played[name].lengths == played[same].lengths
    assert played["in heavy.xml"].returns != pytest.approx(played[AS_TRAINED].returns, rel=1e-2)


SERVOS = {
    '<motor joint="{}" gear="3"/>': (0.5, 0.6),
    '<position joint="{}" kp="20"/>': (0.0, 0.1),
    '<position joint="{}" kp="20" kv="0.5"/>': (0.5, 0.6),
    '<position joint="{}" kp="20" dampratio="1"/>': (0.5, 0.6),
    '<position joint="{}" kp="20" damping="0.2"/>': (0.5, 0.6),
    '<position joint="{0}" kp="20"/> <velocity joint="{0}" kv="0.5"/>': (0.5, 0.6),
}


@pytest.mark.parametrize("servo", SERVOS)
def test_damping_of_a_joint_goes_with_its_servo_if_it_is_its_derivative_gain(servo, tmp_path):
    """Joints have 0.5 there. The policy's own have 0, beside a servo with `kv`, or 0.1 for it."""
    file = tmp_path / "other.xml"
    there = 'armature="0.01" damping="0.5"'
    file.write_text(_robot("left", "right", servo=servo, joint=there))
    for kv, damping, expected in zip((0.3, 0.0), (0.0, 0.1), SERVOS[servo], strict=True):
        text = f'<position joint="{{}}" kp="6" kv="{kv}" forcerange="-5 5"/>'
        own = mujoco.MjModel.from_xml_string(
            _robot("right", "left", servo=text, joint=f'damping="{damping}"')
        )
        other = read_other_model(file, own, ())["other"]
        assert other.dof_damping[6:] == pytest.approx([expected] * 2)
        assert other.actuator_biasprm[:, :3].tolist() == [[0.0, -6.0, -kv]] * 2
        assert other.actuator_forcerange.tolist() == [[-5.0, 5.0]] * 2


def test_driven_joints_that_the_policy_does_not_have_are_held(tmp_path) -> None:
    """Two more legs of the other model are struck; only one of them has a motor there."""
    servo = '<motor joint="{}" gear="3"/>'
    own = mujoco.MjModel.from_xml_string(_robot("left", "right", servo=servo))
    text = _robot("left", "driven", "loose", "right", servo=servo)
    file = tmp_path / "other.xml"
    file.write_text(text.replace(servo.format("loose"), ""))
    model = read_other_model(file, own, ())["other"]
    assert model.nu == 2
    data = mujoco.MjData(model)
    for name in ("driven", "loose"):
        data.joint(name).qvel[0] = 1.0
    mujoco.mj_step(model, data, 20)
    assert abs(data.joint("driven").qpos[0]) < 0.01 < 0.05 < data.joint("loose").qpos[0]
    file.write_text(_robot("left", "driven", "right", servo=""))  # without actuators, as URDF
    assert read_other_model(file, own, ())["other"].neq == 1


def test_a_model_of_another_robot_is_refused(robot, tmp_path) -> None:
    other = tmp_path / "other.xml"
    other.write_text(_robot("left", servo='<motor joint="{}"/>'))
    with pytest.raises(ConfigError, match="has no joint 'right'"):
        find_conditions(robot[1], other)


FRAMES = {"long": 15, "short": 8}


def _following(folder: Path) -> TaskCfg:
    """A box with an arm that follows one of two made-up motions."""
    xml = MODEL.replace(CRATE, "").replace(AT_START, "")
    model = mujoco.MjModel.from_xml_string(xml)
    files = [write_clip(folder / f"{n}.npz", model, f, seed=f) for n, f in FRAMES.items()]
    task = _task()
    task.model = lambda: mujoco.MjSpec.from_string(xml)
    task.actions = {"turn": JointPositionActionCfg(TURNED, scale=0.4, reference="motion")}
    task.commands = {
        "motion": CommandTermCfg(
            mdp.MotionCommand,
            (9.0, 9.0),
            files=tuple(map(str, files)),
            bodies=("box", "left_cart"),
            anchor="box",
        )
    }
    seen = (mdp.generated_commands, mdp.motion_anchor_pos_b, mdp.motion_anchor_ori_b)
    terms = {f.__name__: ObservationTermCfg(f, command="motion") for f in seen}
    terms["gravity"] = ObservationTermCfg(mdp.projected_gravity)
    task.observations, task.events = {"actor": terms}, {}
    return task


def test_a_robot_is_moved_from_its_home_pose_to_the_start_of_a_motion(
    tmp_path, monkeypatch
) -> None:
    folder = tmp_path / "exported"
    export_policy(random_policy(_following(tmp_path)), folder, ("onnx",))
    monkeypatch.syspath_prepend(folder)
    exported = runpy.run_path(str(folder / "mujoco_robot.py"))
    monkeypatch.delitem(sys.modules, "run_policy")
    run, policy, sent = exported["run"], exported["Policy"](folder), []
    model = mujoco.MjModel.from_xml_path(str(folder / "model.xml"))
    robot = exported["MujocoRobot"](policy, model)
    starts = policy.about["commands"][0]["runs"]["starts"]
    assert {n: s["memory"]["frame"] for n, s in starts.items()} == {"long": [0], "short": [15]}
    choice = starts["short"]
    home = robot.data.qpos.copy()
    robot.place(np.array(choice["qpos"]), at_home=True)
    state = robot.read_state()
    np.testing.assert_allclose(state["base_pos"], [*choice["qpos"][:2], home[2]])
    turn, goal = (
        Rotation.from_quat(quat, scalar_first=True)
        for quat in (state["base_quat"], choice["qpos"][3:7])
    )
    assert (turn.inv() * goal).as_quat(scalar_first=True)[3] == pytest.approx(0.0, abs=1e-6)
    np.testing.assert_allclose(turn.as_matrix()[2, 2], 1.0)
    np.testing.assert_allclose(state["joint_pos"], home[robot.qpos])

    policy.start("motion", "short")
    first = policy.step(state)
    second = policy.step(state)
    policy.start("motion", "short")
    period = policy.period
    run(policy, lambda: state, sent.append, seconds=2 * period, blend_seconds=4 * period)
    held = np.array(policy.about["action_offset"])
    expected = [held + part * (first - held) for part in (0.0, 0.25, 0.5, 0.75, 1.0)]
    np.testing.assert_allclose(sent, [*expected, second], atol=1e-6)
    assert not np.allclose(first, second)

    command = [sys.executable, str(folder / "mujoco_robot.py"), "--seconds=0.2", "--blend=0.1"]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert said.startswith("qpos [")

    policy.about["joint_stiffness"][0] = 0.0
    with pytest.raises(ValueError, match="only targets of position servos can be blended"):
        run(policy, lambda: state, sent.append, seconds=period, blend_seconds=period)
