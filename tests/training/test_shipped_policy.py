"""A run's policy becomes the one that ships with its task, and goes by the task's name."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from needs_opengl import needs_opengl

from simtrain.cli.evaluate import evaluate
from simtrain.cli.export import export
from simtrain.cli.parse import parse_flags
from simtrain.cli.play import play
from simtrain.cli.train import train
from simtrain.config.tasks import default_config
from simtrain.config.tree import differences, resolved
from simtrain.deployment import export as export_module
from simtrain.errors import ConfigError
from simtrain.training.saved_policy import find_policy, open_policy

TASK = "tiny-cart"
FILE = '''
from simtrain import ActorCfg, CriticCfg, ObservationTermCfg, PpoCfg, RewardTermCfg, mdp, task
from tiny_task import alive, tiny_task


@task("tiny-cart")
def tiny_cart():
    """Push a cart."""
    cfg = tiny_task(num_envs=4, num_steps_per_env=4, max_iterations=5)
    cfg.observations["actor"]["speed"] = ObservationTermCfg(mdp.joint_vel, joints="left_slide")
    cfg.ppo = PpoCfg(actor=ActorCfg((8,)), critic=CriticCfg((8,)))
    return cfg
'''
CHANGES = [
    *("--seed", "3", "--env.rewards.alive.weight", "2.0", "--env.episode-length-s", "0.1"),
    *("--ppo.actor.hidden-dims", "6", "4", "--ppo.gamma", "0.9"),
    *("--gpu-ids", "None", "--cpu-threads", "1"),
]
FEW = ["--episodes", "4", "--device", "cpu"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with a user's tasks, a run of one, and the policy that it ships with."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "tasks" / "cart").mkdir(parents=True)
    (folder / "tasks" / "cart" / "cart.py").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        more = ["--max-iterations", "2", "--log-root", "runs", "--logger", "none"]
        assert train([TASK, *CHANGES, *more]) == 0
        (folder / "runs" / TASK).rename(folder / "of-task")
        (run,) = (folder / "of-task").iterdir()
        run.rename(folder / "run")
        assert export(["run", "--ship", "--episodes", "4"]) == 0
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch) -> Path:
    """A copy of it to work in."""
    monkeypatch.delenv("SIMTRAIN_TASKS", raising=False)
    folder = Path(shutil.copytree(made, tmp_path / "copy"))
    monkeypatch.chdir(folder)
    return folder


def test_two_files_have_the_networks_and_all_there_is_to_know(here):
    trained = here / "tasks" / "cart" / "trained"
    assert sorted(path.name for path in trained.iterdir()) == [f"{TASK}.pt", f"{TASK}.yaml"]
    content = torch.load(trained / f"{TASK}.pt", weights_only=True)
    networks = ["actor_state_dict", "critic_state_dict"]
    assert sorted(content) == [*networks, "infos", "iter"]
    assert (content["iter"], content["infos"]) == (2, {"task": TASK})
    of_run = open_policy(Path("run")).content
    for name in networks:
        torch.testing.assert_close(content[name], of_run[name], rtol=0.0, atol=0.0)
    told = yaml.safe_load((trained / f"{TASK}.yaml").read_text())
    assert told["observations"] == ["actor.position", "actor.speed"]
    changed = {"rewards": {"alive": {"weight": 2.0}}, "episode_length_s": 0.1}
    assert told["config"]["env"] == changed
    assert (told["training"]["iteration"], told["training"]["env_steps"]) == (2, 32)
    assert (told["training"]["seed"], told["training"]["devices"]) == (3, ["cpu"])
    assert told["evaluation"]["estimates"]["mean_return"][0] == pytest.approx(0.2)
    assert str(here) not in str(told)


def test_the_command_trains_the_same(here):
    told = yaml.safe_load((here / "tasks" / "cart" / "trained" / f"{TASK}.yaml").read_text())
    *start, task = (words := shlex.split(told["training"]["command"]))[:4]
    assert (start, task) == (["uv", "run", "train"], TASK)
    again = parse_flags("train", default_config(TASK), words[4:])
    assert differences(resolved(open_policy(Path("run")).config), resolved(again)) == {}
    assert (again.max_iterations, again.gpu_ids, again.cpu_threads) == (2, None, 1)


def test_the_name_of_the_task_stands_for_its_policy(here, capsys):
    found = []
    for name in ("run", TASK, f"tasks/cart/trained/{TASK}.pt"):
        capsys.readouterr()
        assert evaluate([name, *FEW, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out)[0]["per_episode"])
    assert found[0] == found[1] == found[2]
    assert export([TASK, "--formats", "pt2"]) == 0
    assert (here / "exported" / TASK / "policy.pt2").exists()
    flags = ["--gpu-ids", "None", "--max-iterations", "1", "--logger", "none"]
    assert train([TASK, *flags, "--init-from", TASK, *CHANGES]) == 0
    copied = f"tensors of the actor and critic in {here}/tasks/cart/trained/"
    assert copied in capsys.readouterr().out
    assert train([TASK, *flags, "--teacher", TASK, "--distillation.gradient-length", "4"]) == 0


def test_a_run_goes_before_a_task_of_its_name_and_another_folder_does_not(here):
    shipped = here / "tasks" / "cart" / "trained" / f"{TASK}.pt"
    Path(TASK).mkdir()
    assert find_policy(Path(TASK)) == shipped
    shutil.copytree("run", TASK, dirs_exist_ok=True)
    assert find_policy(Path(TASK)) == Path(TASK, "model_2.pt")


CHANGED = [
    ('["speed"]', '["velocity"]', "observations have changed since (actor.speed, actor.velocity);"),
    ('joints="left', 'history_length=2, joints="left', "task with other observations or actions"),
    ("(num_envs=4", '(rewards={"on": RewardTermCfg(alive, 1.0)}, num_envs=4', "it lacks 'alive'"),
]


@pytest.mark.parametrize(("before", "after", "message"), CHANGED, ids=["name", "size", "reward"])
def test_a_task_that_has_changed_since_is_told(before, after, message, here):
    file = here / "tasks" / "cart" / "cart.py"
    assert before in file.read_text()
    file.write_text(file.read_text().replace(before, after))
    with pytest.raises(ConfigError) as error:
        evaluate([TASK, *FEW])
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@needs_opengl
def test_a_task_that_has_changed_is_still_shown_without_its_policy(here):
    file = here / "tasks" / "cart" / "cart.py"
    file.write_text(file.read_text().replace(*CHANGED[0][:2]))
    flags = ["--video", "a.mp4", "--seconds", "0.1", "--num-envs", "1"]
    with pytest.raises(ConfigError, match="use --policy zero or --policy random instead"):
        play([TASK, *flags])
    assert play([TASK, *flags, "--policy", "zero"]) == 0


def test_mistakes_are_told_in_a_line(here, monkeypatch):
    def refused(*flags: str) -> str:
        with pytest.raises(ConfigError) as error:
            export(flags)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert f"{TASK}.pt ships already; name a run" in refused(TASK, "--ship")
    assert "--output does not go with --ship" in refused("run", "--ship", "--output", "x")
    assert "--episodes is 0; it must be" in refused("run", "--ship", "--episodes", "0")
    with monkeypatch.context() as patch:
        patch.setattr(export_module, "_MOST_BYTES", 100)
        assert "bytes, and 100 may ship (--ppo.*.hidden-dims)" in refused("run", "--ship")
    file = here / "tasks" / "cart" / "cart.py"
    more = 'cfg.rewards["more"] = RewardTermCfg(alive, 1.0)\n    return cfg'
    file.write_text(file.read_text().replace("return cfg", more))
    assert "is not what the run was trained with (--env.rewards.m" in refused("run", "--ship")
    shutil.rmtree(here / "tasks" / "cart" / "trained")
    with pytest.raises(ConfigError, match=f"ships with the task {TASK}; `uv run train {TASK}` tr"):
        evaluate([TASK])
