"""A run directory or checkpoint becomes a policy again, or a message that says why not."""

from __future__ import annotations

import copy
import dataclasses
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from simtrain.cli.evaluate import evaluate
from simtrain.cli.export import export
from simtrain.cli.train import train
from simtrain.config.tasks import default_config
from simtrain.config.train import TrainConfig
from simtrain.env.control.cfg import NetworkActuatorCfg
from simtrain.env.env import Env
from simtrain.env.model import evaluation_task
from simtrain.errors import ConfigError
from simtrain.sim import EngineCfg
from simtrain.training.saved_policy import check_programs, find_policy, open_policy


def copied(run: Path, folder: Path, before: str = "", after: str = "") -> Path:
    """A copy of a run's checkpoint, beside its configuration with a change."""
    config = (run / "config.yaml").read_text()
    assert before in config
    (folder / "config.yaml").write_text(config.replace(before, after, 1))
    (folder / "model_2.pt").write_bytes((run / "model_2.pt").read_bytes())
    return folder


def test_checkpoints_of_before_a_resume_are_still_those_of_the_run(trained_run, tmp_path):
    run = shutil.copytree(trained_run, tmp_path / "run")
    flags = ["--gpu-ids", "None", "--cpu-threads", "1", "--max-iterations", "3"]
    assert train(["cartpole-balance", "--resume", str(run), *flags]) == 0
    assert not open_policy(run).changed
    assert not open_policy(run / "model_2.pt").changed


def test_a_saved_policy_acts_by_the_trained_mean_of_its_actions(trained_run):
    assert open_policy(trained_run / "model_1.pt").iteration == 1
    saved = open_policy(trained_run)
    assert saved.iteration == 2
    assert saved.checkpoint == trained_run / "model_2.pt"
    assert saved.config.env.rewards["upright"].weight == 3.0
    env = Env(evaluation_task(saved.config.env), 4, EngineCfg(threads=1))
    policy = saved.policy(env.get_observations(), env.num_actions)
    state = saved.content["actor_state_dict"]
    obs = env.get_observations()
    x = torch.cat([obs[group] for group in saved.config.ppo.actor.obs_groups], dim=1)
    x = (x - state["obs_normalizer._mean"]) / (state["obs_normalizer._std"] + 1e-2)
    layers = sorted(int(name.split(".")[1]) for name in state if name.endswith("weight"))
    for layer in layers:
        x = x @ state[f"mlp.{layer}.weight"].T + state[f"mlp.{layer}.bias"]
        if layer != layers[-1]:
            x = getattr(torch.nn.functional, saved.config.ppo.actor.activation)(x)
    torch.testing.assert_close(policy(obs), x)


def test_a_run_of_a_task_that_is_not_here_names_the_file_it_was_trained_with(trained_run, tmp_path):
    run = copied(trained_run, tmp_path, "task: cartpole-balance", "task: my-balance")
    content = torch.load(run / "model_2.pt", weights_only=True)
    content["infos"]["task"] = "my-balance"
    torch.save(content, run / "model_2.pt")
    with pytest.raises(ConfigError, match=r"no task 'my-balance'.* trained with /.*/cartpole\.py"):
        open_policy(run)


def test_what_is_no_run_is_told(tmp_path, trained_run):
    for path, problem in {
        tmp_path / "nowhere": "there is no run, checkpoint or task",
        tmp_path: "no run directory",
        trained_run.parents[1]: f"newest run below it is {trained_run}",
        trained_run / "model_7.pt": f"; the newest checkpoint in {trained_run} is model_2.pt$",
    }.items():
        with pytest.raises(ConfigError, match=problem):
            find_policy(path)
    (tmp_path / "config.yaml").write_text("")
    with pytest.raises(ConfigError, match="no checkpoint yet"):
        find_policy(tmp_path)


def test_for_a_task_without_a_shipped_policy_the_newest_run_is_named(here):
    task = "go1-velocity-rough"
    for name in ("2026-11-21_15-12-28", "2026-11-22_09-00-00"):
        (here / "logs" / task / name).mkdir(parents=True)
        (here / "logs" / task / name / "config.yaml").touch()
    with pytest.raises(ConfigError, match=f"its newest run is logs/{task}/2026-11-22_09-00-00$"):
        find_policy(Path(task))


def test_a_checkpoint_of_another_task_or_network_is_told(tmp_path, trained_run):
    run = copied(trained_run, tmp_path, "balance", "swingup")
    with pytest.raises(ConfigError, match="is of the task 'cartpole-balance', but is in a run"):
        open_policy(run)
    (run / "config.yaml").unlink()
    with pytest.raises(ConfigError, match="used from its run directory"):
        open_policy(run / "model_2.pt")
    saved = open_policy(trained_run)
    saved.config.ppo.actor.hidden_dims = (7,)
    env = Env(saved.config.env, 1, EngineCfg(threads=1))
    with pytest.raises(ConfigError, match=r"another network.*mlp.0.bias"):
        saved.policy(env.get_observations(), env.num_actions)


