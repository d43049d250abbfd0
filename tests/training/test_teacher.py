"""A teacher's policy distilled into a student by the real command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from simtrain.cli.train import train
from simtrain.deployment.export import export_policy
from simtrain.errors import ConfigError
from simtrain.run.checkpoint import read_checkpoint
from simtrain.training.saved_policy import open_policy

TASKS = """
from tiny_task import tiny_model, tiny_task
from simtrain import *
from simtrain import mdp

def more_joints():
    spec = tiny_model()
    spec.delete(spec.key("bent"))
    spec.body("left_cart").add_joint(name="left_tilt", axis=(1.0, 0.0, 0.0))
    return spec

def cart(**groups):
    joints = {"joints": "left_(slide|tilt)"}
    terms = {
        "place": ObservationTermCfg(mdp.joint_pos, **joints),
        "speed": ObservationTermCfg(mdp.joint_vel, **joints),
    }
    small = {"hidden_dims": (8,)}
    observations = {group: {n: terms[n] for n in names} for group, names in groups.items()}
    gru = dict(obs_groups=("blind",), model="gru", rnn_hidden_dim=6)
    ppo = PpoCfg(ActorCfg(**small, **(gru if "blind" in groups else {})), CriticCfg(**small))
    return tiny_task(observations=observations, num_envs=4, num_steps_per_env=8, ppo=ppo)

@task("cart")
def teacher():
    return cart(actor=("place", "speed"))

@task("blind-cart")
def student():
    return cart(actor=("place", "speed"), blind=("place",))

@task("short-cart")
def short():
    return cart(actor=("place",), blind=("place",))

@task("turned-cart")
def turned():
    return cart(actor=("speed", "place"), blind=("place",))

@task("tilted-cart")
def tilted():
    cfg = student()
    cfg.model = more_joints
    return cfg
"""
FLAGS = ("--gpu-ids", "None", "--cpu-threads", "1", "--logger", "none")
STOP = ("--until", "Loss/behavior<=0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """The working directory, with the tasks, the teacher's run and those of two students.

    One has gone on after it was cut short, when its teacher's run was elsewhere.
    """
    folder = tmp_path_factory.mktemp("user")
    (folder / "tasks").mkdir()
    (folder / "tasks" / "carts.py").write_text(TASKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SIMTRAIN_TASKS", raising=False)
        patch.chdir(folder)
        assert train(["cart", *FLAGS, "--max-iterations", "2"]) == 0
        (run,) = (folder / "logs" / "cart").iterdir()
        run.rename("teacher")
        mirrored = "--ppo.symmetry.augment"  # as a task may have it, for PPO
        distil("whole", mirrored, "--max-iterations", "5", "--eval-interval", "5", *STOP)
        distil("cut", "--max-iterations", "3")
        Path("teacher").rename("elsewhere")
        again = ["blind-cart", "--resume", "cut", "--max-iterations"]
        assert train([*again, "5"]) == 0
        with pytest.raises(ConfigError, match="--teacher is for new runs: leave it out with --res"):
            train([*again, "9", "--teacher", "other"])
        Path("elsewhere").rename("teacher")
        shutil.rmtree("logs")
        yield folder


def distil(name: str, *flags: str) -> None:
    """Train a student in the folder `name`."""
    assert train(["blind-cart", *FLAGS, "--teacher", "teacher", "--seed", "3", *flags]) == 0
    (run,) = Path("logs", "blind-cart").iterdir()
    run.rename(name)


def metrics(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    others = ("wall_s", "Perf/", "Eval/")
    return [{tag: v for tag, v in line.items() if not tag.startswith(others)} for line in lines]


def test_a_student_goes_on_as_if_nothing_had_happened_without_its_teachers_run(folder):
    assert metrics(folder / "cut") == metrics(folder / "whole")
    states = [torch.load(folder / run / "model_5.pt") for run in ("whole", "cut")]
    for network in ("student_state_dict", "teacher_state_dict"):
        for name, tensor in states[0][network].items():
            assert torch.equal(tensor, states[1][network][name])


def test_checkpoints_have_rsl_rls_keys_and_the_teacher_of_its_own_run(folder):
    content = torch.load(folder / "whole" / "model_5.pt")
    assert content.keys() == {
        *("student_state_dict", "teacher_state_dict", "optimizer_state_dict", "iter", "infos"),
    }
    teacher = read_checkpoint(folder / "teacher" / "model_2.pt")["actor_state_dict"]
    for name, tensor in content["teacher_state_dict"].items():
        assert torch.equal(tensor, teacher[name])


def test_a_student_is_evaluated_and_opened_as_any_policy(folder):
    last = (folder / "whole" / "metrics.jsonl").read_text().splitlines()[-1]
    assert "Eval/mean_return" in json.loads(last)
    saved = open_policy(folder / "whole")
    assert saved.config.distillation.teacher.obs_groups == ("actor",)
    obs = TensorDict({"blind": torch.zeros(1, 1)}, batch_size=[1])
    assert saved.policy(obs, 1)(obs).shape == (1, 1)
    exported = export_policy(saved, folder / "exported", ["pt2"])
    assert exported.difference < 1e-5


def test_ppo_goes_on_with_a_students_actor(folder, capsys):
    flags = ["--max-iterations", "1", "--init-from", "whole", "--init-only", "actor"]
    assert train(["blind-cart", *FLAGS, *flags]) == 0
    count = len(torch.load(folder / "whole" / "model_5.pt")["student_state_dict"])
    assert (
        f"--init-from: {count} tensors of the actor in whole/model_5.pt" in capsys.readouterr().out
    )


MISTAKES = {
    "blind-cart --distillation.learning-rate 0.1": "--distillation.* sets how a student",
    "blind-cart --teacher teacher --population 2 --population-mutate ppo.gamma 0.9 0.95":
    "--population-mutate ppo.gamma 0.9 0.95: the task has no number with this name",
    "blind-cart --teacher teacher --ppo.rnd.weight 1": "does not go with --teacher: a student has",
    "blind-cart --teacher teacher --distillation.gradient-length 3": "it must divide the 8 steps",
    "short-cart --teacher teacher": "--teacher teacher is of another task, cart: actor.speed is not"
    " the same in short-cart",
    "blind-cart --teacher teacher --env.actions.push.scale 2": "actions.push is not the same",
    "turned-cart --teacher teacher": "another task, cart: the order of actor is not the same",
    "tilted-cart --teacher teacher": "--teacher teacher: the checkpoint is of another network, or "
    "of a task with other observations or actions: mlp.0.weight is (8, 2) in the checkpoint and",
}  # fmt: skip


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_told_in_one_line_and_leaves_no_run(command, folder):
    before = list(folder.glob("logs/*/*"))
    with pytest.raises(ConfigError) as error:
        train([*command.split(), *FLAGS])
    assert MISTAKES[command] in str(error.value)
    assert "\n" not in str(error.value)
    assert list(folder.glob("logs/*/*")) == before
