"""Mistakes end with exit code 2 and a line or two, before anything is built or written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from refusal import refused

from simtrain.cli.train import list_tasks, train
from simtrain.errors import ConfigError, DivergenceError

TASK = "cartpole-balance"
ROPE = """<flexcomp name="rope" type="grid" count="3 1 1" spacing="0.1 1 1" dim="1" radius="0.01">
  <edge equality="true"/> </flexcomp>"""


@pytest.fixture
def here(here) -> Path:
    """A working directory with a broken task file and a broken model."""
    (here / "tasks").mkdir()
    (here / "tasks" / "walk.py").write_text("import simtrain\nsimtrain.no_such_name\n")
    (here / "tasks" / "jump.py").write_text(
        'from simtrain import task\n\n@task("jump")\ndef jump():\n    """Jump."""\n    1 / 0\n'
        '\n@task("nothing")\ndef nothing():\n    """Return nothing."""\n'
    )
    (here / "robot.xml").write_text("<mujoco><worldbody></mujoco>")
    scene = (Path(__file__).parents[2] / "tasks" / "cartpole" / "cartpole.xml").read_text()
    scene = re.sub(' qpos="[^"]*"', "", scene)  # the rope has joints, too
    (here / "rope.xml").write_text(scene.replace("<worldbody>", f"<worldbody>{ROPE}", 1))
    return here


MISTAKES = [
    ("cartpole-balanse", "no task 'cartpole-balanse' (did you mean 'cartpole-balance'"),
    ("--num-envs 8", "the task comes first: `uv run train <task> --num-envs ...`"),
    ("walk", "tasks/walk.py (AttributeError: module 'simtrain' has no attribute 'no_such_name')"),
    (f"{TASK} --device cuda:0", "no flag --device; --gpu-ids 0 for a GPU"),
    (f"--task {TASK} --num-envs 8", f"the task has no flag: `uv run train {TASK} --num-envs 8`"),
    (f"--task={TASK}", f"the task has no flag: `uv run train {TASK}`"),
    (f"{TASK} --task walk", "no flag --task; the task comes first: `train <task>`"),
    (f"{TASK} --log-root /proc/logs", "--log-root /proc/logs cannot be written"),
    (f"{TASK} --run-name a/b", "--run-name is 'a/b'; it must not contain '/'"),
    (f"{TASK} --env.rewards.upright.pole-joints .*_knee", "no joint matches '.*_knee'; there are"),
    (f"{TASK} --env.model robot.xml", "robot.xml is not a valid model: "),
    (f"{TASK} --gpu-ids None --engine warp --env.model rope.xml", "does not support flexes"),
    (f"{TASK} --env.actions.force.delay-min-lag 2", "(give --env.actions.force.delay-max-lag 2)"),
    ("jump", "task 'jump' in {here}/tasks/jump.py raised ZeroDivisionError: division by zero"),
    ("nothing", "task 'nothing' in {here}/tasks/jump.py returned NoneType, not a TaskCfg"),
    (f"{TASK} --wandb-project walks", "--wandb-project walks needs --logger wandb"),
    (f"{TASK} --cpu-threads 100000", "--cpu-threads is 100000; at most"),
    (f"{TASK} --hosts node --ssh-config /no/such/file", "--ssh-config /no/such/file is not a file"),
    (f"{TASK} --gpu-ids None --cpu-workers 2 --torchrunx-log-dir /proc/logs", "cannot be written"),
    (
        f"{TASK} --eval-device cpu",
        "--eval-device cpu needs --eval-interval, the iterations between",
    ),
    (
        f"{TASK} --eval-interval 5 --eval-device cuda:0 --engine mujoco",
        "which --engine mujoco cann",
    ),
    (f"{TASK} --gpu-ids None --eval-interval 5 --eval-device cuda:99", "--eval-device cuda:99: "),
    (f"{TASK} --profile --max-iterations 9", "--profile traces iterations 10 to 12, and training"),
    (f"{TASK} --phase-times False --until Perf/time/physics<1", "no metric 'Perf/time/physics'"),
    (f"{TASK} --gpu-ids 99", "--gpu-ids 99: "),
    (f"{TASK} --gpu-ids None --cpu-workers 100000", "--cpu-workers is 100000; at most"),
    (f"{TASK} --init-from tasks", "tasks is no run directory: it has no config.yaml"),
    (f"{TASK} --init-only actor", "--init-only actor needs --init-from, a run or checkpoint"),
    (
        f"{TASK} --ppo.symmetry.augment --ppo.critic.model lstm",
        "is not for recurrent networks; use",
    ),
    (f"{TASK} --ppo.actor.model gru --num-envs 2", "(--num-envs) cannot be divided into 4 mini-b"),
    (f"{TASK} --ppo.actor.cnn.stride 1 2 3", "--ppo.actor.cnn.stride has 3 values; give one, or"),
]


@pytest.mark.parametrize(("command", "message"), MISTAKES, ids=[m[0][:80] for m in MISTAKES])
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(command, message, here):
    with refused(message.replace("{here}", str(here)), here):
        train(command.split())


FALLING = """
from simtrain import RewardTermCfg, mdp, task
from simtrain.config.tasks import discover

@task("falling")
def falling():
    cfg = discover().find("{task}").configuration()
    cfg.terminations.clear()
    cfg.rewards["level"] = RewardTermCfg(mdp.flat_orientation_l2, weight=-1.0)
    return cfg
"""


def test_a_term_that_fails_at_the_start_is_named_and_leaves_no_run(here, capsys):
    (here / "tasks" / "falling.py").write_text(FALLING.format(task=TASK))
    flags = "--num-envs 4 --gpu-ids None --cpu-threads 1"
    with pytest.raises(ConfigError, match=r"^rewards.level: a floating base is needed, but"):
        train(["falling", *flags.split()])
    assert not (here / "logs" / "falling").exists()
    told = " ".join(capsys.readouterr().out.split())
    assert told.count("no termination of the task has time_out=True") == 1


def test_a_name_with_control_characters_is_refused_without_printing_them(here):
    with refused(r"--run-name is 'a\nb'; it must be of printable", here):
        train([TASK, "--run-name", "a\nb"])


def test_no_task_lists_all_and_the_files_that_do_not_import(here):
    with pytest.raises(ConfigError) as error:
        train([])
    first, *listed = str(error.value).splitlines()
    assert first == "name a task: `uv run train <task>`."
    for part in ("cartpole-balance  ", "cartpole-swingup  ", f"(not importable: {here}/tasks/walk"):
        assert sum(line.strip().startswith(part) for line in listed) == 1


def test_list_tasks_tells_names_descriptions_and_files_and_what_did_not_import(here, capsys):
    assert list_tasks([]) == 1
    told = capsys.readouterr()
    words = " ".join(told.out.split())
    for part in (TASK, "cartpole-swingup", "Keep the pole", "Swing the hanging", "cartpole.py"):
        assert part in words
    assert f"{here}/tasks/walk.py could not be imported:\nTraceback" in told.err
    assert "has no attribute 'no_such_name'" in told.err


def test_simulations_that_always_fail_end_the_run_with_what_mujoco_said(here, capsys):
    flags = "--num-envs 2 --num-steps-per-env 8 --env.timestep 50 --env.episode-length-s 1e5"
    with pytest.raises(DivergenceError, match=r"in each of 10 iterations in a row; nan_dump/"):
        train([TASK, *flags.split(), "--cpu-threads", "1", "--gpu-ids", "None"])
    assert "failed and was reset: Nan, Inf or huge value in Q" in capsys.readouterr().out
    (run,) = (here / "logs" / TASK).iterdir()
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 10