def test_a_network_that_only_a_run_names_is_not_imported(tmp_path, trained_run, monkeypatch):
    run, marker = tmp_path / "run", tmp_path / "it ran"
    run.mkdir()
    (tmp_path / "elsewhere.py").write_text(f"open({str(marker)!r}, 'w')\nclass Net: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    copied(trained_run, run, "model: mlp", "model: elsewhere:Net")
    with pytest.raises(ConfigError, match=r"actor.model elsewhere:Net is named by a run"):
        open_policy(run)
    config = default_config("cartpole-balance")
    resumed = dataclasses.replace(config, ppo=copy.deepcopy(config.ppo))
    resumed.ppo.critic.model = "elsewhere:Net"
    with pytest.raises(ConfigError, match=r"critic.model elsewhere:Net is named by a run"):
        check_programs(resumed, config)
    check_programs(resumed, resumed)  # typed now
    assert not marker.exists()
    monkeypatch.setitem(sys.modules, "elsewhere", ModuleType("elsewhere"))
    check_programs(resumed, config)  # the task's file imports it


def test_programs_that_only_a_run_names_are_not_run():
    """Of a student its teacher's class, and a motor's network in TorchScript."""

    def with_(teacher: str, network: str) -> TrainConfig:
        config = default_config("cartpole-balance")
        config.distillation.teacher.model = teacher
        motor = NetworkActuatorCfg("slider", network=Path(network), effort_limit=1.0)
        config.env.actuators = {"motor": motor}
        return config

    own = with_("mlp", "own.pt")
    with pytest.raises(ConfigError, match=r"teacher.model elsewhere:Net is named by a run"):
        check_programs(with_("elsewhere:Net", "own.pt"), own)
    with pytest.raises(ConfigError, match=r"actuators.motor.network run.pt is named by a run"):
        check_programs(with_("mlp", "run.pt"), own)
    check_programs(with_("gru", "run.onnx"), own)
    check_programs(own, own)


def test_an_undisturbed_task_has_no_noise_pushes_and_curricula():
    task = default_config("go1-velocity-rough").env
    calm = evaluation_task(task)
    assert {"push", "reset_base"} <= task.events.keys()
    assert calm.events.keys() & {"push", "reset_base"} == {"reset_base"}
    assert any(term.noise for term in task.observations["actor"].values())
    assert not any(term.noise for of in calm.observations.values() for term in of.values())
    assert task.curricula
    assert not calm.curricula
    assert calm.terrain.max_initial_level is None


def test_a_changed_configuration_is_told_and_not_exported_unless_asked_for(
    tmp_path, trained_run, capsys
):
    assert not open_policy(trained_run).changed
    moved = copied(trained_run, tmp_path, "save_interval: 1", "save_interval: 7")
    assert not open_policy(moved).changed  # it does not decide the results
    path = str(copied(trained_run, tmp_path, "weight: 3.0", "weight: 3.1"))
    with pytest.raises(ConfigError, match=r"trained with; to export it anyway, pass --with"):
        export([path])
    assert export([path, "--with-changes", "--formats", "pt2"]) == 0
    capsys.readouterr()
    assert evaluate([path, "--episodes", "1", "--device", "cpu"]) == 0
    warning = f"{path}/config.yaml is not the configuration that model_2.pt was trained with"
    assert f"warning: {warning}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("timestep: ", "timestep: -1 # ", "--env.timestep is -1; it must be 1e-06 or more"),
        ("  num_envs: 8", "  num_envs: many", "--num-envs is 'many'; it must be a whole number"),
        ("weight: 3.0", "weight: '3.0'", "upright.weight is '3.0'; it must be a number"),
        ("pole_joints: hinge", "pole_joints: 5", "pole_joints cannot be 5"),
        ("  ppo:", "  ppo: 5\n  other:", "a PpoCfg cannot be 5"),
        ("config:", "config: " + "[" * 10**4, "is damaged, or not the configuration of a run"),
        ("config:", "x: &x [1, 2]\ny: *x\nconfig:", "it refers to its own parts"),
    ],
)
def test_a_configuration_is_checked_as_that_of_a_training(
    before, after, message, tmp_path, trained_run
):
    with pytest.raises(ConfigError) as error:
        open_policy(copied(trained_run, tmp_path, before, after))
    assert message in str(error.value)
    assert f"{tmp_path}/config.yaml" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actor_state_dict": {"mlp.0.bias": torch.full((3,), torch.nan)}}, "not finite numbers"),
        ({"actor_state_dict": {"mlp.0.bias": torch.ones(3, dtype=torch.int32)}}, "of torch.int32"),
        ({"actor_state_dict": {"mlp.0.bias": torch.ones(3) * 1j}}, "mlp.0.bias of torch.complex64"),
        ({"actor_state_dict": {"mlp.0.bias": 5}}, "is damaged"),
        ({"actor_state_dict": [1, 2]}, "is damaged"),
        ({"iter": "x"}, "is damaged"),
        ({"infos": {"task": "cartpole-balance"}}, None),  # of before there were digests
    ],
)
def test_a_crafted_checkpoint_is_told(change, message, tmp_path, trained_run):
    path = copied(trained_run, tmp_path, "weight: 3.0", "weight: 3.1") / "model_2.pt"
    torch.save(torch.load(path, weights_only=True) | change, path)
    if message is None:
        assert not open_policy(path).changed
        return
    with pytest.raises(ConfigError, match=message):
        open_policy(path)
