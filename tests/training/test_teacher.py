"""A teacher's policy distilled into a student by the real command."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from simtrain.cli.train import train
from simtrain.errors import ConfigError
from simtrain.run.checkpoint import read_checkpoint
from simtrain.training.saved_policy import open_policy

TASKS = '''
from simtrain import *
from simtrain import mdp
import mujoco

def model():
    return mujoco.MjSpec.from_string("""
        <mujoco><worldbody><body>
          <joint name="hinge" axis="0 1 0" damping="0.1"/>
          <geom type="capsule" size="0.05" fromto="0 0 0 0 0 1"/>
        </body></worldbody><actuator><motor joint="hinge"/></actuator></mujoco>""")

def height(env, joints):
    return env.bind("qpos")[:, joints.qpos][:, 0].cos()

def pole(**groups):
    terms = {
        "angle": ObservationTermCfg(mdp.joint_pos, joints="hinge"),
        "speed": ObservationTermCfg(mdp.joint_vel, joints="hinge"),
    }
    small = {"hidden_dims": (8,)}
    observations = {group: {n: terms[n] for n in names} for group, names in groups.items()}
    student = dict(obs_groups=("blind",), model="gru", rnn_hidden_dim=6) if "blind" in groups else {}
    return TaskCfg(
        model=model, timestep=0.01, decimation=2, episode_length_s=0.2,
        actions={"torque": JointEffortActionCfg("hinge")},
        observations=observations,
        rewards={"upright": RewardTermCfg(height, weight=1.0, joints="hinge")},
        terminations={"time_out": TerminationTermCfg(mdp.time_out, time_out=True)},
        num_envs=4, num_steps_per_env=8,
        ppo=PpoCfg(ActorCfg(**small, **student), CriticCfg(**small)),
    )

@task("pole")
def teacher():
    return pole(actor=("angle", "speed"))

@task("blind-pole")
def student():
    return pole(actor=("angle", "speed"), blind=("angle",))

@task("short-pole")
def short():
    return pole(actor=("angle",), blind=("angle",))

@task("groupless-pole")
def groupless():
    return pole(blind=("angle",))
'''
FLAGS = ("--gpu-ids", "None", "--cpu-threads", "1", "--logger", "none")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A user's folder with the tasks and the teacher's run, ``teacher``."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "tasks").mkdir()
    (folder / "tasks" / "poles.py").write_text(TASKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train(["pole", *FLAGS, "--max-iterations", "2"]) == 0
    (run,) = (folder / "logs" / "pole").iterdir()
    run.rename(folder / "teacher")
    shutil.rmtree(folder / "logs")
    return folder


@pytest.fixture
def here(folder, tmp_path, monkeypatch) -> Path:
    """A folder with the teacher's run; the working directory, where runs go, is another."""
    monkeypatch.setenv("SIMTRAIN_TASKS", str(folder / "tasks"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder / "teacher", tmp_path / "teacher")
    return tmp_path


def distil(*flags: str, task: str = "blind-pole") -> Path:
    """The run of a student."""
    assert train([task, *FLAGS, "--teacher", "teacher", "--run-name", "x", *flags]) == 0
    return max(Path("logs", task).iterdir(), key=lambda run: run.stat().st_ctime)


def metrics(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {tag: v for tag, v in line.items() if tag != "wall_s" and not tag.startswith("Perf/")}
        for line in lines
    ]


def test_a_student_goes_on_as_if_nothing_had_happened_without_its_teachers_run(here):
    whole = distil("--max-iterations", "5", "--seed", "3")
    cut = distil("--max-iterations", "3", "--seed", "3", "--run-name", "y")
    shutil.rmtree(here / "teacher")
    assert train(["blind-pole", "--resume", str(cut), "--max-iterations", "5"]) == 0
    assert metrics(cut) == metrics(whole)
    assert metrics(whole)[-1]["Loss/behavior"] < metrics(whole)[0]["Loss/behavior"]
    states = [torch.load(run / "model_5.pt") for run in (whole, cut)]
    keys = {"student_state_dict", "teacher_state_dict", "optimizer_state_dict", "iter", "infos"}
    assert states[0].keys() == keys
    for name, tensor in states[0]["student_state_dict"].items():
        assert torch.equal(tensor, states[1]["student_state_dict"][name])


def test_the_teacher_acts_as_in_its_own_run(here):
    run = distil("--max-iterations", "1")
    teacher = read_checkpoint(Path("teacher/model_2.pt"))["actor_state_dict"]
    for name, tensor in torch.load(run / "model_1.pt")["teacher_state_dict"].items():
        assert torch.equal(tensor, teacher[name])
    # What it saw in its run decides, not the network of the student's task.
    assert open_policy(run).config.distillation.teacher.obs_groups == ("actor",)


def test_a_student_is_evaluated_and_opened_as_any_policy(here):
    run = distil(
        "--max-iterations", "2", "--eval-interval", "1", "--stop-below", "Loss/behavior", "0"
    )
    assert "Eval/mean_return" in metrics(run)[-1]
    saved = open_policy(run)
    obs = TensorDict({"blind": torch.zeros(1, 1)}, batch_size=[1])
    assert saved.policy(obs, 1)(obs).shape == (1, 1)


def test_ppo_goes_on_with_a_students_actor(here, capsys):
    run = distil("--max-iterations", "1")
    flags = [*FLAGS, "--max-iterations", "1", "--init-from", str(run), "--init-only", "actor"]
    assert train(["blind-pole", *flags, "--run-name", "z"]) == 0
    count = len(read_checkpoint(run / "model_1.pt")["actor_state_dict"])
    assert (
        f"--init-from: {count} tensors of the actor in {run}/model_1.pt" in capsys.readouterr().out
    )


MISTAKES = {
    "blind-pole --distillation.learning-rate 0.1": "--distillation.* is of a student, which",
    "blind-pole --teacher gone": "there is no run or checkpoint gone",
    "blind-pole --teacher teacher --population 2": "--teacher does not go with --population",
    "blind-pole --teacher teacher --ppo.rnd.weight 1": "does not go with --teacher: a student has",
    "blind-pole --teacher teacher --distillation.gradient-length 3": "it must divide the 8 steps",
    "short-pole --teacher teacher": "--teacher teacher is of another task: its obs_normalizer._mean"
    " is (1, 2), and would be (1, 1) here, for 1 actions and the groups actor (1,)",
    "groupless-pole --teacher teacher": "is of another task: it sees the group 'actor'; here are b",
}  # fmt: skip


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_told_in_one_line_and_leaves_no_run(command, here):
    with pytest.raises(ConfigError) as error:
        train([*command.split(), *FLAGS])
    assert MISTAKES[command] in str(error.value)
    assert "\n" not in str(error.value)
    assert not list(here.glob("logs/*/*"))


def test_another_teacher_is_of_a_new_run(here):
    run = distil("--max-iterations", "1")
    with pytest.raises(ConfigError, match="--teacher is of a new run: leave it out with --resume"):
        train(["blind-pole", "--resume", str(run), "--teacher", "other"])
